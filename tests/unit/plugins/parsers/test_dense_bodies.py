# SPDX-License-Identifier: Apache-2.0
"""Bodies of many elements: read in turns of the event loop, with the same result as at once."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.framework import Headers, RequestBody, json_scan, long_json, steps
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers import in_batches, json_parser, long_arrays
from epp.plugins.parsers.anthropic import AnthropicParser
from epp.plugins.parsers.long_arrays import BATCH_BYTES, batches, is_dense
from epp.plugins.parsers.openai import OpenAIParser
from epp.plugins.parsers.sglanghttp import SGLangHTTPParser
from epp.plugins.parsers.vllmhttp import VLLMHTTPParser

PARSERS = (OpenAIParser(), AnthropicParser(), VLLMHTTPParser(), SGLangHTTPParser())
APIS = {suffix: parser for parser in PARSERS for suffix in parser.dense_readers}

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOURCE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
ids = st.integers(0, 5) | st.sampled_from([2**32 - 1, 2.0])
numbers = ids | st.sampled_from([-1, 2**32, 10**30, 1.5])
texts = st.text('a"\\,[]{}é\n', max_size=40)
unknown = st.sampled_from([None, True, -1, 1.5, [], [1], {}, {"x": [1, {"y": ","}]}])
parts = (
    st.sampled_from([IMAGE, SOURCE, {"type": "input_audio", "data": "AAAA"}, {"type": "video_url"}])
    | st.builds(lambda text: {"type": "text", "text": text}, texts | unknown)
    | unknown
)
contents = texts | st.lists(parts, max_size=8) | st.none()
blocks = (
    parts
    | st.builds(lambda found: {"type": "tool_result", "tool_use_id": "t", "content": found}, contents)
    | st.builds(lambda found: {"type": "tool_use", "id": "t", "name": "f", "input": found}, unknown)
    | st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, texts)
    | st.sampled_from([{"type": "text", "text": "x-anthropic-billing-header: 1"}])
)
fields = {"role": st.sampled_from(["user", ""]), "content": contents, "tool_calls": unknown}
messages = st.fixed_dictionaries({}, optional=fields)
turns = st.fixed_dictionaries({}, optional={**fields, "content": st.lists(blocks, max_size=8) | contents})
items = (
    messages
    | unknown
    | st.builds(lambda found: {"type": "function_call_output", "call_id": "c", "output": found}, contents)
    | st.just({"type": "reasoning", "summary": []})
)


def lists(elements):
    """Lists of any length, as hypothesis likes, and ones that are all alike, as most are."""
    return st.lists(elements, max_size=12) | st.builds(lambda one, n: [one] * n, elements, st.integers(0, 300))


inputs = lists(texts) | lists(ids) | lists(lists(ids)) | lists(texts | numbers) | lists(lists(numbers)) | texts
COMMON = {"model": st.just("m"), "stream": st.sampled_from([True]), "tools": unknown}
BODIES = {
    "chat/completions": {"messages": lists(messages) | lists(messages | unknown), "max_tokens": ids},
    "completions": {"prompt": inputs, "prompt_embeds": lists(texts) | texts},
    "embeddings": {"input": inputs, "messages": lists(messages)},
    "responses": {"input": lists(items) | texts, "instructions": contents},
    "conversations": {"items": lists(items)},
    "messages": {"messages": lists(turns) | lists(turns | unknown), "system": st.lists(blocks, max_size=8) | contents},
    "images/generations": {"prompt": texts | unknown},
    "inference/v1/generate": {"token_ids": lists(ids) | lists(numbers)},
    "/generate": {"input_ids": lists(ids), "image_data": lists(lists(unknown) | unknown), "audio_data": unknown},
}
for rendered, suffix in (("chat/completions/render", "chat/completions"), ("completions/render", "completions")):
    BODIES[rendered] = BODIES[suffix]
BODIES["messages/count_tokens"] = BODIES["messages"]


@st.composite
def bodies(draw):
    suffix = draw(st.sampled_from(sorted(BODIES)))
    body = draw(st.fixed_dictionaries({}, optional=BODIES[suffix] | COMMON))
    separators = draw(st.sampled_from([(",", ":"), (" , ", " : "), ("\n,\t", ":")]))
    return suffix, json.dumps(body, separators=separators, ensure_ascii=draw(st.booleans())).encode()


def outcome(read):
    """Return the body read, or a refusal: of several errors, either may be named."""
    try:
        return read()
    except MalformedBodyError:
        return "refused"


def completed(reading):
    """Return what a generator returns."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def read(suffix, raw):
    found = APIS[suffix].parse(suffix, Headers(), raw)
    return found if isinstance(found, RequestBody) else completed(found)


def test_every_api_with_a_list_reads_it_in_turns():
    assert set(APIS) == set(BODIES)
    assert {suffix for parser in PARSERS for suffix in parser.suffixes} == set(APIS)


@pytest.mark.slow
@pytest.mark.timeout(400)  # how long 600 bodies take depends on which ones are drawn: 4 to 80 s
@settings(deadline=None, max_examples=600)
@given(bodies(), st.sampled_from([8, 16, 64, 256]), st.sampled_from([1, 7, 32, 1024]), st.sampled_from([0, 40, 10_000]))
@example(("completions", b'{"prompt_embeds":""}'), 8, 1, 0)
@example(("completions", b'{"prompt_embeds":[""]}'), 8, 1, 0)
def test_body_that_is_read_in_turns_has_the_same_result(case, batch_bytes, window_bytes, long_bytes):
    suffix, raw = case
    at_once = outcome(lambda: read(suffix, raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epp.plugins.parsers.json_parser.is_dense", lambda _body: True)
        patch.setattr(long_arrays, "BATCH_BYTES", batch_bytes)
        for module in (long_json, json_parser, steps):
            patch.setattr(module, "LONG_BYTES", long_bytes)
        patch.setattr(json_scan, "SLICE_BYTES", max(window_bytes, 16))
        for module in (json_scan, long_json):
            patch.setattr(module, "RUN_BYTES", max(window_bytes, 16))
        patch.setattr(in_batches, "_IDS_BYTES", batch_bytes)
        patch.setattr(in_batches, "_LONG_BYTES", 4 * batch_bytes)
        patch.setattr(long_arrays, "_WINDOW_BYTES", window_bytes)
        in_turns = outcome(lambda: read(suffix, raw))
    assert in_turns == at_once


def elements_of(batch):
    return json.loads(batch) if isinstance(batch, bytes) else [json.loads(bytes(batch))]


@given(st.lists(st.recursive(texts | unknown, st.lists, max_leaves=6), max_size=20), st.integers(1, 64))
@example(["\\", '"', '\\"', "\\\\", ",]"], 1)
def test_batches_have_all_elements_in_order_under_their_indices(elements, window_bytes):
    raw = json.dumps(elements).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_arrays, "_WINDOW_BYTES", window_bytes)
        patch.setattr(long_arrays, "BATCH_BYTES", 16)
        found = [(first, elements_of(batch), len(batch)) for first, batch in batches(raw) if batch]
    assert [element for _, batch, _ in found for element in batch] == elements
    count = 0
    for first, batch, size in found:
        assert first == count
        assert size <= 16 or len(batch) == 1
        count += len(batch)


MANY = 20_000
TEXT = {"type": "text", "text": "a"}
DENSE = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}] * MANY},
    "completions": {"prompt": ["a"] * MANY},
    "embeddings": {"input": [[1]] * MANY},
    "responses": {"input": [0] * MANY},
    "conversations": {"items": [{"type": "message", "role": "user", "content": [TEXT] * MANY}]},
    "messages": {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [TEXT] * MANY}]}]},
    "inference/v1/generate": {"token_ids": [1234567] * MANY},
    "/generate": {"input_ids": [1], "image_data": [["a"]] * MANY},
}


@pytest.mark.parametrize("suffix", sorted(DENSE))
def test_no_turn_reads_more_than_a_batch(suffix, monkeypatch):
    lengths = []

    def noted(array):
        for first, batch in batches(array):
            lengths.append(len(batch))
            yield first, batch

    monkeypatch.setattr(in_batches, "batches", noted)
    raw = json.dumps({"model": "m", **DENSE[suffix]}).encode()
    turns = 2 + sum(1 for _ in APIS[suffix].parse(suffix, Headers(), raw))  # with the first and the last
    if suffix == "inference/v1/generate":  # ids are cheap, and not cut into batches
        assert turns == 3  # of at most 64 KiB each, and 180,029 bytes in all
        return
    batched = [length for length in lengths if len(b"[]") < length <= BATCH_BYTES]
    assert sum(length > BATCH_BYTES for length in lengths) <= 2  # a single element, whose own elements are batched
    assert turns >= len(batched)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "a"}] * MANY + [{"role": 5}]}, "messages[20000].role"),
        ({"messages": [{"content": [0] * MANY}, {"content": 5}]}, "messages[1].content"),
        ({"messages": [{"content": [0] * MANY, "role": 5}]}, "messages[0].role"),
        ({"messages": 5, "x": [0] * MANY}, "messages"),
        ({"messages": [{}], "model": 5, "x": [0] * MANY}, "model"),
    ],
)
def test_wrong_value_among_many_is_named(body, param):
    with pytest.raises(MalformedBodyError) as caught:
        read("chat/completions", json.dumps(body).encode())
    assert (caught.value.param, caught.value.kind) == (param, "invalid_type")


def test_wrong_id_in_a_list_of_many_lists_is_named():
    body = {"prompt": [[1]] * MANY + [[2] * MANY + [-1]]}
    with pytest.raises(MalformedBodyError) as caught:
        read("completions", json.dumps(body).encode())
    assert caught.value.param == "prompt[20000][20000]"


def test_more_media_than_any_prompt_has_are_refused():
    ranges = [{"offset": number, "length": 1} for number in range(MANY)]
    features = {"mm_hashes": {"image": ["h"] * MANY}, "mm_placeholders": {"image": ranges}}
    with pytest.raises(MalformedBodyError, match='"features" has more than 2048 values: send fewer images'):
        read("inference/v1/generate", json.dumps({"token_ids": [1] * MANY, "features": features}).encode())


@pytest.mark.parametrize("word", ["0", '"a"', "{}", "[]", "true", "false", "null", '"\\\\"', "1 ", '"a"\n'])
def test_no_list_of_many_elements_is_taken_for_one_of_few(word):
    many = f"[{','.join([word] * 2060)}]".encode()
    assert is_dense(many)
    assert not is_dense(many[:2000])


@pytest.mark.parametrize("text", ["one, two, ", 'f("a", "b")', "), ", "x;, "])
def test_commas_of_a_text_are_not_taken_for_those_of_lists(text):
    assert not is_dense(json.dumps({"messages": [{"role": "user", "content": text * 10_000}]}).encode())
