# SPDX-License-Identifier: Apache-2.0
"""For any body, a parser returns what it documents or raises MalformedBodyError; prompts only grow."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.framework import Headers
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_parser import PassthroughParser
from tests.support import apis

APIS = apis.APIS | {"": PassthroughParser()}

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOURCE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
BLOCKS = [
    {"type": "text", "text": "Hi"},
    {"type": "thinking", "thinking": "Hm."},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}, SOURCE]},
    SOURCE,
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "See"}, IMAGE]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
    {"role": "tool", "content": "42"},
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "https://a"}]},
    {"type": "reasoning", "summary": []},
]
TURNS = [{"role": "user", "content": [block]} for block in BLOCKS] + [{"role": "assistant", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
MEDIA = {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}
CONVERSATIONS = {
    "chat/completions": ("messages", MESSAGES),
    "embeddings": ("messages", MESSAGES),
    "responses": ("input", ITEMS),
    "conversations": ("items", ITEMS),
    "messages": ("messages", TURNS),
}
VALID = {
    "chat/completions": {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 5, "max_completion_tokens": 6},
    "completions": {"prompt": ["a", "b"], "prompt_embeds": ["AAAA"], "max_tokens": 5, "cache_salt": "s"},
    "conversations": {"items": ITEMS},
    "embeddings": {"input": [[1, 2], [3]], "messages": MESSAGES},
    "images/generations": {"prompt": "a red cat"},
    "responses": {"input": ITEMS, "instructions": "Be brief.", "tools": TOOLS, "max_output_tokens": 5},
    "messages": {"messages": TURNS, "system": BLOCKS[:1], "tools": TOOLS, "max_tokens": 5},
    "inference/v1/generate": {"token_ids": [1, 9, 9, 2], "features": MEDIA, "sampling_params": {"max_tokens": 5}},
    "/generate": {
        "input_ids": [1, 2],
        "extra_key": "s",
        "sampling_params": {"max_new_tokens": 5},
        "image_data": [["a"], "b"],
    },
}
VALID = {suffix: {"model": "m", "stream": True} | body for suffix, body in VALID.items()}
VALID |= {suffix + "/render": VALID[suffix] for suffix in ("chat/completions", "completions")}
VALID |= {"messages/count_tokens": VALID["messages"]}

suffixes = st.sampled_from(sorted(APIS))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -(10**400), 2**32, 2**63, 1e308, -1])
)
NAMES = sorted({name for body in VALID.values() for name in body} | {"role", "content", "type", "text", "source"})
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


def parse(suffix, raw):
    return APIS[suffix].parse(suffix, Headers(), raw)


def outcome_is_documented(suffix, raw):
    try:
        body = parse(suffix, raw)
    except MalformedBodyError:
        return
    assert body.prompt_tokens * 4 >= len(body.prompt) > (body.prompt_tokens - len(body.prompts)) * 4
    assert body.max_output_tokens is None or 0 <= body.max_output_tokens < 2**63


def mutated(draw, value):
    """Return the value with one element replaced, removed or duplicated."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        return {key: mutated(draw, found) if key == name else found for key, found in value.items()}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        middle = draw(st.sampled_from([[], value[at : at + 1] * 2, [mutated(draw, value[at])]]))
        return value[:at] + middle + value[at + 1 :]
    return draw(values)


@st.composite
def mutated_bodies(draw):
    suffix = draw(st.sampled_from(sorted(VALID)))
    raw = json.dumps(mutated(draw, VALID[suffix])).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at + draw(st.integers(0, 4)) :]
    return suffix, raw


def test_every_api_has_an_example():
    assert set(VALID) | {""} == set(APIS)


@pytest.mark.parametrize("suffix", sorted(VALID))
def test_example_is_read(suffix):
    body = parse(suffix, json.dumps(VALID[suffix]).encode())
    assert body.model == ("m" if APIS[suffix].names_model else "")
    assert body.streaming is not body.skip_response
    assert bool(body.prompt) is not body.skip_response


@given(suffixes, st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(suffix, raw):
    outcome_is_documented(suffix, raw)


@given(suffixes, values | st.dictionaries(st.sampled_from(NAMES), values))
@example("completions", {"prompt": [10**30]})
@example("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 10**400}})
def test_arbitrary_json_never_raises_anything_else(suffix, value):
    outcome_is_documented(suffix, json.dumps(value).encode())


@given(mutated_bodies())
def test_damaged_bodies_never_raise_anything_else(case):
    outcome_is_documented(*case)


@pytest.mark.parametrize("suffix", sorted(VALID))
@pytest.mark.parametrize(
    "value",
    [
        b"1e999",
        b"-1e999",
        b"1" * 5000,
        b"NaN",
        b'"\xff"',
        b'"\\ud800"',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'[{"type":"tool_result","content":' * 1000 + b"1" + b"}]" * 1000,
    ],
)
def test_monstrous_values_of_any_field_never_raise_anything_else(suffix, value):
    for name in VALID[suffix]:
        rest = {key: found for key, found in VALID[suffix].items() if key != name}
        outcome_is_documented(suffix, json.dumps(rest)[:-1].encode() + b', "' + name.encode() + b'": ' + value + b"}")


@given(st.sampled_from(sorted(CONVERSATIONS)), st.data())
def test_longer_conversation_starts_with_the_bytes_of_the_shorter_one(suffix, data):
    field, turns = CONVERSATIONS[suffix]
    longer = data.draw(st.lists(st.sampled_from(turns), min_size=1, max_size=8))
    shorter = longer[: data.draw(st.integers(1, len(longer)))]
    rest = {name: value for name, value in VALID[suffix].items() if name not in {field, "input"}}

    def prompt(conversation):
        return parse(suffix, json.dumps(rest | {field: conversation}).encode()).prompt

    assert prompt(longer).startswith(prompt(shorter))


@given(st.integers(0, 300), st.integers(1, 20))
def test_longer_run_of_images_starts_with_the_bytes_of_the_shorter_one(count, more):
    def prompt(images):
        body = {"messages": [{"role": "user", "content": [IMAGE]}] * images}
        return parse("chat/completions", json.dumps(body).encode()).prompt

    assert prompt(count + 1 + more).startswith(prompt(count + 1))
