# SPDX-License-Identifier: Apache-2.0
"""Stickiness to endpoints with a cached prompt, and its limits."""

from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import PrefixMatch, Request, RequestBody
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import IN_FLIGHT_TOKENS
from epp.framework.testing import candidates, endpoint_rates
from epp.plugins.prefix_cache.affinity import PrefixCacheAffinityFilter
from tests.support.plugins import built
from tests.support.predictions import predicted, prediction

ALL = [True, True, True]


def build(name="mine", **parameters):
    return built(PrefixCacheAffinityFilter, parameters, name=name)


def kept(matched, tokens=(0, 0, 0), *, total=10, plugin=None, seed=0, key=PREFIX_MATCH, **parameters):
    request = Request("r", seed=seed)
    request.put(key, PrefixMatch(np.array(matched, dtype=np.int32), total, block_tokens=64))
    plugin = plugin or build(**parameters)
    return plugin.filter(request, candidates(in_flight_tokens=tokens)).tolist()


FAST = {"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 5000}
"""At 1000 tokens/s a token in flight is a millisecond."""


@pytest.mark.parametrize(
    ("matched", "tokens", "parameters", "expected"),
    [
        ([10, 8, 7], [0, 0, 0], {}, [True, True, False]),  # four fifths of the prompt make an endpoint sticky
        ([10, 8, 7], [0, 0, 0], {"affinityThreshold": 0.7}, ALL),
        ([10, 8, 7], [0, 0, 0], {"affinityThreshold": 1}, [True, False, False]),
        ([7, 0, 0], [0, 0, 0], {}, ALL),
        ([0, 0, 0], [0, 0, 0], {"total": 0}, ALL),  # a prompt without a whole block
        # the others' best is 2 s: 7 s - 2 s = 5 s is at the limit, and one that is slower is not insisted on
        ([10, 0, 0], [7_000, 2_000, 3_000], FAST, [True, False, False]),
        ([10, 0, 0], [7_001, 2_000, 3_000], FAST, ALL),
        # the best sticky one is compared: 1 s - 0 s is within 5 s; the slow one stays too, scorers see to it
        ([10, 9, 0], [60_000, 1_000, 0], FAST, [True, True, False]),
        # by default 18 s * 15928 tokens/s = 286,704 tokens
        ([10, 0, 0], [286_704, 0, 0], {}, [True, False, False]),
        ([10, 0, 0], [286_800, 0, 0], {}, ALL),
        ([10, 0, 0], [10_000_000, 0, 0], {"maxTTFTPenaltyMs": 0}, [True, False, False]),
        ([10, 10, 10], [10_000_000, 0, 0], {}, ALL),
    ],
)
def test_sticky_endpoints_are_kept_unless_they_are_slower_by_more_than_the_penalty(
    matched, tokens, parameters, expected
):
    assert kept(matched, tokens, **parameters) == expected


def test_no_match_record_keeps_all():
    assert build().filter(Request("r"), candidates(waiting=[0, 0, 0])).tolist() == ALL


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ([7000, 2000, 3000], [True, False, False]),  # 5 s later, at the limit
        ([7001, 2000, 3000], ALL),
        ([np.nan, 2000, 3000], ALL),  # an endpoint without a prediction takes for ever
        ([7000, np.nan, np.nan], [True, False, False]),
        ([np.nan, np.nan, np.nan], [True, False, False]),
        (None, [True, False, False]),
    ],
)
def test_predicted_times_are_compared_if_asked_for(milliseconds, expected):
    times = None if milliseconds is None else [(each, 0) for each in milliseconds]
    request = predicted(None if times is None else prediction([(0, 0)] * 3, times=times))
    request.put(PREFIX_MATCH, PrefixMatch(np.array([10, 0, 0], dtype=np.int32), 10, block_tokens=64))
    request.put(ENDPOINT_RATES, endpoint_rates([1, 1, 1]))  # which would say otherwise
    plugin = build(ttftSource="latencyPredictor", maxTTFTPenaltyMs=5000)
    assert plugin.filter(request, candidates(in_flight_tokens=[9e9, 0, 0])).tolist() == expected


def test_share_of_requests_that_explore_is_the_probability():
    plugin = build(explorationProbability=0.25)
    explored = [kept([10, 0, 0], plugin=plugin, seed=i) == ALL for i in range(2000)]
    assert 430 <= sum(explored) <= 570  # 2000 / 4 = 500; one standard deviation is sqrt(2000 / 4 * 3 / 4) = 19.4


def explored(plugin):
    return [kept([10, 0, 0], plugin=plugin, seed=i) == ALL for i in range(50)]


def test_same_request_explores_each_time_and_everywhere_but_not_with_every_filter():
    assert explored(build("one", explorationProbability=0.5)) == explored(build("one", explorationProbability=0.5))
    pairs = zip(*(explored(build(name, explorationProbability=0.5)) for name in ("one", "two")), strict=True)
    assert {one and two for one, two in pairs} == {True, False}
    assert all(explored(build(explorationProbability=1)))
    assert not any(explored(build(explorationProbability=0)))


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    plugin = build(prefixMatchInfoProducerName="fine-blocks")
    assert plugin.reads == (named, IN_FLIGHT_TOKENS)
    assert kept([10, 0, 0], plugin=plugin) == ALL
    assert kept([10, 0, 0], plugin=plugin, key=named) == [True, False, False]


@pytest.mark.parametrize(
    ("matched", "waiting", "rates", "parameters", "expected"),
    [
        # warm: (1500 + 0) / 1000 = 1.5 s; cold, with the whole prompt to compute: 1000 / 1000 = 1 s
        (10, 1500, [1000] * 3, {}, [True, False, False]),
        (10, 1501, [1000] * 3, {}, ALL),
        # the warm one has the rest of the prompt to compute: 1.5 s for 1300 + 200 tokens
        (8, 1300, [1000] * 3, {}, [True, False, False]),
        (8, 1301, [1000] * 3, {}, ALL),
        # a slow warm one is left sooner than a fast one: 0.15 s at 10000 tokens/s, 3 s at 500
        (10, 1500, [10_000, 1000, 1000], {}, [True, False, False]),
        (10, 1500, [500, 1000, 1000], {}, ALL),
        # the pool's own throughput does not count
        (10, 1501, [1000] * 3, {"peakPrefillThroughput": 1e9}, ALL),
    ],
)
def test_with_rates_each_endpoint_has_its_uncached_tokens_to_compute(matched, waiting, rates, parameters, expected):
    request = Request("r", RequestBody(prompt_tokens=1000))
    request.put(PREFIX_MATCH, PrefixMatch(np.array([matched, 0, 0], dtype=np.int32), 10, block_tokens=100))
    request.put(ENDPOINT_RATES, endpoint_rates(rates))
    pool = candidates(in_flight_tokens=[waiting, 0, 0])
    assert build(maxTTFTPenaltyMs=500, **parameters).filter(request, pool).tolist() == expected


@given(
    matched=st.lists(st.integers(0, 10), min_size=3, max_size=3),
    tokens=st.lists(st.integers(0, 3000).map(float), min_size=3, max_size=3),
    waiting=st.lists(st.integers(0, 3).map(float) | st.just(nan), min_size=3, max_size=3),
    running=st.lists(st.integers(0, 9).map(float) | st.just(nan), min_size=3, max_size=3),
    limit=st.sampled_from([50, 200, 1000, 5000]),
)
def test_endpoint_with_the_longest_match_decides_alone_only_where_all_together_would_decide_the_same(
    matched, tokens, waiting, running, limit
):
    pool = candidates(in_flight_tokens=tokens, waiting=waiting, running=running, in_flight=[0, 4, 12])
    rates = endpoint_rates([1000, 500, 2000], itl_base=[0.01] * 3)
    request = Request("r", RequestBody(prompt_tokens=640))
    request.put(ENDPOINT_RATES, rates)
    request.put(PREFIX_MATCH, PrefixMatch(np.array(matched, dtype=np.int32), 10, block_tokens=64))
    sticky = np.array(matched) / 10 >= 0.8
    seconds = rates.ttft_seconds(pool, np.maximum(640.0 - 64.0 * np.array(matched), 0.0))
    stays = sticky.any() and (sticky.all() or (seconds[sticky].min() - seconds[~sticky].min()) * 1000 <= limit)
    found = build(maxTTFTPenaltyMs=limit).filter(request, pool).tolist()
    assert found == (sticky.tolist() if stays else ALL)


def test_no_candidate_is_none_to_keep():
    pool = candidates(in_flight_tokens=[0, 0, 0]).keep(np.zeros(3, dtype=np.bool_))
    request = Request("r")
    request.put(PREFIX_MATCH, PrefixMatch(np.array([10, 8, 7], dtype=np.int32), 10, block_tokens=64))
    assert build().filter(request, pool).tolist() == []
