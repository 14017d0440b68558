# SPDX-License-Identifier: Apache-2.0
"""Scores by predicted latency; headrooms are in milliseconds, to the first token and for each further one."""

import numpy as np
import pytest

from epp.framework import PREFIX_MATCH, PrefixMatch
from epp.framework.testing import candidates, run_profile
from epp_scorers.latency import LatencyScorer
from tests.support.plugins import built
from tests.support.predictions import UNKNOWN, predicted, prediction


def scores(headrooms, *, dispatched=(), **parameters):
    pool = candidates(waiting=[0] * len(headrooms))
    found = prediction(headrooms, dispatched=dispatched)
    return built(LatencyScorer, parameters).score(predicted(found), pool).round(9).tolist()


@pytest.mark.parametrize(
    ("headrooms", "expected"),
    [
        ([(10, 2), (50, 10)], [1.0, 0.01]),
        ([(100, 20), (30, 5)], [0.01, 1.0]),
        ([(-10, -5), (-100, -30)], [1.0, 0.01]),
        ([(10, 2), (30, 6), (50, 10)], [1.0, 0.51, 0.01]),
        # of 10..50: 0, 0.5 and 1, times 0.8; of 2..10: 0.5, 0 and 1, times 0.2
        ([(10, 6), (30, 2), (50, 10)], [0.91, 0.61, 0.01]),
    ],
)
def test_least_headroom_is_best_and_least_deficit_where_all_miss(headrooms, expected):
    assert scores(headrooms) == expected


def test_most_headroom_is_best_if_asked_for_but_not_among_those_that_miss():
    assert scores([(10, 2), (50, 10)], headroomSelectionStrategy="most") == [0.01, 1.0]
    assert scores([(-10, -5), (-100, -30)], headroomSelectionStrategy="most") == [1.0, 0.01]


def test_endpoints_that_miss_get_nothing_beside_one_that_does_not():
    assert scores([(-10, 5), (10, -5), (40, 5)]) == [0.0, 0.0, 0.51]
    assert scores([(-10, 5), UNKNOWN]) == [0.0, 0.51]  # nothing speaks against the unknown one


def test_idle_endpoint_is_preferred_where_all_miss():
    assert scores([(-50, -10), (-50, -10)], dispatched=[5, 0]) == [0.0, 0.51]


@pytest.mark.parametrize(
    ("headrooms", "best"), [([(-50, -10), (-30, 5), (10, -8)], 2), ([(-50, -10), (-30, 5)], 1), ([(-50, -10)], 0)]
)
def test_only_further_tokens_late_is_better_than_the_first_and_that_better_than_both(headrooms, best):
    found = scores(headrooms)
    assert [score > 0 for score in found] == [position == best for position in range(len(found))]


def test_headroom_that_is_equal_everywhere_leaves_its_weight_to_the_other():
    assert scores([(10, 5), (20, 5), (50, 5)]) == [1.0, 0.76, 0.01]  # 0, 1/4 and 1 of 10..50
    assert scores([(10, 5), (10, 15)], ttftWeight=1, tpotWeight=0) == [1.0, 0.01]
    assert scores([(10, 2), (50, 10), (50, 2)], ttftWeight=0, tpotWeight=0) == [1.0, 0.01, 0.01]


def composite(**parameters):
    pool = candidates(kv_usage=[0.2, 0.8], waiting=[0, 5], running=[3, 10])
    request = predicted(None)
    request.put(PREFIX_MATCH, PrefixMatch(np.array([0, 4], dtype=np.int32), 4, 64))
    return built(LatencyScorer, parameters).score(request, pool).round(9).tolist()


def test_without_predictions_load_and_cache_count():
    assert composite() == [0.6, 0.4]  # a third of 0.8 + 1 + 0, and of 0.2 + 0 + 1
    assert composite(compositePrefixWeight=0, compositeQueueWeight=0) == [0.8, 0.2]
    nothing = dict.fromkeys(("compositePrefixWeight", "compositeQueueWeight", "compositeKVWeight"), 0)
    assert composite(**nothing) == [0.8, 0.2]


def test_configuration_adds_the_producers_and_sends_to_the_fastest():
    text = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: latency-scorer}
- type: endpoint-rates-producer
  parameters: {profiles: [{prefillTokensPerSecond: 1000}]}
schedulingProfiles: [{name: default, plugins: [{pluginRef: latency-scorer}]}]
"""
    run = run_profile(text, candidates(in_flight_tokens=[5000, 100, 9000], in_flight=[1, 1, 1], running=[1, 1, 1]))
    assert run.picked[0] == "e1"
