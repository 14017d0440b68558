# SPDX-License-Identifier: Apache-2.0
"""Tokens that stand between a request and its first answer."""

import numpy as np
import pytest

from epp.framework import PrefixMatch, PromptTokens, Request, RequestBody
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS
from epp.framework.snapshot import IN_FLIGHT_TOKENS
from epp.framework.testing import candidates
from epp_scorers.load import TokenLoadParameters, TokenLoadScorer

SCORER = TokenLoadScorer(TokenLoadParameters(queue_threshold_tokens=1000))


def request_of(prompt_tokens, matched=None, key=PREFIX_MATCH):
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens))
    if matched is not None:
        blocks = np.array(matched, dtype=np.int32)
        request.put(key, PrefixMatch(blocks, prompt_tokens // 64, block_tokens=64))
    return request


def test_tokens_in_flight_and_the_whole_prompt_count_without_a_match():
    # (0+200)/1000, (300+200)/1000, (800+200)/1000, and past the threshold
    scores = SCORER.score(request_of(200), candidates(in_flight_tokens=[0, 300, 800, 5000]))
    assert scores.tolist() == pytest.approx([0.8, 0.5, 0.0, 0.0])


def test_tokens_that_are_cached_do_not_count():
    # uncached: 200, 200 - 2*64 = 72, 200 - 3*64 = 8
    scores = SCORER.score(request_of(200, [0, 2, 3]), candidates(in_flight_tokens=[0, 0, 0]))
    assert scores.tolist() == pytest.approx([0.8, 0.928, 0.992])


def test_warm_endpoint_loses_to_a_cold_one_once_it_has_more_to_do():
    # warm: 100 + 8 = 108 tokens; cold: 0 + 200 = 200. Then warm: 200 + 8 = 208.
    assert SCORER.score(request_of(200, [3, 0]), candidates(in_flight_tokens=[100, 0])).argmax() == 0
    assert SCORER.score(request_of(200, [3, 0]), candidates(in_flight_tokens=[200, 0])).argmax() == 1


def test_match_longer_than_the_prompt_leaves_nothing_to_compute():
    assert SCORER.score(request_of(100, [2]), candidates(in_flight_tokens=[0])).tolist() == [1.0]  # 128 of 100


def test_counted_tokens_take_the_place_of_the_estimate():
    request = request_of(200)
    request.put(PROMPT_TOKENS, PromptTokens(400))
    assert SCORER.score(request, candidates(in_flight_tokens=[0])).tolist() == [pytest.approx(0.6)]


def test_default_threshold_is_128_prompts_of_32768_tokens():
    # 32768 / 4194304 = 1/128
    scores = TokenLoadScorer().score(request_of(32768), candidates(in_flight_tokens=[0, 4194304]))
    assert scores.tolist() == [1 - 1 / 128, 0.0]


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    scorer = TokenLoadScorer(
        TokenLoadParameters(queue_threshold_tokens=1000, prefix_match_info_producer_name="fine-blocks")
    )
    pool = candidates(in_flight_tokens=[0])
    assert scorer.reads == (named, IN_FLIGHT_TOKENS)
    assert scorer.score(request_of(200, [2]), pool).tolist() == [pytest.approx(0.8)]
    assert scorer.score(request_of(200, [2], named), pool).tolist() == [pytest.approx(0.928)]
