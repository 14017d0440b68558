# SPDX-License-Identifier: Apache-2.0
"""Token ids from a render server over HTTP, and a server that hangs, fails or answers nonsense."""

import asyncio
import json

import pytest

from epp.framework import PROMPT_TOKENS, MediaTokens, Request
from epp.pool.tokens.source import MOST_TOKENS
from tests.support.apis import parse
from tests.support.render_server import ids
from tests.support.waiting import until
from tests.unit.tokens.conftest import POOL, asked, build, chat


def vllm(render, **more):
    return {"modelName": "base", "vllm": {"url": render.url}, "budget": "10s", **more}


@pytest.fixture
async def world(render):
    async with asked(vllm(render)) as world:
        yield world


async def test_chat_is_rendered_with_the_model_of_the_server_and_every_other_member_as_it_came(render, world):
    tokens, held = await world.tokens(chat("hello", temperature=0.5))
    assert (tokens.count, tokens.exact, tokens.ids.tolist(), held) == (5, True, ids("hello"), True)
    expected = {"model": "base", **chat("hello", temperature=0.5)}
    assert render.asked == [("/v1/chat/completions/render", expected)]


async def test_prompts_of_a_list_end_where_the_server_says(world):
    tokens, _ = await world.tokens({"prompt": ["hello", "you"]}, "completions")
    assert (tokens.ids.tolist(), tokens.ends) == (ids("helloyou"), (5, 8))
    assert await world.ids({"prompt": "hello"}, "completions") == ids("hello")


async def test_same_body_is_asked_about_once_and_then_costs_no_wait(render, world):
    found = await asyncio.gather(*(world.ids(chat("hello")) for _ in range(3)))
    assert found == [ids("hello")] * 3
    assert (await world.tokens(chat("hello")))[1] is False
    assert len(render.asked) == 1
    assert world.results == {"fetched": 3, "cached": 1}
    assert world.value("prompt_token_cache_bytes") > 0


async def test_media_have_the_identifiers_and_places_of_the_engine(render, world):
    places = {"image": [{"offset": 9, "length": 2}, {"offset": 1, "length": 3}]}
    features = {"mm_hashes": {"image": ["second", "first"]}, "mm_placeholders": places}
    render.answer = lambda _: {"token_ids": list(range(12)), "features": features}
    tokens, _ = await world.tokens(chat("a picture"))
    assert tokens.media == (MediaTokens("first", 1, 3), MediaTokens("second", 9, 2))


def with_media(hashes, *places):
    placeholders = {"image": [{"offset": offset, "length": length} for offset, length in places]}
    return json.dumps({"token_ids": [1], "features": {"mm_hashes": hashes, "mm_placeholders": placeholders}}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"no JSON",
        b"[]",
        b'{"token_ids": "text"}',
        b'{"token_ids": [1, -2]}',
        b'{"token_ids": [1, 4294967296]}',
        b'{"ids": [1]}',
        with_media({}, [0, 1]),
        with_media({"image": ["a", "b"]}, [0, 9], [3, 1]),
        with_media({"image": ["a" * 1024] * 128}),
    ],
)
async def test_answer_of_another_form_is_a_failure_of_the_server(render, world, answer):
    render.answer = answer
    tokens, _ = await world.tokens(chat("hello"))
    assert (tokens.ids, tokens.exact, tokens.no_ids) == (None, False, "failed")
    assert world.results == {"failed": 1}


@pytest.mark.parametrize(
    "answer",
    [
        {"token_ids": [1000000] * 300_000},
        [{"token_ids": [1]}] * 1025,
        {"token_ids": [1], "unread": [[]] * 20_000},
        {"token_ids": [1], "unread": [1] * 1_000_000, "more": [1] * 400_000},
    ],
)
async def test_answer_that_takes_too_long_to_read_says_nothing_about_the_server(render, world, answer):
    render.answer = lambda _: answer
    assert (await world.tokens(chat("hello")))[0].no_ids == "refused"


async def test_long_prompt_is_counted_whole_and_kept_up_to_the_limit(render, world):
    render.answer = lambda _: {"token_ids": [7] * (MOST_TOKENS + 5)}
    tokens, _ = await world.tokens(chat("hello"))
    assert (tokens.count, len(tokens.ids)) == (MOST_TOKENS + 5, MOST_TOKENS)


async def test_refused_prompt_says_nothing_about_the_server(render, world):
    render.status = 400
    for number in range(9):
        assert await world.ids(chat(f"hello {number}")) is None
    assert world.results == {"refused": 9}


async def test_server_that_hangs_costs_the_budget_and_its_late_answer_serves_the_next_request(render):
    render.hangs = True
    async with asked(vllm(render, budget="1ms")) as world:
        assert await world.ids(chat("hello")) is None
        render.released.set()
        await until(lambda: world.value("prompt_token_cache_bytes") > 0, "the answer has come")
        assert await world.ids(chat("hello")) == ids("hello")
        assert world.results == {"late": 1, "cached": 1}


async def test_more_fetches_than_the_limit_are_not_begun(render):
    render.hangs = True
    async with asked(vllm(render, budget="1ms")) as world:
        for number in range(40):
            await world.ids(chat(f"hello {number}"))
        assert world.results == {"late": 32, "busy": 8}
        assert (await world.tokens(chat("hello")))[0].no_ids == "busy"


async def test_bodies_that_are_asked_about_are_limited_together(render, monkeypatch):
    monkeypatch.setattr("epp.pool.tokens.producer._IN_FLIGHT_BYTES", 640 * 1024)
    render.hangs = True
    async with asked(vllm(render, budget="1ms")) as world:
        for number in range(11):  # 60 KiB each, and 640 in all
            await world.ids(chat(f"{number} " + "x" * 60 * 1024))
        assert world.results == {"late": 10, "busy": 1}


async def test_failing_server_is_left_alone_for_ten_seconds_and_tried_with_one_request(render, world):
    render.status = 503
    for number in range(8):
        assert await world.ids(chat(f"hello {number}")) is None
    assert world.results == {"failed": 5, "unavailable": 3}
    assert world.value("prompt_token_source_unavailable")
    (problem,) = world.producer.inputs.problems
    assert (problem.file, problem.reason) == (render.url, "no token ids of prompts: answered with status 503")
    world.producer.clock.advance(10)
    assert not world.producer.inputs.problems  # an idle picker does not know
    assert await world.ids(chat("first trial")) is None
    assert await world.ids(chat("none")) is None
    assert world.producer.inputs.problems
    assert len(render.asked) == 6
    render.status = 200
    world.producer.clock.advance(10)
    assert await world.ids(chat("second trial")) == ids("second trial")
    assert await world.ids(chat("more")) == ids("more")
    assert not world.producer.inputs.problems


async def test_timeouts_count_as_failures(render):
    render.hangs = True
    async with asked(vllm(render, vllm={"url": render.url, "timeout": "1ms"})) as world:
        for number in range(6):
            assert await world.ids(chat(f"hello {number}")) is None
        assert world.results == {"failed": 5, "unavailable": 1}
        assert "no answer within 0.001 s" in world.producer.inputs.problems[0].reason


async def test_server_that_is_not_there_is_a_failure():
    async with asked({"modelName": "m", "vllm": {"url": "http://127.0.0.1:1"}, "budget": "10s"}) as world:
        assert await world.ids(chat("hello")) is None
        assert world.results == {"failed": 1}


@pytest.mark.parametrize(
    ("suffix", "body"),
    [("completions", {"prompt": [1, 2]}), ("embeddings", {"input": "text"}), ("responses", {"input": "text"})],
)
async def test_token_ids_and_other_apis_are_not_asked_about(render, world, suffix, body):
    tokens, held = await world.tokens(body, suffix)
    assert (tokens.ids, held, render.asked, world.results) == (None, False, [], {})


async def test_simulated_request_finds_what_is_cached_and_asks_for_nothing(render, world):
    assert await world.ids(chat("hello"), dry_run=True) is None
    assert render.asked == []
    await world.ids(chat("hello"))
    assert await world.ids(chat("hello"), dry_run=True) == ids("hello")
    assert world.results == {"fetched": 1}


async def test_body_larger_than_the_limit_is_not_sent(render, world):
    body = json.dumps({"model": "m", **chat("hello")}).encode()
    assert await world.ids(body + b" " * 8 * 1024 * 1024) is None
    assert (render.asked, world.results) == ([], {"too large": 1})


async def test_producer_that_does_not_run_holds_no_request():
    producer = build({"modelName": "m"})
    content = json.dumps({"model": "m", **chat("hello")}).encode()
    request = Request("r", parse("chat/completions", content), path="/v1/chat/completions", content=content)
    producer.produce(request, POOL)
    assert producer.admit(request, POOL) is None
    assert request.get(PROMPT_TOKENS).ids is None


def test_model_alone_names_the_server_that_is_asked():
    (warning,) = build({"modelName": "m"}).warnings
    assert "http://localhost:8000" in warning
    assert not build({"modelName": "m", "vllm": {}}).warnings
    assert not build({"modelName": "m", "estimate": {}}).warnings
