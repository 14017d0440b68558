# SPDX-License-Identifier: Apache-2.0
"""Long lists of token ids are read like short ones."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Headers
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.openai import OpenAIParser
from epp.plugins.parsers.token_ids import pack, packed_json

IDS = st.integers(0, 2**32 - 1)
LONG = 20_000
"""Ids whose JSON is longer than 16 KiB."""


@given(st.lists(IDS, min_size=1), st.sampled_from([None, 1, "\t"]))
def test_json_is_packed_as_the_numbers_in_it_are(ids, indent):
    assert packed_json(json.dumps(ids, indent=indent).encode()) == pack(ids) == struct.pack(f"<{len(ids)}I", *ids)


@pytest.mark.parametrize(
    "other", [b"", b"[]", b"[ ]", b"12", b"[4294967296]", b"[99999999999999999999999]", b"[-1]", b"[1.5]", b"[[1]]"]
)
def test_what_is_no_list_of_token_ids_is_left_to_others(other):
    assert packed_json(other) is None


def parsed(prompt: str, rest: str = "") -> bytes:
    body = f'{{"model":"m","prompt":{prompt},"max_tokens":7{rest}}}'.encode()
    return OpenAIParser().parse("completions", Headers(), body)


def test_long_list_of_token_ids_is_the_prompt():
    body = parsed(json.dumps([7] * LONG))
    assert body.prompt == struct.pack("<I", 7) * LONG
    assert (body.model, body.prompt_tokens, body.max_output_tokens) == ("m", LONG, 7)


def test_last_of_several_prompts_counts():
    assert parsed(json.dumps([7] * LONG), ',"prompt":"text"').prompt == b"text"


@pytest.mark.parametrize(("last", "place"), [(2**32, 20000), (-1, 20000), (1.5, 20000)])
def test_wrong_id_in_a_long_list_is_named(last, place):
    with pytest.raises(MalformedBodyError, match=rf"prompt\[(\.\.\.|{place})\]"):
        parsed(json.dumps([7] * LONG + [last]))


def test_lists_of_token_ids_beyond_the_255th_are_one_prompt():
    body = parsed(json.dumps([[1, 2]] * 300))
    assert body.prompt == struct.pack("<2I", 1, 2) * 300
    assert len(body.prompts) == 256
