# SPDX-License-Identifier: Apache-2.0
"""Sheddable requests at a saturated pool."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.refusals import SheddableDroppedError
from epp.framework.testing import candidates
from epp.routing.director.waiting import UsualDetector, shed

FULL = candidates(waiting=[5], kv_usage=[0])
USUAL = UsualDetector()


def test_only_negative_priorities_are_shed():
    with pytest.raises(SheddableDroppedError) as refused:
        shed(Request("r", priority=-1), FULL, USUAL)
    assert (refused.value.status, refused.value.reason) == (429, "rejected-saturated")
    shed(Request("r", priority=0), FULL, USUAL)
    shed(Request("r", priority=1), FULL, USUAL)


def test_nothing_is_computed_for_others():
    shed(Request("r"), candidates=None, detector=None)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ({"waiting": [0], "kv_usage": [0]}, 0.0),
        ({"waiting": [4], "kv_usage": [0]}, 0.8),
        ({"waiting": [0], "kv_usage": [0.8]}, 1.0),
        ({"waiting": [10], "kv_usage": [0.4]}, 2.0),
        ({"waiting": [10, 0], "kv_usage": [0, 0]}, 1.0),  # the mean of 2 and 0
        ({"waiting": [9, 0], "kv_usage": [0, 0]}, 0.9),
        ({"waiting": [5, nan], "kv_usage": [0, 0.8]}, 1.0),
    ],
)
def test_saturation_is_the_mean_of_the_fuller_of_queue_and_cache(pool, expected):
    assert USUAL.saturation(candidates(**pool)) == pytest.approx(expected)


def test_pool_without_metrics_is_saturated_by_own_requests_alone():
    # 205 of the 256 requests that an engine runs at once fill 0.8 of its KV cache
    assert USUAL.saturation(candidates(in_flight=[0, 0])) == 0
    assert USUAL.saturation(candidates(in_flight=[204])) < 1
    assert USUAL.saturation(candidates(in_flight=[205])) > 1


def test_endpoint_without_metrics_does_not_saturate_an_idle_pool():
    pool = candidates(waiting=[0, nan], running=[0, nan], kv_usage=[0, nan], in_flight=[0, 3])
    assert USUAL.saturation(pool) < 0.1
    shed(Request("r", priority=-1), pool, USUAL)


@pytest.mark.parametrize("waiting", [[1e308] * 20, [inf], [inf, -inf]])
def test_absurd_reports_raise_no_other_error(waiting):
    with np.errstate(all="raise"):
        USUAL.saturation(candidates(waiting=waiting, kv_usage=[0] * len(waiting)))


numbers = st.floats(0, 1000) | st.just(nan)


@given(st.lists(st.tuples(numbers, st.floats(0, 1) | st.just(nan), st.integers(0, 500)), min_size=1, max_size=10))
def test_saturation_is_a_number_for_any_pool(rows):
    waiting, kv_usage, in_flight = map(list, zip(*rows, strict=True))
    assert 0 <= USUAL.saturation(candidates(waiting=waiting, kv_usage=kv_usage, in_flight=in_flight)) < inf
