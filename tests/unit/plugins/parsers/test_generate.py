# SPDX-License-Identifier: Apache-2.0
"""Parsers of token ids."""

import json
import struct
from itertools import chain

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Headers, RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_parser import PassthroughParser
from epp.plugins.parsers.prompt import pack, packed_json, packed_lists
from tests.support.apis import parse

VLLM = "inference/v1/generate"
SGLANG = "/generate"
LARGEST = 2**32 - 1


def with_media(hashes, ranges, kind="image"):
    features = {"mm_hashes": {kind: hashes}, "mm_placeholders": {kind: ranges}}
    return parse(VLLM, {"token_ids": [1, 9, 9, 2], "features": features})


VLLM_BODY = {"model": "m", "token_ids": [1, LARGEST], "cache_salt": "s", "sampling_params": {"max_tokens": 7, "n": 1}}
SGLANG_BODY = {"model": 5, "input_ids": [1, LARGEST], "extra_key": "s", "sampling_params": {"max_new_tokens": 7}}


@pytest.mark.parametrize(("suffix", "body", "model"), [(VLLM, VLLM_BODY, "m"), (SGLANG, SGLANG_BODY, "")])
def test_prompt_is_its_token_ids(suffix, body, model):
    ids = struct.pack("<2I", 1, LARGEST)
    expected = RequestBody(model, ids, 2, 7, streaming=True, cache_salt="s", is_token_ids=True)
    assert parse(suffix, body | {"stream": True}) == expected


# the hash of two tokens
@pytest.mark.parametrize(
    ("mm_hash", "image"), [("h1", xxhash.xxh3_128_digest(b"h1")[:8]), (None, struct.pack("<2I", 9, 9))]
)
def test_placeholder_tokens_of_an_image_are_replaced_by_its_hash_if_it_has_one(mm_hash, image):
    body = with_media([mm_hash], [{"offset": 1, "length": 2}])
    assert body.prompt == struct.pack("<I", 1) + image + struct.pack("<I", 2)
    assert body.prompt_tokens == 4


@pytest.mark.parametrize("features", [None, {}, {"mm_hashes": None}, {"mm_hashes": {}, "mm_placeholders": {}}])
def test_no_media_no_change(features):
    body = parse(VLLM, {"token_ids": [1, 2], "features": features})
    assert body.prompt == struct.pack("<2I", 1, 2)


@pytest.mark.parametrize(
    ("hashes", "ranges", "sentence"),
    [
        (["h1"], [], "name the same items in both"),
        (["h1"], [{"offset": 3, "length": 2}], 'lie outside "token_ids"'),
        (["h1"], [{"offset": LARGEST, "length": LARGEST}], 'lie outside "token_ids"'),
        (["h1", "h2"], [{"offset": 0, "length": 3}, {"offset": 1, "length": 3}], "overlap"),
        (["h1"], [{"offset": -1, "length": 2}], '.offset" must be an integer of at least 0'),
        (["h1"], [{"offset": 1}], '.length" is missing: add it'),
    ],
)
def test_media_that_do_not_fit_the_tokens_are_refused(hashes, ranges, sentence):
    with pytest.raises(MalformedBodyError) as refusal:
        with_media(hashes, ranges)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (None, '"{}" is missing or empty: send the prompt as token ids'),
        ([], '"{}" is missing or empty: send the prompt as token ids'),
        ("1 2", '"{}" must be an array, not a string'),
        ([-1], '"{}[0]" must be an integer of at least 0'),
        ([2**32], '"{}[0]" must be an integer of at most 4294967295'),
        ([1.5], '"{}[0]" must be an integer, not a number'),
        ([True], '"{}[0]" must be an integer, not true or false'),
        ([[1]], '"{}[0]" must be an integer, not an array'),
        ([10**400], "{}"),
    ],
)
@pytest.mark.parametrize(("suffix", "field"), [(VLLM, "token_ids"), (SGLANG, "input_ids")])
def test_ids_that_are_no_ids_are_refused(suffix, field, ids, sentence):
    with pytest.raises(MalformedBodyError) as refusal:
        parse(suffix, {field: ids})
    assert sentence.format(field) in str(refusal.value)


def test_extra_key_of_sglang_is_a_string():
    with pytest.raises(MalformedBodyError, match='"extra_key" must be a string, not an array'):
        parse(SGLANG, {"input_ids": [1], "extra_key": ["a"]})


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\x00 no json"])
def test_passthrough_reads_nothing(body):
    parser = PassthroughParser()
    assert parser.parse("", Headers(), body) == RequestBody()
    assert parser.suffixes == ()
    assert not parser.names_model


IDS = st.integers(0, 2**32 - 1)
LONG = 20_000
"""Ids whose JSON is longer than 16 KiB."""


@given(st.lists(IDS, min_size=1), st.sampled_from([None, 1, "\t"]))
def test_json_is_packed_as_the_numbers_in_it_are(ids, indent):
    assert packed_json(json.dumps(ids, indent=indent).encode()) == pack(ids) == struct.pack(f"<{len(ids)}I", *ids)


@given(st.lists(st.lists(IDS, min_size=1), min_size=1, max_size=300), st.sampled_from([None, 1, "\t"]))
def test_json_of_several_lists_is_packed_as_the_numbers_in_it_are(lists, indent):
    found = packed_lists(json.dumps(lists, indent=indent).encode())
    assert found == [*map(pack, lists[:255]), pack(chain.from_iterable(lists[255:]))][: len(lists)]


@pytest.mark.parametrize(
    "other", [b"[]", b"[[]]", b"[[1],[]]", b"[[1],2]", b"[[[1]]]", b'[["],["]]', b"[[-1]]", b'["[1]"]']
)
def test_what_is_no_list_of_lists_of_token_ids_is_left_to_others(other):
    assert packed_lists(other) is None


@pytest.mark.parametrize(
    "other", [b"", b"[]", b"[ ]", b"12", b"[4294967296]", b"[99999999999999999999999]", b"[-1]", b"[1.5]", b"[[1]]"]
)
def test_what_is_no_list_of_token_ids_is_left_to_others(other):
    assert packed_json(other) is None


def parsed(prompt: str, rest: str = "") -> bytes:
    body = f'{{"model":"m","prompt":{prompt},"max_tokens":7{rest}}}'.encode()
    return parse("completions", body)


def test_long_list_of_token_ids_is_the_prompt():
    body = parsed(json.dumps([7] * LONG))
    assert body.prompt == struct.pack("<I", 7) * LONG
    assert (body.model, body.prompt_tokens, body.max_output_tokens) == ("m", LONG, 7)


def test_last_of_several_prompts_counts():
    assert parsed(json.dumps([7] * LONG), ',"prompt":"text"').prompt == b"text"


@pytest.mark.parametrize("last", [2**32, -1, 1.5])
def test_wrong_id_in_a_long_list_is_named(last):
    with pytest.raises(MalformedBodyError, match=rf"prompt\[(\.\.\.|{LONG})\]"):
        parsed(json.dumps([7] * LONG + [last]))


def test_lists_of_token_ids_beyond_the_255th_are_one_prompt():
    body = parsed(json.dumps([[1, 2]] * 300))
    assert body.prompt == struct.pack("<2I", 1, 2) * 300
    assert len(body.prompts) == 256
