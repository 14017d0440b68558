"""Bodies in, the few fields that routing needs out; whatever comes in, no other error than the documented ones."""

import json
import struct
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.framework import Headers, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError
from epp.plugins.parsers.openai import OpenAIParser

PARSER = OpenAIParser()
CHAT = "chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Hi"}


def parse(suffix, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PARSER.parse(suffix, Headers(), raw)


def test_chat_is_its_messages_in_order():
    body = parse(CHAT, {"model": "m", "messages": [SYSTEM, QUESTION], "stream": True, "cache_salt": "s", "n": 1})
    prompt = b"system\nBe brief.\nuser\nHi\n"  # 25 bytes: 7 tokens
    assert body == RequestBody(model="m", prompt=prompt, prompt_tokens=7, streaming=True, cache_salt="s")


def test_conversation_that_goes_on_starts_with_the_bytes_of_the_shorter_one():
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    messages = [SYSTEM, QUESTION, call, {"role": "tool", "content": "42"}, QUESTION]
    prompts = [parse(CHAT, {"tools": tools, "messages": messages[:n]}).prompt for n in range(1, 6)]
    for shorter, longer in pairwise(prompts):
        assert longer.startswith(shorter)
        assert len(longer) > len(shorter)


def test_tools_come_first_and_tool_calls_after_the_text_as_they_came():
    raw = b'{"messages": [{"role": "assistant", "content": "ok", "tool_calls": [ {"id":"1"} ]}], "tools": [{"a": 1}]}'
    assert parse(CHAT, raw).prompt == b'[{"a": 1}]\nassistant\nok[ {"id":"1"} ]\n'


@pytest.mark.parametrize("nothing", [None, []])
def test_empty_tools_and_tool_calls_leave_no_trace(nothing):
    message = QUESTION | {"tool_calls": nothing}
    assert parse(CHAT, {"messages": [message], "tools": nothing}).prompt == b"user\nHi\n"


def test_text_parts_are_their_text_and_other_parts_their_json():
    raw = b"""{"messages": [{"role": "user", "content": [
        {"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "data:AAAA"}}, "plain"]}]}"""
    image = b'{"type": "image_url", "image_url": {"url": "data:AAAA"}}'
    assert parse(CHAT, raw).prompt == b"user\nSee " + image + b'"plain"\n'


def test_text_as_one_part_is_the_same_prompt_as_text():
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert parse(CHAT, {"messages": [parts]}) == parse(CHAT, {"messages": [QUESTION]})


@pytest.mark.parametrize(
    ("suffix", "fields", "expected"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": 5.0}, 5),
        ("completions", {"max_tokens": 5, "max_completion_tokens": 7}, 5),
        ("responses", {"max_output_tokens": 9, "max_tokens": 5}, 9),
        ("embeddings", {"max_tokens": 5}, None),
    ],
)
def test_output_limit_is_the_one_of_the_api(suffix, fields, expected):
    body = {"messages": [QUESTION], "prompt": "p", "input": "i"} | fields
    assert parse(suffix, body).max_output_tokens == expected


@pytest.mark.parametrize(("suffix", "field"), [("completions", "prompt"), ("embeddings", "input")])
@pytest.mark.parametrize(
    ("value", "prompt", "tokens"),
    [
        ("h\u00e9llo", "h\u00e9llo".encode(), 2),  # 6 bytes
        (["ab", "cd"], b"ab\ncd", 2),  # 5 bytes
        ([1, 2, 70000], struct.pack("<3I", 1, 2, 70000), 3),
        ([[1, 2], [3]], struct.pack("<3I", 1, 2, 3), 3),
    ],
)
def test_prompt_forms(suffix, field, value, prompt, tokens):
    body = parse(suffix, {"model": "m", field: value})
    assert (body.prompt, body.prompt_tokens) == (prompt, tokens)


def test_responses_input_as_text_is_one_user_message():
    messages = [QUESTION, {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}]
    first = parse("responses", {"instructions": "Be brief.", "input": "Hi"}).prompt
    second = parse("responses", {"instructions": "Be brief.", "input": messages}).prompt
    assert first == b"system\nBe brief.\nuser\nHi\n"
    assert second == first + b"assistant\nHello.\n"


def test_responses_items_that_are_no_messages_are_their_json():
    raw = b'{"tools": [{"a":1}], "input": [{"type":"function_call_output","output":"42"}, 5]}'
    assert parse("responses", raw).prompt == b'[{"a":1}]\n{"type":"function_call_output","output":"42"}\n5\n'


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_missing_model_is_left_empty(model):
    assert parse("completions", {"prompt": "p"} | model).model == ""


@pytest.mark.parametrize(
    ("suffix", "body", "sentence"),
    [
        (CHAT, {}, "chat/completions request must have at least one message"),
        (CHAT, {"messages": []}, "chat/completions request must have at least one message"),
        (CHAT, {"messages": "Hi"}, "invalid chat/completions request: Expected `array`, got `str` - at `$.messages`"),
        (CHAT, {"messages": [QUESTION], "model": 5}, "Expected `str | null`, got `int` - at `$.model`"),
        (CHAT, [], "invalid chat/completions request: Expected `object`, got `array`"),
        ("completions", {}, "completions request must have a non-empty prompt"),
        ("completions", {"prompt": ""}, "completions request must have a non-empty prompt"),
        ("completions", {"prompt": [[]]}, "completions request must have a non-empty prompt"),
        ("completions", {"prompt": ["a", 1]}, "prompt mixes types"),
        ("completions", {"prompt": [-1]}, "Expected `int` >= 0 - at `$.prompt"),
        ("completions", {"prompt": [2**32]}, "Expected `int` <= 4294967295 - at `$.prompt"),
        ("embeddings", {}, "embeddings request must have an input"),
        ("responses", {}, "responses request must have an input"),
    ],
)
def test_body_that_does_not_fit_is_refused_with_a_sentence(suffix, body, sentence):
    with pytest.raises(MalformedBodyError) as refusal:
        parse(suffix, body)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"messages": [}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"content": [{"type": "text", "text": "\xff"}]}]}',
    ],
)
def test_bad_json_is_refused_with_the_known_prefix(body):
    with pytest.raises(MalformedBodyError, match=r"^error unmarshaling request bodyMap: "):
        parse(CHAT, body)


def test_path_of_another_api_is_not_read():
    with pytest.raises(NoParserError):
        parse("messages", {})


def outcome_is_documented(suffix, raw):
    try:
        body = PARSER.parse(suffix, Headers(), raw)
    except MalformedBodyError:
        return
    assert body.prompt_tokens * 4 >= len(body.prompt) > (body.prompt_tokens - 1) * 4


suffixes = st.sampled_from(PARSER.suffixes)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls"]), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = ["model", "messages", "prompt", "input", "tools", "instructions", "max_tokens", "stream", "cache_salt"]


@given(suffixes, st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(suffix, raw):
    outcome_is_documented(suffix, raw)


@settings(deadline=None)
@given(suffixes, values | st.dictionaries(st.sampled_from(NAMES), values))
@example("completions", {"prompt": "p", "max_tokens": 10**400})
@example("completions", {"prompt": "p", "max_tokens": 1e308})
@example("completions", {"prompt": [10**30]})
def test_arbitrary_json_never_raises_anything_else(suffix, value):
    outcome_is_documented(suffix, json.dumps(value).encode())
