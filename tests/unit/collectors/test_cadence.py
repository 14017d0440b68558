# SPDX-License-Identifier: Apache-2.0
"""Intervals of polls that grow while nothing happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.collectors.polling.poll_schedule import Cadence, slowest_interval


def test_interval_doubles_with_each_quiet_second_up_to_the_slowest_and_an_event_ends_that():
    cadence = Cadence(0.05, 0.15, now=100.0)
    assert [cadence.interval(now) for now in (100.0, 100.9, 101.0, 101.9, 102.0, 200.0)] == [
        0.05, 0.05, 0.1, 0.1, 0.15, 0.15,
    ]  # fmt: skip
    cadence.event(200.0)
    assert cadence.interval(200.5) == 0.05


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.lists(st.tuples(st.floats(0, 5), st.booleans())))
def test_interval_is_never_below_the_fastest_nor_above_the_slowest(fastest, slowest, steps):
    slowest = max(fastest, slowest)
    cadence, now = Cadence(fastest, slowest, 0.0), 0.0
    for seconds, happens in steps:
        now += seconds
        if happens:
            cadence.event(now)
            assert cadence.interval(now) == fastest
        assert fastest <= cadence.interval(now) <= slowest


@pytest.mark.parametrize(
    ("fastest", "trusted", "slowest"),
    [
        (0.05, float("inf"), 0.15),
        (0.05, 0.2, 0.15),  # utilization-detector by default
        (0.05, 0.1, 0.075),
        (0.05, 0.06, 0.05),  # as asked for, and no slower
        (1.0, 0.2, 1.0),
    ],
)
def test_slowest_interval_leaves_metrics_within_the_age_that_is_trusted(fastest, trusted, slowest):
    assert slowest_interval(fastest, trusted) == pytest.approx(slowest)
