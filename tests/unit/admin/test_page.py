# SPDX-License-Identifier: Apache-2.0
"""The page is sent to whoever may reach the port, token or not; what it shows is not."""

import re
from http.client import HTTPConnection

import pytest

from epp.admin.port import page_routes
from tests.support.admin_client import ROUTES, asked, opened


def got(port, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    client = HTTPConnection("127.0.0.1", port.port, timeout=60)
    try:
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        client.close()


@pytest.fixture
def paged(token_file):
    with opened((*page_routes(), *ROUTES), token_file=token_file) as port:
        yield port


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [("/", "text/html", "<title>"), ("/page.css", "text/css", ":root"), ("/page.js", "text/javascript", "fetch(")],
)
def test_files_of_the_page_need_no_token_and_nothing_from_elsewhere(paged, path, kind, text):
    status, headers, body = got(paged, path)
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
    assert text in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert re.search(r"https?:|url\(|@import", body) is None


def test_what_it_shows_needs_a_token_and_is_for_no_page_of_another_site(paged):
    assert asked(paged).error == "Unauthorized"
    assert asked(paged, path="/api/echo/x").error == "Unauthorized"
    assert asked(paged, path="/other").error == "Unauthorized"
    assert got(paged, "/page.js", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
