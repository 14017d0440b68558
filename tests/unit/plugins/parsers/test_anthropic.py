# SPDX-License-Identifier: Apache-2.0
"""Parsed bodies of the Anthropic API."""

import json
from itertools import pairwise

import pytest
import xxhash

from epp.framework import RequestBody
from tests.support.apis import parse

QUESTION = {"role": "user", "content": "Hi"}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"}


def prompt(*messages, **fields):
    return parse("messages", {"messages": messages} | fields).prompt


def test_request_is_its_system_prompt_and_its_messages():
    fields = {"model": "m", "max_tokens": 9, "stream": True, "system": "Be brief."}
    body = parse("messages", fields | {"messages": [QUESTION]})
    expected = b"system\nBe brief.\nuser\nHi\n"  # 25 bytes: 7 tokens
    assert body == RequestBody("m", expected, 7, max_output_tokens=9, streaming=True)


def test_blocks_of_text_are_the_same_prompt_as_text():
    block = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    assert prompt({"role": "user", "content": [block]}, system=system) == prompt(QUESTION, system="Be brief.")


def test_tools_thinking_calls_and_results_are_part_of_the_prompt():
    raw = b"""{"tools": [{"name": "f"}], "messages": [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm. ", "signature": "EqQ"},
            {"type": "redacted_thinking", "data": "EmwK"},
            {"type": "text", "text": "Look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "43"}]}]}]}"""
    assert parse("messages", raw).prompt == (
        b'[{"name": "f"}]\n'
        b'assistant\nHm. Look.tool_use t1 f\n{"x": 1}\n\n'
        b"user\ntool_result t1\n42\ntool_result t2\n43\n\n"
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_image_is_the_hash_of_its_source_repeated_for_225_tokens(wrapped):
    source = b'{"type":"base64","media_type":"image/png","data":"AAAA"}'
    image = b'{"type":"image","cache_control":{"type":"ephemeral"},"source":' + source + b"}"
    block = b'{"type":"tool_result","tool_use_id":"t1","content":[' + image + b"]}" if wrapped else image
    before, after = (b"tool_result t1\n", b"\n") if wrapped else (b"", b"")
    stand_in = (xxhash.xxh3_128_digest(source) * 57)[:900]  # 225 tokens of four bytes
    found = parse("messages", b'{"messages":[{"role":"user","content":[' + block + b"]}]}").prompt
    assert found == b"user\n" + before + stand_in + after + b"\n"


def test_billing_block_that_changes_with_every_request_is_no_part_of_the_prompt():
    system = {"type": "text", "text": "You are an agent."}
    assert prompt(QUESTION, system=[BILLING, system]) == prompt(QUESTION, system=[system])


@pytest.mark.parametrize("block", [{"type": "document", "title": "d"}, {"type": "text", "text": 5}, 5])
def test_block_unlike_any_known_is_its_json(block):
    assert prompt({"role": "user", "content": [block]}) == b"user\n" + json.dumps(block).encode() + b"\n"


def test_cache_marker_that_moves_on_leaves_the_prefix_as_it_was():
    marker = {"cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    last = {"type": "text", "text": "Go on."}
    turns = [
        [("user", last | marker)],
        [("user", last), ("assistant", call | marker)],
        [("user", last), ("assistant", call), ("user", result | marker)],
        [("user", last), ("assistant", call), ("user", result), ("assistant", last)],
    ]
    prompts = [prompt(*({"role": role, "content": [block]} for role, block in turn)) for turn in turns]
    for shorter, longer in pairwise(prompts):
        assert longer.startswith(shorter)
        assert len(longer) > len(shorter)


def test_token_count_names_its_model_and_runs_nothing():
    body = parse("messages/count_tokens", {"model": "m", "system": "s", "messages": [QUESTION]})
    assert body == RequestBody(model="m", skip_response=True)
