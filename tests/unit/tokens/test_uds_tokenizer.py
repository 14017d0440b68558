# SPDX-License-Identifier: Apache-2.0
"""Token ids from llm-d's tokenizer service on a Unix socket, and one that is down, hangs, fails or answers nonsense."""

import json
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import grpc
import pytest

from epp.framework import MediaTokens
from epp.pool.tokens.source import MOST_TOKENS
from tests.support.uds_tokenizer import M, uds_tokenizer
from tests.support.waiting import until
from tests.unit.tokens.conftest import asked, chat


@pytest.fixture
def path():
    with TemporaryDirectory() as folder:  # a socket's path is short
        yield f"{folder}/a b%41.socket"


@pytest.fixture
async def service(path):
    async with uds_tokenizer(path) as server:
        yield server


@asynccontextmanager
async def asking(path, **more):
    """Run a producer, and wait until it was prepared."""
    async with asked(
        {"modelName": "base", "udsTokenizerConfig": {"socketFile": path, **more}, "budget": "10s"}
    ) as world:
        fetches = world.producer._fetches  # noqa: SLF001  there is no other way to it
        await until(lambda: fetches._is_open, "the source is open")  # noqa: SLF001
        yield world


@pytest.fixture
async def world(service, path):
    async with asking(path) as world:
        yield world


def ids(text):
    return list(text.encode())


async def test_tokenizer_is_loaded_at_the_start_and_completion_has_the_ids_of_the_service(service, world):
    assert service.loaded == ["base"]
    tokens, held = await world.tokens({"prompt": "hello"}, "completions")
    assert (tokens.count, tokens.exact, tokens.ids.tolist(), held) == (5, True, ids("hello"), True)
    assert await world.ids({"prompt": ["hello"]}, "completions") == ids("hello")
    assert [(each.model_name, each.prompt) for each in service.asked] == [("base", "hello")] * 2


async def test_chat_is_sent_with_tools_calls_and_variables_of_the_template(service, world):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    more = {"chat_template": "t", "chat_template_kwargs": {"a": 1}, "documents": [{"text": "d"}]}
    assert await world.ids({"messages": messages, "tools": [tool], **more}) == ids("hellodone")
    (got,) = service.asked
    said = [(each.role, each.content) for each in got.messages]
    assert said == [("user", "hello"), ("assistant", ""), ("tool", "done")]
    assert json.loads(got.messages[1].tool_calls_json) == [call]
    assert json.loads(got.tools_json)[0]["function"]["parameters"] == {"type": "object"}
    assert json.loads(got.chat_template_kwargs) == {"a": 1, "documents": [{"text": "d"}]}
    assert (got.chat_template, got.add_generation_prompt, got.continue_final_message) == ("t", True, False)


async def test_answer_to_continue_has_no_generation_prompt(service, world):
    await world.ids(chat("hello", "you", add_generation_prompt=False, continue_final_message=True))
    (got,) = service.asked
    assert (got.add_generation_prompt, got.continue_final_message, got.chat_template_kwargs) == (False, True, "")


def features(**places):
    return {
        "mm_hashes": [{"key": kind, "value": {"values": [kind + "1", kind + "2"]}} for kind in places],
        "mm_placeholders": [
            {"key": kind, "value": {"ranges": [{"offset": offset, "length": length} for offset, length in spans]}}
            for kind, spans in places.items()
        ],
    }


async def test_images_are_sent_and_have_the_identifiers_and_places_of_the_engine(service, world):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    service.answer = lambda _: M["ChatTokens"](
        token_ids=range(12), features=features(image=[(9, 2), (0, 3)]), success=True
    )
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]}
    tokens, _ = await world.tokens(body)
    assert tokens.media == (MediaTokens("image2", 0, 3), MediaTokens("image1", 9, 2))
    text, picture = service.asked[0].messages[0].content_parts
    assert (text.type, text.text, picture.type) == ("text", "see", "image_url")
    assert picture.image_url.url == "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("suffix", "body"),
    [
        ("completions", {"prompt": ["hello", "you"]}),
        ("completions", {"prompt": "hello", "add_special_tokens": False}),
        ("completions", {"prompt": "hello", "truncate_prompt_tokens": 2}),
        ("chat/completions", chat("hello", truncate_prompt_tokens=2)),
        ("chat/completions", chat(*["hello"] * 4097)),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}]}),
        ("messages", {**chat("hello"), "max_tokens": 1}),
    ],
)
async def test_prompt_that_the_service_cannot_take_is_estimated(service, world, suffix, body):
    tokens, _ = await world.tokens(body, suffix)
    assert (tokens.ids, tokens.no_ids, service.asked) == (None, "refused", [])


async def test_long_prompt_is_counted_whole_and_kept_up_to_the_limit(service, world):
    service.answer = lambda _: M["ChatTokens"](token_ids=[300] * (MOST_TOKENS + 5), success=True)
    tokens, _ = await world.tokens(chat("hello"))
    assert (tokens.count, len(tokens.ids)) == (MOST_TOKENS + 5, MOST_TOKENS)


@pytest.mark.parametrize("status", [None, grpc.StatusCode.INTERNAL])
async def test_prompt_that_the_service_refuses_does_not_stop_it(service, path, status):
    service.status = status
    service.answer = lambda _: M["ChatTokens"]()  # no success
    async with asking(path) as world:
        for number in range(7):
            assert await world.ids(chat(f"hello {number}")) is None
        assert world.results == {"refused": 7}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"no message", "failed"),
        (b"\x12\x01\x80" + b"\x20\x01", "failed"),  # an id that is cut off
        (b"\x10\x01" * 20_000 + b"\x20\x01", "failed"),
        (M["ChatTokens"](features=features(image=[(0, 9), (3, 1)]), success=True), "failed"),
        (M["ChatTokens"](features=features(image=[(0, 9)]), success=True), "failed"),
        (b"\x0a" + b"x" * 8 * 1024 * 1024, "refused"),  # too long to be received
    ],
)
async def test_answer_of_another_form_is_a_failure_of_the_service(service, world, answer, outcome):
    service.answer = lambda _: answer
    assert (await world.tokens(chat("hello")))[0].no_ids == outcome


async def test_failing_service_is_left_alone_and_its_text_is_not_repeated(service, path):
    service.status = grpc.StatusCode.UNAVAILABLE
    async with asking(path) as world:
        for number in range(6):
            assert await world.ids(chat(f"hello {number}")) is None
        assert world.results == {"failed": 5, "unavailable": 1}
        (problem,) = world.producer.inputs.problems
        assert problem.reason == "no token ids of prompts: UNAVAILABLE"
        assert len(service.loaded) == 5


async def test_service_that_starts_after_the_picker_is_found(path):
    async with asking(path) as world:
        assert (await world.tokens(chat("hello")))[0].no_ids == "unavailable"
        (problem,) = world.producer.inputs.problems
        assert "UNAVAILABLE: " in problem.reason
        assert "No such file" in problem.reason
        async with uds_tokenizer(path) as service:

            async def found():
                world.producer.clock.advance(10)
                return await world.ids(chat("hello")) == ids("hello")

            await until(found, "the service answers")
            assert (service.loaded, world.producer.inputs.problems) == (["base"], ())


async def test_tokenizer_that_cannot_be_loaded_is_named_on_healthz(service, path):
    service.load_error = "no such model"
    async with asking(path) as world:
        assert await world.ids(chat("hello")) is None
        assert world.producer.inputs.problems[0].reason.endswith("the tokenizer was not loaded: 'no such model'")


async def test_model_is_asked_for_by_the_folder_of_its_tokenizer(service, path):
    async with asking(path, modelTokenizerMap={"base": "/models/a/tokenizer.json", "b": "/models/b"}) as world:
        await world.ids(chat("hello"))
        assert (service.loaded, service.asked[0].model_name) == (["/models/a"], "/models/a")


async def test_service_may_be_asked_by_tcp(service):
    async with asking(f"127.0.0.1:{service.port}", useTCP=True) as world:
        assert await world.ids(chat("hello")) == ids("hello")
