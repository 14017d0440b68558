# SPDX-License-Identifier: Apache-2.0
"""The routes of several pools on one admin port."""

import pytest
from aiohttp import web

from epp.admin.answers import as_json
from epp.admin.port import page_routes, routes_of_pools
from tests.support.admin_client import TOKEN, asked


def routes(pool: str) -> web.UrlDispatcher:
    async def show(request: web.Request) -> web.Response:
        return as_json({"pool": pool, "name": request.match_info.get("name", "")})

    async def echo(request: web.Request) -> web.Response:
        return as_json({"pool": pool, "body": await request.json(), "query": request.query_string})

    found = web.UrlDispatcher()
    found.add_routes([*page_routes(), web.get("/api/pool", show), web.get("/api/pool/{name}", show)])
    found.add_routes([web.post("/api/echo", echo)])
    return found


@pytest.fixture
def pools() -> dict[str, web.UrlDispatcher]:
    return {"chat": routes("chat"), "code": routes("code")}


@pytest.fixture
def port(open_port, pools):
    return open_port(routes_of_pools(pools))


def test_each_pool_has_all_routes_below_its_name(port):
    assert asked(port, path="/pools/chat/api/pool").body == {"pool": "chat", "name": ""}
    assert asked(port, path="/pools/code/api/pool/x").body == {"pool": "code", "name": "x"}
    assert asked(port, path="/pools").body == {"pools": ["chat", "code"]}


def test_body_and_query_of_a_request_reach_its_pool(port):
    answer = asked(port, "POST", "/pools/code/api/echo?dryRun=true", {"tenant": "a"})
    assert answer.body == {"pool": "code", "body": {"tenant": "a"}, "query": "dryRun=true"}


def test_name_with_an_encoded_slash_is_one_name(port):
    assert asked(port, path="/pools/code/api/pool/llm%2Fvllm-0").body == {"pool": "code", "name": "llm/vllm-0"}


def test_errors_below_the_name_of_a_pool_show_its_paths_and_methods(port):
    unknown = asked(port, path="/pools/chat/api/other")
    assert (unknown.status, unknown.error) == (404, "NotFound")
    assert unknown.body["error"]["message"] == (
        "there is nothing at this path: use GET /, GET /page.css, GET /page.js, GET /api/pool, GET /api/pool/, "
        "POST /api/echo"
    )
    wrong = asked(port, "DELETE", "/pools/chat/api/echo")
    assert (wrong.status, wrong.error, wrong.headers["Allow"]) == (405, "MethodNotAllowed", "POST")


def test_pool_that_joins_later_has_them_too_and_one_that_left_has_none(port, pools):
    assert asked(port, path="/pools/later/api/pool").status == 404
    pools["later"] = routes("later")
    assert asked(port, path="/pools/later/api/pool").body["pool"] == "later"
    del pools["chat"]
    answer = asked(port, path="/pools/chat/api/pool")
    assert (answer.status, answer.error) == (404, "NotFound")
    assert answer.body["error"]["message"] == "no pool 'chat' is served here: see /pools"


@pytest.mark.parametrize("path", ["/api/pool", "/pools/chat", "/pools/chat/api/other", "/pools//api/pool"])
def test_other_paths_are_404(port, path):
    assert asked(port, path=path).status == 404


def test_only_the_files_of_the_page_need_no_token(open_port, pools, token_file):
    guarded = open_port(routes_of_pools(pools), token_file=token_file)
    assert asked(guarded, "HEAD", "/pools/chat/page.js").status == 200
    assert asked(guarded, path="/pools").status == 401
    assert asked(guarded, path="/pools/chat/api/pool").status == 401
    assert asked(guarded, path="/pools/chat/api/pool", Authorization=f"Bearer {TOKEN}").status == 200
