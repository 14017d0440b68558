# SPDX-License-Identifier: Apache-2.0
"""Scorers by load: queues, running requests, KV cache, requests and tokens in flight."""

from math import inf, nan

import msgspec
import numpy as np
import pytest

from epp.framework import ConfigurationError, PrefixMatch, PromptTokens, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Partition, Performance, Sharing
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, IN_FLIGHT_TOKENS, WAITING
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.load import (
    ActiveRequestParameters,
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareParameters,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
    TokenLoadParameters,
    TokenLoadScorer,
)

REQUEST = Request("r")


@pytest.mark.parametrize(
    ("scorer", "load", "scores"),
    [
        # half of 1 - 32/128, half of 1 - 64/128
        (LoadAwareScorer(), {"waiting": [0, 32, 64, 128, 500]}, [0.5, 0.375, 0.25, 0.0, 0.0]),
        (LoadAwareScorer(LoadAwareParameters(threshold=10)), {"waiting": [5, 10]}, [0.25, 0.0]),
        # an unknown queue is that of one with as many requests
        (LoadAwareScorer(), {"waiting": [nan, 0, 64], "in_flight": [64, 10, 64]}, [0.25, 0.5, 0.25]),
        # max 8, min 0: (8-0)/8, (8-2)/8, (8-8)/8
        (QueueScorer(), {"waiting": [0, 2, 8]}, [1.0, 0.75, 0.0]),
        (QueueScorer(), {"waiting": [3, 3]}, [1.0, 1.0]),
        # max 10, min 5: (10-10)/5, (10-5)/5, (10-6)/5
        (RunningRequestsSizeScorer(), {"running": [10, 5, 6]}, [0.0, 1.0, 0.8]),
        (KvCacheUtilizationScorer(), {"kv_usage": [0.0, 0.25, 1.0]}, [1.0, 0.75, 0.0]),
        # max 4: idle; (4-1)/4; (4-4)/4
        (ActiveRequestScorer(), {"in_flight": [0, 1, 4]}, [1.0, 0.75, 0.0]),
        (ActiveRequestScorer(), {"in_flight": [0, 0]}, [1.0, 1.0]),
        # max 4: idle; idle; (4-2)/4 * 0.5; 0
        (
            ActiveRequestScorer(ActiveRequestParameters(idle_threshold=1, max_busy_score=0.5)),
            {"in_flight": [0, 1, 2, 4]},
            [1.0, 1.0, 0.25, 0.0],
        ),
    ],
)
def test_score_is_that_of_the_formula(scorer, load, scores):
    assert scorer.score(REQUEST, candidates(**load)).tolist() == scores


@pytest.mark.parametrize(
    ("plugin", "parameter", "limit"),
    [(LoadAwareScorer, "threshold", "it must be above 0"), (ActiveRequestScorer, "maxBusyScore", "it must be")],
)
def test_parameter_that_is_no_number_is_refused(build, plugin, parameter, limit):
    with pytest.raises(ConfigurationError, match=limit):
        build(plugin, **{parameter: nan})


def test_scores_follow_the_candidates_not_the_slots():
    narrowed = candidates(waiting=[100, 0, 4]).keep(np.array([False, True, True]))
    assert QueueScorer().score(REQUEST, narrowed).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("plugin", [QueueScorer, RunningRequestsSizeScorer, KvCacheUtilizationScorer])
def test_endpoint_without_a_report_is_judged_by_requests_in_flight(plugin):
    # the second holds as many as the first, the third twice as many
    pool = candidates(in_flight=[4, 4, 8], running=[3, nan, nan], waiting=[1, nan, nan], kv_usage=[0.25, nan, nan])
    like_the_first, as_many, more = plugin().score(REQUEST, pool).tolist()
    assert like_the_first == as_many > more


@pytest.mark.parametrize("plugin", [QueueScorer, RunningRequestsSizeScorer, KvCacheUtilizationScorer])
def test_requests_in_flight_decide_where_no_endpoint_reports(plugin):
    scores = plugin().score(REQUEST, candidates(in_flight=[4, 0, 8])).tolist()
    assert scores[1] == 1.0 > scores[0] > scores[2]


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


H100, T4 = (AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (1950, 65))
"""30 to 1."""
BY_TAG = {"normalizeBy": "relativeCapacity"}
ALL = (QueueScorer, RunningRequestsSizeScorer, ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer)


def learned(*per_second):
    request = Request("r")
    request.put(ENDPOINT_RATES, endpoint_rates(per_second))
    return request


@pytest.mark.parametrize(
    ("plugin", "column"),
    [(QueueScorer, "waiting"), (RunningRequestsSizeScorer, "running"), (ActiveRequestScorer, "in_flight")],
)
def test_ome_9_eight_on_an_h100_are_less_than_two_on_a_t4(scores, plugin, column):
    tags, columns = [H100, T4], {column: [8, 2]}
    plain = scores(plugin, tags, columns=columns)
    # the median is (1950 + 65) / 2 = 1007.5: 8 / 1.9355 = 4.13 against 2 / 0.0645 = 31
    proportional = scores(plugin, tags, columns=columns, **BY_TAG)
    assert plain[0] < plain[1]
    assert proportional[0] > proportional[1]


def test_is_3_slice_has_its_share_of_the_capacity(scores):
    # a 3g slice has 3/7 of an A100: 4 requests there are 9.33 on a whole one, and the median is that of both
    whole = AcceleratorTag(count=1, performance=Performance(fp16=312))
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", compute_fraction=3 / 7, memory_fraction=0.5)
    fleet = [whole, msgspec.structs.replace(whole, partition=part)]
    more, fewer = (scores(QueueScorer, fleet, columns={"waiting": [waiting, 4]}, **BY_TAG) for waiting in (10, 9))
    assert more[0] < more[1]
    assert fewer[0] > fewer[1]


def test_ome_9_active_requests_compare_by_capacity_and_idle_by_count(scores):
    # 4.133 and 31: (31 - 4.133) / 31 and 0; with 2 as idle the T4 is
    columns = {"in_flight": [8, 2]}
    found = scores(ActiveRequestScorer, [H100, T4], columns=columns, **BY_TAG)
    assert found == pytest.approx([1 - 4 / 30, 0.0])
    assert scores(ActiveRequestScorer, [H100, T4], columns=columns, **BY_TAG, idleThreshold=2)[1] == 1.0


def test_ome_9_queue_threshold_is_that_of_a_median_device(scores):
    # capacities 2, 1 and 0.5 of the median's: 64 / 2, 64 and 64 / 0.5 of 128
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (200, 100, 50)]
    found = scores(LoadAwareScorer, tags, columns={"waiting": [64, 64, 64]}, **BY_TAG)
    assert found == pytest.approx([0.375, 0.25, 0.0])


def test_ome_9_tokens_of_the_prompt_count_in_proportion_too(scores):
    # (300 + 200) / 2 and (300 + 200) / 0.5 of 1000, where the median is at 1
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (200, 100, 50)]
    found = scores(
        TokenLoadScorer,
        tags,
        Request("r", RequestBody(prompt_tokens=200)),
        columns={"in_flight_tokens": [300, 0, 300]},
        queueThresholdTokens=1000,
        **BY_TAG,
    )
    assert found == pytest.approx([0.75, 0.8, 0.0])


def test_unknown_capacity_is_that_of_the_median(scores):
    tags = [H100, NO_TAG, AcceleratorTag(count=1, performance=Performance(fp16=inf))]
    # 2 / 1, 2 / 1 and 1 / 1 where there is one figure alone
    known = msgspec.structs.replace(H100, performance=Performance(fp16=100))
    assert scores(QueueScorer, [known, NO_TAG, NO_TAG], columns={"waiting": [2, 2, 1]}, **BY_TAG) == [0.0, 0.0, 1.0]
    assert scores(QueueScorer, tags[1:2] * 2, columns={"waiting": [2, 1]}, **BY_TAG) == [0.0, 1.0]


def test_het_4_learned_capacity_divides_where_it_is_known(build):
    pool = candidates(waiting=[8, 2, 2])
    plugin = build(QueueScorer, normalizeBy="learnedCapacity")
    # 30,000 over the median of 1,000 is 30: 8 / 30, 2, 2
    assert plugin.score(learned(30_000, 1000, 1000), pool).tolist() == [1.0, 0.0, 0.0]
    # nobody has learned anything, or nothing that can be used of the second
    assert plugin.score(Request("r"), pool).tolist() == [0.0, 1.0, 1.0]
    assert plugin.score(learned(1000, 0, 1000), pool).tolist() == [0.0, 1.0, 1.0]


def test_accelerators_are_read_only_where_asked_for(build):
    assert build(QueueScorer).reads == (WAITING,)
    assert build(QueueScorer, **BY_TAG).reads == (WAITING, ACCELERATOR)
    assert build(ActiveRequestScorer, normalizeBy="learnedCapacity").reads == (IN_FLIGHT, ENDPOINT_RATES)
    assert build(TokenLoadScorer, **BY_TAG).reads[-1] == ACCELERATOR


@pytest.mark.parametrize("plugin", ALL)
def test_default_is_load_as_it_is(scores, plugin):
    columns = {"waiting": [1, 2], "running": [1, 2], "in_flight": [1, 2], "in_flight_tokens": [1, 2]}
    assert scores(plugin, [T4, H100], columns=columns) == scores(plugin, [NO_TAG, NO_TAG], columns=columns)


def test_estimated_load_counts_in_proportion_too(scores):
    # the one without a report holds 8 requests, as the other one does, 4 of which wait; capacities are 1.5 and 0.5
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (300, 100)]
    columns = {"waiting": [nan, 4], "running": [nan, 4], "in_flight": [8, 8]}
    found = scores(LoadAwareScorer, tags, columns=columns, threshold=16, **BY_TAG)
    assert found == pytest.approx([0.5 * (1 - 4 / 1.5 / 16), 0.5 * (1 - 4 / 0.5 / 16)])


def test_other_measures_are_refused(build):
    with pytest.raises(ConfigurationError, match="size"):
        build(QueueScorer, normalizeBy="size")
