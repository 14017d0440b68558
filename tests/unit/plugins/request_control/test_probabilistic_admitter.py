# SPDX-License-Identifier: Apache-2.0
"""Sheddable requests are turned away by how full the pool is."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.errors import SheddableDroppedError
from epp.framework.testing import candidates
from epp.plugins.request_control import (
    ProbabilisticAdmitter,
    ProbabilisticAdmitterParameters,
)
from tests.support.plugins import built


def build(**parameters):
    return built(ProbabilisticAdmitter, parameters)


def probability(pool, **parameters):
    return ProbabilisticAdmitter(ProbabilisticAdmitterParameters(**parameters)).probability(pool)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        # saturation is the mean of max(waiting / 5, kv / 0.8)
        ({"waiting": [0], "kv_usage": [0]}, 0.0),
        ({"waiting": [1], "kv_usage": [0]}, 0.096),  # 0.2 ** 5 * 300
        ({"waiting": [0], "kv_usage": [0.16]}, 0.096),  # 0.16 / 0.8 = 0.2
        ({"waiting": [1, 0], "kv_usage": [0.08, 0.16]}, 0.096),  # (max(0.2, 0.1) + max(0, 0.2)) / 2
        ({"waiting": [2, 0], "kv_usage": [0, 0]}, 0.096),  # (0.4 + 0) / 2
        ({"waiting": [5], "kv_usage": [0]}, 1.0),  # min(1 * 300, 1)
        ({"waiting": [1e300], "kv_usage": [0]}, 1.0),
        ({"waiting": [inf], "kv_usage": [0]}, 1.0),
        # unknown: by the other number, else not at all
        ({"waiting": [1], "kv_usage": [nan]}, 0.096),
        ({"waiting": [nan], "kv_usage": [0.16]}, 0.096),
        ({"waiting": [1, nan], "kv_usage": [0, nan]}, 0.096),
        ({"waiting": [nan, nan], "kv_usage": [nan, nan]}, 0.0),
    ],
)
def test_sheddable_requests_are_turned_away_the_more_the_fuller_the_pool_is(pool, expected):
    assert probability(candidates(**pool)) == pytest.approx(expected)


def test_curve_follows_its_parameters():
    pool = candidates(waiting=[2], kv_usage=[0.25])
    # max(2 / 10, 0.25 / 0.5) = 0.5; 0.5 ** 2 * 3
    found = probability(pool, queue_depth_threshold=10, kv_cache_util_threshold=0.5, power=2, k=3)
    assert found == pytest.approx(0.75)


FULL = candidates(waiting=[10], kv_usage=[1])
BUSY = candidates(waiting=[1], kv_usage=[0])


def admits(pool, seed=0, priority=-1):
    request = Request("always the same", seed=seed, priority=priority)
    try:
        build().admit(request, pool)
    except SheddableDroppedError:
        return False
    return True


def test_only_negative_priorities_are_turned_away():
    assert [admits(FULL, priority=priority) for priority in (-1, 0, 1)] == [False, True, True]


def test_idle_pool_admits_all():
    assert all(admits(candidates(waiting=[0, nan]), n) for n in range(50))


def test_share_turned_away_is_the_probability():
    turned_away = sum(not admits(BUSY, n) for n in range(5000))
    # 5,000 draws at 0.096: 480, with a standard deviation of 20.8; the seeds, and so the draws, are always these
    assert 480 - 63 < turned_away < 480 + 63


def test_the_seed_of_a_request_decides_not_its_id():
    fates = [admits(BUSY, n) for n in range(200)]
    assert fates == [admits(BUSY, n) for n in range(200)]
    assert set(fates) == {True, False}


@given(
    st.lists(st.tuples(st.floats(0, 1e9) | st.just(nan), st.floats(0, 1) | st.just(nan)), min_size=1, max_size=5),
    st.floats(1e-3, 1e6),
    st.floats(1e-3, 1e6),
)
def test_probability_is_one_for_any_parameters(endpoints, power, k):
    waiting, kv_usage = zip(*endpoints, strict=True)
    assert 0.0 <= probability(candidates(waiting=waiting, kv_usage=kv_usage), power=power, k=k) <= 1.0


def test_threshold_that_looks_like_a_percentage_is_warned_of():
    (warning,) = build(kvCacheUtilThreshold=80).warnings
    assert warning == "kvCacheUtilThreshold is 80, and a KV cache is never fuller than 1: write a share"
