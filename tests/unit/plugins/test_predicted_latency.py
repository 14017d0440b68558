# SPDX-License-Identifier: Apache-2.0
"""Filter and admission by predicted latency and targets."""

import pytest

from epp.framework.errors import RequestError
from epp.framework.testing import candidates
from epp.plugins.predicted_latency import HeadroomTierFilter, LatencyAdmitter, TargetOutOfReachError
from tests.support.plugins import built
from tests.support.predictions import UNKNOWN, predicted, prediction

MIXED = [(20, 5), (-20, 5), UNKNOWN, (20, -5), (0, 0)]
TIER = [True, False, False, False, True]


def kept(headrooms, *, seed=0, **parameters):
    request = predicted(None if headrooms is None else prediction(headrooms), seed=seed)
    count = 3 if headrooms is None else len(headrooms)
    return built(HeadroomTierFilter, parameters).filter(request, candidates(waiting=[0] * count)).tolist()


def test_endpoints_that_meet_both_targets_stay():
    assert kept(MIXED, epsilonExploreNeg=0) == TIER


def test_exploring_request_goes_to_the_others():
    assert kept(MIXED, epsilonExploreNeg=1) == [not here for here in TIER]


def test_share_of_exploring_requests_is_as_given():
    explored = sum(kept(MIXED, epsilonExploreNeg=0.25, seed=seed) != TIER for seed in range(1000))
    assert 200 < explored < 300
    assert sum(kept(MIXED, seed=seed) != TIER for seed in range(1000)) < 30


@pytest.mark.parametrize("headrooms", [None, [UNKNOWN] * 3, [(1, 1)] * 3, [(-1, 1)] * 3, [(-1, -1)]])
def test_all_stay_without_predictions_or_without_a_difference(headrooms):
    for share in (0, 1):
        assert all(kept(headrooms, epsilonExploreNeg=share))


def test_reason_is_the_predicted_time():
    request = predicted(prediction([(-20, -5), UNKNOWN], times=[(120, 35), UNKNOWN]))
    why = built(HeadroomTierFilter).why_dropped(request, candidates(waiting=[0, 0]))
    assert why == [
        "is expected to take 120 ms (p90: 240 ms) to the first token and 35.0 ms (p90: 70.0 ms) for each further one",
        "has no predicted latency",
    ]


LATE = [(-50, -10), (-30, -5)]
TARGETS = {"ttft_ms": "100", "tpot_ms": "30"}
OLD = {"x-slo-ttft-ms": "100", "x-slo-tpot-ms": "30"}


def is_admitted(headers=None, headrooms=LATE, *, priority=-1, running=(5, 3), kv_usage=(0.5, 0.4)):
    found = None if headrooms is None else prediction(headrooms)
    request = predicted(found, priority=priority, **(TARGETS if headers is None else headers))
    try:
        built(LatencyAdmitter).admit(request, candidates(running=running, kv_usage=kv_usage))
    except TargetOutOfReachError:
        return False
    return True


@pytest.mark.parametrize(
    "request_",
    [{}, {"headers": OLD}, {"headrooms": [(-50, 10), (20, -5)]}],
    ids=["late", "old names", "one target each"],
)
def test_sheddable_request_is_refused_where_all_are_late_busy_and_warm(request_):
    assert not is_admitted(**request_)


@pytest.mark.parametrize(
    "request_",
    [
        {"priority": 0},
        {"priority": 1},
        # without a target
        {"headers": {}},
        {"headers": {"ttft_ms": "soon"}},
        {"headers": OLD | {"ttft_ms": "0", "tpot_ms": "0"}},
        # an endpoint is idle, cold, or in time
        {"running": (5, 0)},
        {"kv_usage": (0.5, 0.01)},
        {"headrooms": [(-50, -10), (20, 5)]},
        # without predictions
        {"headrooms": None},
        {"headrooms": [UNKNOWN] * 2},
    ],
)
def test_any_other_request_is_admitted(request_):
    assert is_admitted(**request_)


def test_request_in_flight_makes_an_endpoint_busy_before_it_reports():
    request = predicted(prediction(LATE), priority=-1, **TARGETS)
    with pytest.raises(RequestError, match="latency target"):
        built(LatencyAdmitter).admit(request, candidates(running=[0, 3], in_flight=[2, 3], kv_usage=[0.5, 0.4]))
    built(LatencyAdmitter).admit(request, candidates(waiting=[0, 0]))  # nothing reports its load
