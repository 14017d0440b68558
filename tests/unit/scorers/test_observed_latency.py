# SPDX-License-Identifier: Apache-2.0
"""Scores by measured times to the first token; a line is floor, low, typical, both requests in flight, and 1 or 0."""

import numpy as np
import pytest

from epp.framework import OBSERVED_LATENCY, ObservedLatency, Request
from epp.framework.testing import candidates
from epp_scorers.latency import ObservedLatencyScorer
from tests.support.plugins import built

STEEP = (0.1, 0.2, 0.6, 2, 6, 1)  # 0.1 s, 0.2 s with 2 in flight, 0.6 s with 6
FLAT = (0.1, 0.3, 0.5, 5, 6, 1)  # low and typical load are too close: a line from 0.1 s to 0.5 s with 6
COLD = (0, 0, 0, 0, 0, 0)
FEW = (0.2, 0, 0, 0, 0, 0)


def scores(lines, in_flight, *, seed=0, **parameters):
    request = Request("r", seed=seed)
    if lines is not None:
        request.put(OBSERVED_LATENCY, ObservedLatency.of(np.array(lines, dtype=np.float64)))
    plugin = built(ObservedLatencyScorer, {"explorationRate": 0, **parameters})
    return plugin.score(request, candidates(in_flight=in_flight)).round(6).tolist()


@pytest.mark.parametrize(
    ("line", "in_flight", "seconds"),
    [
        (STEEP, 0, 0.1),
        (STEEP, 1, 0.15),
        (STEEP, 2, 0.2),
        (STEEP, 4, 0.4),
        (STEEP, 9, 0.9),
        (FLAT, 3, 0.3),
        (FLAT, 12, 0.9),
        ((0.1, 0.7, 0.5, 2, 6, 1), 3, 0.3),  # low load slower than typical load
        ((0.3, 0.2, 0.6, 2, 6, 1), 3, 0.45),  # low load below the floor
        (FEW, 50, 0.2),
    ],
)
def test_time_is_that_of_the_curve_at_the_requests_in_flight_now(line, in_flight, seconds):
    # between endpoints that always take 0.1 s and 1.1 s, the score is 1.1 s minus the time
    found = scores([(0.1, 0, 0, 0, 0, 0), line, (1.1, 0, 0, 0, 0, 0)], [0, in_flight, 0])
    assert found == [1, pytest.approx(1.1 - seconds), 0]


def test_cold_endpoint_counts_as_the_fastest_and_all_are_equal_without_measured_times():
    assert scores([COLD, STEEP, (1.1, 0, 0, 0, 0, 0)], [0, 2, 0]) == [1, 1, 0]
    assert scores([COLD, COLD], [0, 5]) == [1, 1]
    assert scores(None, [0, 5]) == [1, 1]


def test_times_that_differ_by_less_than_a_step_are_equal():
    assert scores([(0.101, 0, 0, 0, 0, 0), (0.104, 0, 0, 0, 0, 0)], [0, 0], roundTTFTStep=0.01) == [1, 1]


def test_endpoints_with_few_times_are_probed_and_get_nothing_otherwise():
    lines, in_flight = [STEEP, FEW, COLD], [4, 0, 0]
    assert scores(lines, in_flight, explorationRate=1) == [0, 1, 1]
    found = [scores(lines, in_flight, explorationRate=0.2, seed=seed)[1:] for seed in range(500)]
    assert 150 < sum(map(sum, found)) < 250
    assert scores([FEW, COLD], [0, 0], explorationRate=1e-9) == [1, 1]  # no other can take the traffic
