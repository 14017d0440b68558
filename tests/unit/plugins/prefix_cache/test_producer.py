# SPDX-License-Identifier: Apache-2.0
"""Matches of a request after earlier requests."""

from math import nan

import msgspec
import numpy as np
import pytest

from epp.framework import Request, RequestBody
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from epp.plugins.prefix_cache.index import BYTES_PER_ENTRY
from epp.plugins.prefix_cache.producer import ApproxPrefixCacheParameters, ApproxPrefixCacheProducer
from tests.support.results import sent_to

BLOCK_BYTES = 256  # 64 tokens of 4 bytes
POOL = candidates(waiting=[0, 0, 0])


def prompt_of(*letters):
    return b"".join(letter * BLOCK_BYTES for letter in letters)


def ask(producer, prompt, pool=POOL, **body):
    request = Request("r", RequestBody(model=body.pop("model", "m"), prompt=prompt, **body))
    producer.produce(request, pool)
    return request


def match_of(producer, prompt, pool=POOL, **body):
    return ask(producer, prompt, pool, **body).get(PREFIX_MATCH).matched_blocks.tolist()


def sent(producer, prompt, at, pool=POOL):
    """Send a prompt to a position; return the request."""
    request = ask(producer, prompt, pool)
    producer.pre_request(request, sent_to(pool, at))
    return request


A, AB, ABC = prompt_of(b"a"), prompt_of(b"a", b"b"), prompt_of(b"a", b"b", b"c")


def test_target_is_credited_and_its_fallbacks_are_not():
    producer = ApproxPrefixCacheProducer()
    producer.pre_request(ask(producer, AB), sent_to(POOL, 2, 0))
    match = ask(producer, ABC).get(PREFIX_MATCH)
    assert match.matched_blocks.tolist() == [0, 0, 2]
    assert match.matched_blocks.dtype == np.int32
    assert (match.total_blocks, match.block_tokens) == (3, 64)


@pytest.mark.parametrize("failing", [AB, A], ids=["adds a block", "is held already"])
def test_request_that_failed_leaves_no_credit_and_takes_nothing_away(failing):
    producer = ApproxPrefixCacheProducer()
    sent(producer, A, 2)
    producer.request_failed(sent(producer, failing, 2), sent_to(POOL, 2))
    assert match_of(producer, AB) == [0, 0, 1]


def test_credit_goes_to_the_slot_not_the_position():
    producer = ApproxPrefixCacheProducer()
    sent(producer, A, 0, POOL.keep(np.array([False, True, True])))
    assert match_of(producer, A) == [0, 1, 0]


def test_other_model_and_other_salt_match_nothing():
    producer = ApproxPrefixCacheProducer()
    sent(producer, A, 0)
    assert match_of(producer, A, model="n") == match_of(producer, A, cache_salt="s") == [0, 0, 0]


def test_prompt_shorter_than_a_block_matches_itself_and_no_longer_one():
    producer, short = ApproxPrefixCacheProducer(), b"x" * 160  # 40 tokens
    sent(producer, short, 1)
    again = ask(producer, short).get(PREFIX_MATCH)
    assert (again.matched_blocks.tolist(), again.total_blocks) == ([0, 1, 0], 1)
    assert match_of(producer, short + b"x") == [0, 0, 0]


def test_request_without_a_prompt_has_no_blocks():
    match = sent(ApproxPrefixCacheProducer(), b"", 0).get(PREFIX_MATCH)
    assert (match.matched_blocks.tolist(), match.total_blocks) == ([0, 0, 0], 0)


def ask_list(producer, *prompts):
    ends = tuple(np.cumsum([len(prompt) for prompt in prompts]).tolist())
    return ask(producer, b"".join(prompts), prompt_ends=ends)


def test_each_prompt_of_a_list_is_matched_by_itself():
    producer, short = ApproxPrefixCacheProducer(), b"s" * 40
    producer.pre_request(ask_list(producer, ABC, short), sent_to(POOL, 2))
    match = ask_list(producer, prompt_of(b"d"), short, ABC + b"tail").get(PREFIX_MATCH)
    # 1 + 1 + 4 blocks, of which slot 2 holds none, the short one and three
    assert (match.matched_blocks.tolist(), match.total_blocks) == ([0, 0, 4], 6)
    assert match.tokens_at(2) == 10 + 3 * 64
    assert match.matched_tokens(POOL).tolist() == [0, 0, 202]
    assert match_of(producer, short) == [0, 0, 1]


def test_limit_of_blocks_is_that_of_all_prompts_of_a_list():
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheParameters(max_prefix_tokens_to_match=192))
    assert ask_list(producer, prompt_of(b"a", b"b"), prompt_of(b"c", b"d"), b"e").get(PREFIX_MATCH).total_blocks == 3


@pytest.mark.parametrize(
    ("reported", "parameters", "expected"),
    [
        ([nan, 128, 256], {}, 128),
        ([16, 128], {}, 64),
        ([1e9], {}, 4096),
        ([-1], {}, 64),
        ([nan], {"block_size_tokens": 100}, 100),
        ([128], {"block_size_tokens": 100, "auto_tune": False}, 100),
        ([128], {"auto_tune": False}, 64),
        ([nan], {"block_size": 80}, 80),
        ([nan], {"block_size": 80, "block_size_tokens": 100}, 100),
    ],
)
def test_blocks_are_the_engines_own(reported, parameters, expected):
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheParameters(**parameters))
    pool = candidates(waiting=[0] * len(reported), kv_block_tokens=reported)
    assert ask(producer, b"x", pool).get(PREFIX_MATCH).block_tokens == expected


def test_blocks_are_hashed_anew_once_the_engines_have_said_their_size():
    producer = ApproxPrefixCacheProducer()
    request = ask(producer, AB)
    sized = candidates(waiting=[0, 0, 0], kv_block_tokens=[128] * 3)
    producer.produce(request, sized)  # as after a hold
    producer.pre_request(request, sent_to(sized, 1))
    assert match_of(producer, AB, sized) == [0, 1, 0]


def last_of(producer, prompt):
    match = ask(producer, prompt).get(PREFIX_MATCH)
    return match.last_slot, match.last_tokens


def test_match_names_the_endpoint_that_computed_the_conversation_last_though_it_holds_nothing_now():
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheParameters(max_bytes_per_server=3 * BYTES_PER_ENTRY))
    sent(producer, ABC, 1)
    sent(producer, prompt_of(b"d", b"e", b"f"), 1)
    again = ABC + prompt_of(b"d")
    assert match_of(producer, again) == [0, 0, 0]
    assert last_of(producer, again) == (1, 2 * 64)
    assert last_of(producer, prompt_of(b"a", b"x")) == (-1, 0)


def test_endpoint_that_failed_or_left_holds_nothing_and_computed_nothing():
    producer = ApproxPrefixCacheProducer()
    failed = sent(producer, AB, 1)
    producer.request_failed(failed, sent_to(POOL, 1))
    assert last_of(producer, AB) == (-1, 0)
    producer.pre_request(failed, sent_to(POOL, 2))
    assert (match_of(producer, AB), last_of(producer, AB)) == ([0, 0, 2], (2, 64))
    producer.slots_removed([2])
    assert (match_of(producer, AB), last_of(producer, AB)) == ([0, 0, 0], (-1, 0))


def test_named_instance_publishes_under_its_name():
    producer = ApproxPrefixCacheProducer(name="fine-blocks")
    request = ask(producer, A)
    assert request.get(PREFIX_MATCH) is None
    assert request.get(PREFIX_MATCH.produced_by("fine-blocks")).total_blocks == 1
    assert producer.writes == (PREFIX_MATCH.produced_by("fine-blocks"),)


@pytest.mark.parametrize(
    ("parameters", "columns", "expected"),
    [
        ({}, {}, 40),
        ({"lru_capacity_per_server": 10}, {}, 10),
        # 20 blocks of 32 tokens = 640 tokens = 10 blocks of 64
        ({}, {"kv_blocks": [20], "kv_block_tokens": [32]}, 10),
        # 128 tokens more, which the engine has yet to compute
        ({}, {"kv_blocks": [20], "kv_block_tokens": [32], "in_flight_tokens": [128]}, 12),
        # 1 block of 32 tokens is half of a block of 64
        ({}, {"kv_blocks": [1], "kv_block_tokens": [32]}, 0),
        ({}, {"kv_blocks": [nan], "kv_block_tokens": [32]}, 40),
        ({"auto_tune": False}, {"kv_blocks": [20], "kv_block_tokens": [32]}, 40),
        ({"max_bytes_per_server": 12 * BYTES_PER_ENTRY}, {}, 12),
        ({"max_bytes_per_server": 12 * BYTES_PER_ENTRY}, {"kv_blocks": [9999], "kv_block_tokens": [32]}, 12),
        # 640 tokens = 10 blocks
        ({"max_prefix_tokens_to_match": 640}, {}, 10),
        ({"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 7}, {}, 7),
        ({"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 0}, {}, 40),
    ],
)
def test_no_more_is_remembered_than(parameters, columns, expected):
    """Of 40 blocks sent to one endpoint."""
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheParameters(**parameters))
    pool, prompt = candidates(waiting=[0], **columns), prompt_of(*(bytes([i]) for i in range(40)))
    sent(producer, prompt, 0, pool)
    assert match_of(producer, prompt, pool) == [expected]


def test_parameters_are_named_as_in_configuration_files():
    text = b"""{"autoTune": false, "blockSizeTokens": 128, "maxPrefixTokensToMatch": 1000, "lruCapacityPerServer": 5,
               "maxBytesPerServer": 4096, "blockSize": 64, "maxPrefixBlocksToMatch": 3}"""
    parameters = msgspec.json.decode(text, type=ApproxPrefixCacheParameters)
    assert (parameters.block_tokens, parameters.max_blocks(128)) == (128, 7)  # 1000 // 128


def test_default_budget_holds_the_default_capacity():
    parameters = ApproxPrefixCacheParameters()
    assert parameters.max_bytes_per_server // BYTES_PER_ENTRY >= parameters.lru_capacity_per_server


def test_hits_at_the_endpoint_picked_and_the_size_of_the_index_are_counted():
    producer = ApproxPrefixCacheProducer()
    for prompt in (AB, ABC + prompt_of(b"d"), b""):
        sent(producer, prompt, 2)
    size, ratio, length = [each.value for each in producer.samples]
    assert size == 4
    assert (sum(ratio.counts), ratio.total) == (2, 0.5)  # nothing of the first prompt, half of the second
    assert (sum(length.counts), length.total) == (3, 2 * BLOCK_BYTES)
