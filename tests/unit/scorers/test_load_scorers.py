# SPDX-License-Identifier: Apache-2.0
"""Scorers that look at how busy an endpoint is."""

from math import nan

import numpy as np
import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.testing import candidates
from epp_scorers.load import (
    ActiveRequestParameters,
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
)

REQUEST = Request("r")


def test_shortest_queue_gets_one_and_longest_gets_zero():
    # max 8, min 0: (8-0)/8, (8-2)/8, (8-8)/8
    scores = QueueScorer().score(REQUEST, candidates(waiting=[0, 2, 8]))
    assert scores.tolist() == [1.0, 0.75, 0.0]


def test_equal_queues_all_get_one():
    assert QueueScorer().score(REQUEST, candidates(waiting=[3, 3])).tolist() == [1.0, 1.0]


def test_smallest_batch_gets_one_and_largest_gets_zero():
    # max 10, min 5: (10-10)/5, (10-5)/5, (10-6)/5
    scores = RunningRequestsSizeScorer().score(REQUEST, candidates(running=[10, 5, 6]))
    assert scores.tolist() == [0.0, 1.0, 0.8]


def test_scores_follow_the_candidates_not_the_slots():
    narrowed = candidates(waiting=[100, 0, 4]).keep(np.array([False, True, True]))
    assert QueueScorer().score(REQUEST, narrowed).tolist() == [1.0, 0.0]


def test_free_share_of_the_kv_cache_is_the_score():
    scores = KvCacheUtilizationScorer().score(REQUEST, candidates(kv_usage=[0.0, 0.25, 1.0]))
    assert scores.tolist() == [1.0, 0.75, 0.0]


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


def test_idle_endpoint_gets_one_and_busiest_gets_zero():
    # max 4: idle; (4-1)/4; (4-4)/4
    scores = ActiveRequestScorer().score(REQUEST, candidates(in_flight=[0, 1, 4]))
    assert scores.tolist() == [1.0, 0.75, 0.0]


def test_idle_threshold_and_busy_bound_separate_idle_from_busy():
    scorer = ActiveRequestScorer(ActiveRequestParameters(idle_threshold=1, max_busy_score=0.5))
    # max 4: idle; idle; (4-2)/4 * 0.5; 0
    assert scorer.score(REQUEST, candidates(in_flight=[0, 1, 2, 4])).tolist() == [1.0, 1.0, 0.25, 0.0]


def test_all_idle_endpoints_get_one():
    assert ActiveRequestScorer().score(REQUEST, candidates(in_flight=[0, 0])).tolist() == [1.0, 1.0]


def test_score_that_is_no_number_is_refused(build):
    with pytest.raises(ConfigurationError, match="it must be"):
        build(ActiveRequestScorer, maxBusyScore=nan)
