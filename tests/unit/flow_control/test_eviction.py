# SPDX-License-Identifier: Apache-2.0
"""Requests under way end for others of higher priority: few, in order, and none before the last ones have ended."""

from epp.admission.flow_control.in_flight_eviction import CONFIRMATION_SECONDS
from tests.support.evictable_requests import GRACE, Bench, Closed


def test_request_of_lower_priority_is_told_to_end_and_the_one_that_waits_takes_its_place():
    bench = Bench(1)
    low = bench.send(-1)
    high = bench.send(5)
    assert low.eviction is not None
    assert low.eviction.reason == "evicted"
    assert high.place is None
    bench.clock.advance(0.25)
    bench.end(low)
    assert high.place == 0
    assert bench.heard.decisions == [(1, 1, 1)]
    assert bench.heard.confirmed == [0.25]


def test_lowest_priority_goes_first_and_of_equal_ones_the_last_to_leave():
    bench = Bench(4)
    first, middle, last = bench.send(-1), bench.send(-9), bench.send(-1)
    bench.pass_time(1.0)
    latest = bench.send(-1)
    for expected in (middle, latest):
        bench.send(5)
        assert bench.told_to_end() == [expected]
        bench.end(expected)
        bench.pass_time(GRACE)
    assert first.eviction is None
    assert last.eviction is None


def test_priority_that_is_equal_or_not_below_zero_is_spared():
    bench = Bench(2)
    bench.send(0)
    bench.send(-1)
    bench.send(-1)
    assert not bench.told_to_end()


def test_request_that_is_answered_is_spared_unless_the_filter_says_otherwise():
    for after_first_token in (False, True):
        bench = Bench(1, after_first_token=after_first_token)
        low = bench.send(-1)
        low.is_answered = True
        bench.send(5)
        assert (low.eviction is not None) is after_first_token


def test_only_where_the_request_that_waits_could_go():
    bench = Bench(1, 1)
    here, there = bench.send(-1), bench.send(-5)
    bench.send(5, only=[here.place])
    assert bench.told_to_end() == [here]
    assert there.eviction is None


def test_next_decision_waits_for_the_end_of_the_last_and_a_grace():
    bench = Bench(2)
    lows = [bench.send(-1), bench.send(-1)]
    bench.send(5)
    bench.send(5)
    (told,) = bench.told_to_end()
    bench.pass_time(CONFIRMATION_SECONDS / 2)
    assert bench.told_to_end() == [told]
    bench.end(told)
    (other,) = [each for each in lows if each is not told]
    bench.pass_time(GRACE / 2)
    assert other.eviction is None
    bench.pass_time(GRACE)
    assert other.eviction is not None


def test_request_that_does_not_end_is_given_up_and_never_told_again():
    bench = Bench(2)
    bench.send(-1)
    bench.send(-1)
    bench.send(5)
    assert len(bench.told_to_end()) == 1
    bench.pass_time(CONFIRMATION_SECONDS)
    assert len(bench.told_to_end()) == 2
    bench.pass_time(CONFIRMATION_SECONDS)
    assert len(bench.told_to_end()) == 2  # `Working.evict` would complain
    assert bench.heard.given_up == 2


def test_endpoint_above_its_ceiling_needs_several_and_gives_two_at_a_time():
    bench = Bench(4)
    for _ in range(4):
        bench.send(-1)
    bench.places.places[0] = 1  # 4 of 1: 3 are too many
    bench.send(5)
    assert bench.heard.decisions == [(3, 2, 2)]
    assert len(bench.told_to_end()) == 2


def test_ceiling_of_zero_never_ends_anything():
    bench = Bench(1)
    bench.send(-1)
    bench.use(usage_limits=Closed())
    bench.send(5)
    bench.pass_time(10.0)
    assert not bench.told_to_end()


def test_request_that_cannot_be_told_is_passed_over():
    bench = Bench(2)
    stays, goes = bench.send(-9), bench.send(-1)
    stays.can_be_evicted = False
    bench.send(5)
    assert bench.told_to_end() == [goes]
    assert bench.evictions.pending == 1


def test_request_counts_where_the_gateway_went_with_it():
    bench = Bench(1, 1)
    moved, other = bench.send(-1), bench.send(0)
    bench.places.taken, moved.place, other.place = [1, 1], 1, 0
    bench.send(5, only=[0])
    assert not bench.told_to_end()
    bench.send(6, only=[1])
    bench.pass_time(GRACE)
    assert bench.told_to_end() == [moved]


def test_requests_at_an_endpoint_that_left_are_spared():
    bench = Bench(1)
    bench.send(-1)
    bench.evictions.forget([0])
    bench.send(5)
    assert not bench.told_to_end()


def test_nothing_ends_once_eviction_is_off():
    bench = Bench(1)
    bench.send(-1)
    bench.use(eviction=None)
    bench.send(5)
    assert not bench.told_to_end()
