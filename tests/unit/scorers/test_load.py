# SPDX-License-Identifier: Apache-2.0
"""Scorers by load: queues, running requests, KV cache, requests and tokens in flight; means of clusters."""

from math import inf, nan

import numpy as np
import pytest
from msgspec.structs import replace

from epp.framework import ConfigurationError, PrefixMatch, PromptTokens, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Partition, Performance, Sharing
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS
from epp.framework.snapshot import ACCELERATOR, CLUSTER_KV_USAGE, CLUSTER_QUEUE, IN_FLIGHT, IN_FLIGHT_TOKENS, WAITING
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.load import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    MultiClusterKvCacheUtilizationScorer,
    MultiClusterQueueScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
    TokenLoadScorer,
)
from tests.support.plugins import built
from tests.support.scoring import scores

REQUEST = Request("r")
REPORTED = (QueueScorer, RunningRequestsSizeScorer, KvCacheUtilizationScorer)
ALL = (QueueScorer, RunningRequestsSizeScorer, ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer)


@pytest.mark.parametrize(
    ("scorer", "load", "expected"),
    [
        # half of 1 - 32/128, half of 1 - 64/128
        (LoadAwareScorer, {"waiting": [0, 32, 64, 128, 500]}, [0.5, 0.375, 0.25, 0.0, 0.0]),
        (LoadAwareScorer, {"threshold": 10, "waiting": [5, 10]}, [0.25, 0.0]),
        # an unknown queue is that of one with as many requests
        (LoadAwareScorer, {"waiting": [nan, 0, 64], "in_flight": [64, 10, 64]}, [0.25, 0.5, 0.25]),
        # max 8, min 0: (8-0)/8, (8-2)/8, (8-8)/8
        (QueueScorer, {"waiting": [0, 2, 8]}, [1.0, 0.75, 0.0]),
        (QueueScorer, {"waiting": [3, 3]}, [1.0, 1.0]),
        # max 10, min 5: (10-10)/5, (10-5)/5, (10-6)/5
        (RunningRequestsSizeScorer, {"running": [10, 5, 6]}, [0.0, 1.0, 0.8]),
        (KvCacheUtilizationScorer, {"kv_usage": [0.0, 0.25, 1.0]}, [1.0, 0.75, 0.0]),
        # max 4: idle; (4-1)/4; (4-4)/4
        (ActiveRequestScorer, {"in_flight": [0, 1, 4]}, [1.0, 0.75, 0.0]),
        (ActiveRequestScorer, {"in_flight": [0, 0]}, [1.0, 1.0]),
        # max 4: idle; idle; (4-2)/4 * 0.5; 0
        (
            ActiveRequestScorer,
            {"idleThreshold": 1, "maxBusyScore": 0.5, "in_flight": [0, 1, 2, 4]},
            [1.0, 1.0, 0.25, 0.0],
        ),
    ],
)
def test_score_is_that_of_the_formula(scorer, load, expected):
    assert scores(scorer, **load) == expected


@pytest.mark.parametrize(
    ("scorer", "column", "values", "expected"),
    [
        (MultiClusterKvCacheUtilizationScorer, CLUSTER_KV_USAGE, [0.25, 1.0, nan, 0.0], [0.75, 0.0, 0.0, 1.0]),
        (MultiClusterQueueScorer, CLUSTER_QUEUE, [2, 10, 4], [1.0, 0.0, 0.75]),  # (10 - 4) / (10 - 2)
        (MultiClusterQueueScorer, CLUSTER_QUEUE, [3, 3], [1.0, 1.0]),
        (MultiClusterQueueScorer, CLUSTER_QUEUE, [3, nan], [1.0, 0.0]),
        (MultiClusterQueueScorer, CLUSTER_QUEUE, [2, nan, 6, 4], [1.0, 0.0, 0.0, 0.5]),
        (MultiClusterQueueScorer, CLUSTER_QUEUE, [nan, nan], [0.0, 0.0]),
    ],
)
def test_cluster_scores_by_what_its_router_reports_and_a_silent_one_gets_0(scorer, column, values, expected):
    assert scores(scorer, reported={column.name: values}) == expected


def test_scores_follow_the_candidates_not_the_slots():
    narrowed = candidates(waiting=[100, 0, 4]).keep(np.array([False, True, True]))
    assert QueueScorer().score(REQUEST, narrowed).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("plugin", REPORTED)
def test_endpoint_without_a_report_is_judged_by_requests_in_flight(plugin):
    # the second holds as many as the first, the third twice as many
    load = {"running": [3, nan, nan], "waiting": [1, nan, nan], "kv_usage": [0.25, nan, nan]}
    like_the_first, as_many, more = scores(plugin, in_flight=[4, 4, 8], **load)
    assert like_the_first == as_many > more
    few, none, many = scores(plugin, in_flight=[4, 0, 8])  # none reports
    assert none == 1.0 > few > many


def request_of(prompt_tokens, matched=None, key=PREFIX_MATCH):
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens))
    if matched is not None:
        blocks = np.array(matched, dtype=np.int32)
        request.put(key, PrefixMatch(blocks, prompt_tokens // 64, block_tokens=64))
    return request


@pytest.mark.parametrize(
    ("request_", "in_flight_tokens", "expected"),
    [
        # (0+200)/1000, (300+200)/1000, (800+200)/1000, and past the threshold
        (request_of(200), [0, 300, 800, 5000], [0.8, 0.5, 0.0, 0.0]),
        # cached tokens do not count: 200, 200 - 2*64 = 72, 200 - 3*64 = 8
        (request_of(200, [0, 2, 3]), [0, 0, 0], [0.8, 0.928, 0.992]),
        # a warm endpoint with as much to do as a cold one: 192 + 8
        (request_of(200, [3, 0]), [192, 0], [0.8, 0.8]),
        # a match longer than the prompt leaves nothing to compute: 128 of 100
        (request_of(100, [2]), [0], [1.0]),
    ],
)
def test_uncached_tokens_of_the_prompt_and_those_in_flight_count(request_, in_flight_tokens, expected):
    found = scores(TokenLoadScorer, request=request_, in_flight_tokens=in_flight_tokens, queueThresholdTokens=1000)
    assert found == pytest.approx(expected)


def test_counted_tokens_take_the_place_of_the_estimate():
    request = request_of(200)
    request.put(PROMPT_TOKENS, PromptTokens(400))
    found = scores(TokenLoadScorer, request=request, in_flight_tokens=[0], queueThresholdTokens=1000)
    assert found == [pytest.approx(0.6)]


def test_default_threshold_is_128_prompts_of_32768_tokens():
    # 32768 / 4194304 = 1/128
    found = scores(TokenLoadScorer, request=request_of(32768), in_flight_tokens=[0, 4194304])
    assert found == [1 - 1 / 128, 0.0]


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    parameters = {"queueThresholdTokens": 1000, "prefixMatchInfoProducerName": "fine-blocks"}
    assert built(TokenLoadScorer, parameters).reads == (named, IN_FLIGHT_TOKENS)
    for key, expected in ((PREFIX_MATCH, 0.8), (named, 0.928)):
        found = scores(TokenLoadScorer, request=request_of(200, [2], key), in_flight_tokens=[0], **parameters)
        assert found == [pytest.approx(expected)]


def of_tflops(*tflops):
    return [AcceleratorTag(count=1, performance=Performance(fp16=each)) for each in tflops]


H100, T4 = of_tflops(1950, 65)
"""30 to 1."""
BY_TAG = {"normalizeBy": "relativeCapacity"}


@pytest.mark.parametrize(
    ("plugin", "column"),
    [(QueueScorer, "waiting"), (RunningRequestsSizeScorer, "running"), (ActiveRequestScorer, "in_flight")],
)
def test_ome_9_eight_on_an_h100_are_less_than_two_on_a_t4(plugin, column):
    on_h100, on_t4 = scores(plugin, [H100, T4], **{column: [8, 2]})
    assert on_h100 < on_t4
    # the median is (1950 + 65) / 2 = 1007.5: 8 / 1.9355 = 4.13 against 2 / 0.0645 = 31
    on_h100, on_t4 = scores(plugin, [H100, T4], **{column: [8, 2]}, **BY_TAG)
    assert on_h100 > on_t4


def test_is_3_slice_has_its_share_of_the_capacity():
    # a 3g slice has 3/7 of an A100: 4 requests there are 9.33 on a whole one, and the median is that of both
    (whole,) = of_tflops(312)
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", compute_fraction=3 / 7, memory_fraction=0.5)
    fleet = [whole, replace(whole, partition=part)]
    more, fewer = (scores(QueueScorer, fleet, waiting=[waiting, 4], **BY_TAG) for waiting in (10, 9))
    assert more[0] < more[1]
    assert fewer[0] > fewer[1]


@pytest.mark.parametrize(
    ("plugin", "tags", "load", "expected"),
    [
        # 4.133 and 31: (31 - 4.133) / 31 and 0; with 2 as idle the T4 is
        (ActiveRequestScorer, [H100, T4], {"in_flight": [8, 2]}, [1 - 4 / 30, 0.0]),
        (ActiveRequestScorer, [H100, T4], {"in_flight": [8, 2], "idleThreshold": 2}, [1 - 4 / 30, 1.0]),
        # capacities 2, 1 and 0.5 of the median's: 64 / 2, 64 and 64 / 0.5 of 128
        (LoadAwareScorer, of_tflops(200, 100, 50), {"waiting": [64, 64, 64]}, [0.375, 0.25, 0.0]),
        # (300 + 200) / 2 and (300 + 200) / 0.5 of 1000, where the median is at 1
        (
            TokenLoadScorer,
            of_tflops(200, 100, 50),
            {"request": request_of(200), "in_flight_tokens": [300, 0, 300], "queueThresholdTokens": 1000},
            [0.75, 0.8, 0.0],
        ),
        # estimated: without a report 8 requests, as the other one, 4 of which wait; capacities are 1.5 and 0.5
        (
            LoadAwareScorer,
            of_tflops(300, 100),
            {"waiting": [nan, 4], "running": [nan, 4], "in_flight": [8, 8], "threshold": 16},
            [0.5 * (1 - 4 / 1.5 / 16), 0.5 * (1 - 4 / 0.5 / 16)],
        ),
        # an unknown capacity is that of the median: 2 / 1, 2 / 1 and 1 / 1 where there is one figure alone
        (QueueScorer, [*of_tflops(100), NO_TAG, NO_TAG], {"waiting": [2, 2, 1]}, [0.0, 0.0, 1.0]),
        (QueueScorer, [NO_TAG, *of_tflops(inf)], {"waiting": [2, 1]}, [0.0, 1.0]),
    ],
)
def test_ome_9_load_counts_in_proportion_to_capacity(plugin, tags, load, expected):
    assert scores(plugin, tags, **load, **BY_TAG) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("learned", "expected"),
    [
        # 30,000 over the median of 1,000 is 30: 8 / 30, 2, 2
        ([30_000, 1000, 1000], [1.0, 0.0, 0.0]),
        # nothing is learned of any, or nothing that can be used of the second
        (None, [0.0, 1.0, 1.0]),
        ([1000, 0, 1000], [0.0, 1.0, 1.0]),
    ],
)
def test_het_4_learned_capacity_divides_where_it_is_known(learned, expected):
    request = Request("r")
    if learned:
        request.put(ENDPOINT_RATES, endpoint_rates(learned))
    assert scores(QueueScorer, request=request, waiting=[8, 2, 2], normalizeBy="learnedCapacity") == expected


@pytest.mark.parametrize(
    ("plugin", "parameters", "reads"),
    [
        (QueueScorer, {}, (WAITING,)),
        (QueueScorer, BY_TAG, (WAITING, ACCELERATOR)),
        (ActiveRequestScorer, {"normalizeBy": "learnedCapacity"}, (IN_FLIGHT, ENDPOINT_RATES)),
        (TokenLoadScorer, BY_TAG, (PREFIX_MATCH, IN_FLIGHT_TOKENS, ACCELERATOR)),
    ],
)
def test_accelerators_are_read_only_where_asked_for(plugin, parameters, reads):
    assert built(plugin, parameters).reads == reads


@pytest.mark.parametrize("plugin", ALL)
def test_default_is_load_as_it_is(plugin):
    load = {"waiting": [1, 2], "running": [1, 2], "in_flight": [1, 2], "in_flight_tokens": [1, 2]}
    assert scores(plugin, [T4, H100], **load) == scores(plugin, [NO_TAG, NO_TAG], **load)


def test_other_measures_are_refused():
    with pytest.raises(ConfigurationError, match="size"):
        built(QueueScorer, {"normalizeBy": "size"})
