# SPDX-License-Identifier: Apache-2.0
"""Filters by role, and deciders."""

import numpy as np
import pytest

from epp.framework import PrefixMatch, Request, RequestBody
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS, PromptTokens
from epp.framework.testing import candidates
from epp.plugins.rollout import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPDDecider,
    DecodeFilter,
    EncodeFilter,
    PrefillFilter,
    PrefixBasedPDDecider,
)
from tests.support.plugins import built
from tests.support.results import sent_to

ENCODE, PREFILL, DECODE = EncodeFilter(), PrefillFilter(), DecodeFilter()


@pytest.mark.parametrize(
    ("role", "stages"),
    [
        ("encode", [ENCODE]),
        ("prefill", [PREFILL]),
        ("decode", [DECODE]),
        ("encode-prefill", [ENCODE, PREFILL]),
        ("prefill-decode", [PREFILL, DECODE]),
        ("both", [PREFILL, DECODE]),
        ("encode-prefill-decode", [ENCODE, PREFILL, DECODE]),
        ("trainer", []),
        ("", []),
        (None, [DECODE]),  # no label: a server that does everything the plain way
    ],
)
def test_role_does_these_stages(role, stages):
    pool = candidates(labels=[{} if role is None else {"llm-d.ai/role": role}])
    done = [stage for stage in (ENCODE, PREFILL, DECODE) if stage.filter(Request("r"), pool).all()]
    assert done == stages


def test_each_candidate_is_judged_by_its_own_role():
    pool = candidates(labels=[{"llm-d.ai/role": "prefill"}, {}, {"llm-d.ai/role": "decode"}])
    assert PREFILL.filter(Request("r"), pool).tolist() == [True, False, False]
    assert DECODE.filter(Request("r"), pool).tolist() == [False, True, True]
    assert ENCODE.filter(Request("r"), pool).tolist() == [False, False, False]


def prefix_based(**parameters):
    return built(PrefixBasedPDDecider, parameters)


def prompt_of(tokens, *, held_blocks=None, key=PREFIX_MATCH):
    """A prompt of so many tokens, and how many blocks of 16 tokens each endpoint holds of it."""
    request = Request("r", RequestBody(prompt_tokens=tokens))
    if held_blocks is not None:
        request.put(key, PrefixMatch(np.array(held_blocks, dtype=np.int32), tokens // 16, 16))
    return request


def decode_on(slot):
    return sent_to(candidates(waiting=[0, 0, 0]), slot).primary


def test_always_is_always():
    assert AlwaysDisaggPDDecider().decide(Request("r"), None)


@pytest.mark.parametrize(("media_items", "wanted"), [(0, False), (1, True), (3, True)])
def test_encode_leg_is_wanted_for_media(media_items, wanted):
    request = Request("r", RequestBody(media_items=media_items))
    assert AlwaysDisaggMultimodalDecider().decide(request, None) is wanted


@pytest.mark.parametrize(
    ("parameters", "tokens", "held_blocks", "slot", "wanted"),
    [
        ({"nonCachedTokens": 52}, 100, [0, 3, 4], 0, True),  # 100 - 0 = 100
        ({"nonCachedTokens": 52}, 100, [0, 3, 4], 1, True),  # 100 - 3 * 16 = 52
        ({"nonCachedTokens": 52}, 100, [0, 3, 4], 2, False),  # 100 - 4 * 16 = 36
        # a short prompt stays whole whatever is cached
        ({"nonCachedTokens": 10, "promptTokens": 100}, 99, [0, 0, 0], 0, False),
        ({"nonCachedTokens": 10, "promptTokens": 100}, 100, [0, 0, 0], 0, True),
        # without matches, or a decode endpoint, the whole prompt is uncached
        ({"nonCachedTokens": 100}, 100, None, 0, True),
        ({"nonCachedTokens": 100}, 99, None, 0, False),
        ({"nonCachedTokens": 100}, 100, [6, 6, 6], None, True),
    ],
)
def test_uncached_suffix_on_the_chosen_decode_endpoint_decides(parameters, tokens, held_blocks, slot, wanted):
    decode = None if slot is None else decode_on(slot)
    assert prefix_based(**parameters).decide(prompt_of(tokens, held_blocks=held_blocks), decode) is wanted


def test_zero_is_never_and_the_author_is_told():
    decider = prefix_based()
    assert not decider.decide(prompt_of(100_000, held_blocks=[0, 0, 0]), decode_on(0))
    assert decider.warnings == ("nonCachedTokens is 0: no request gets a prefill leg",)
    assert not prefix_based(nonCachedTokens=1).warnings


def test_counted_tokens_come_before_the_estimate():
    request = prompt_of(1000)
    request.put(PROMPT_TOKENS, PromptTokens(20, exact=True))
    assert not prefix_based(nonCachedTokens=100).decide(request, decode_on(0))


def test_matches_of_a_named_producer_are_read():
    decider = prefix_based(nonCachedTokens=100, prefixMatchInfoProducerName="precise")
    key = PREFIX_MATCH.produced_by("precise")
    assert decider.reads == (key,)
    assert not decider.decide(prompt_of(100, held_blocks=[6, 0, 0], key=key), decode_on(0))  # 100 - 96 = 4
    assert prefix_based().reads == (PREFIX_MATCH,)
