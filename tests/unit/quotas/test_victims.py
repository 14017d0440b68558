# SPDX-License-Identifier: Apache-2.0
"""Which requests of a tenant would have to end for one of higher priority, and for whom their room is held."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admission.quotas import Blocked, Reservation
from epp.admission.quotas.limits import enough
from epp.admission.quotas.usage import Use
from tests.support.quotas import GIB, Desk, quota, tag


def any_of_them(_reservation):
    return True


def victims(desk, *, may_end=any_of_them, pool=None, **request):
    return desk.quotas.victims(desk.request(**request), may_end, pool)


def test_tf_11_victim_is_the_newest_of_the_lowest_priority():
    desk = Desk(requests=4)
    desk.take(priority=-1)
    newest = desk.take(priority=-1)
    desk.take(priority=0)
    desk.take(priority=2)
    assert victims(desk, priority=1) == [newest]


def test_tf_11_equal_or_higher_priority_is_never_preempted():
    desk = Desk(requests=2)
    desk.take(priority=1)
    desk.take(priority=2)
    assert victims(desk, priority=1) is None
    assert victims(desk, priority=2) is not None


def test_tf_11_one_large_victim_is_better_than_three_small_ones():
    desk = Desk(tokens=1000)
    small = [desk.take(prompt=100, output=0) for _ in range(4)]
    large = desk.take(prompt=600, output=0)
    assert victims(desk, priority=1, prompt=300) == [large]
    assert victims(desk, priority=1, prompt=100) == [large]  # the newest of those that do by themselves
    large.release()
    assert victims(desk, priority=1, prompt=700) == [small[3]]


def test_tf_11_one_victim_that_frees_two_limits_is_better_than_one_for_each():
    desk = Desk(tokens=300, accelerator_bytes=100 * GIB, endpoints=[tag(gib=20), tag(gib=60)])
    both = desk.take(slot=1, prompt=200, output=0, priority=-1)
    desk.take(slot=0, prompt=10, output=0, priority=-2)
    desk.take(slot=0, prompt=90, output=0, priority=-2)
    assert victims(desk, pool=desk.pool, prompt=150) == [both]


def test_tf_11_nobody_ends_where_the_request_fits_or_never_will():
    desk = Desk(requests=2, tokens_per_minute=100)
    assert victims(desk, priority=1) == []
    desk.take(prompt=60, output=0)
    desk.take(prompt=20, output=0)
    assert victims(desk, priority=1, prompt=50) is None  # time has to pass
    assert len(victims(desk, priority=1, prompt=20)) == 1
    assert victims(desk, tenant="b", priority=1) == []


def test_tf_11_only_what_may_be_ended_is():
    desk = Desk(requests=3)
    first = desk.take()
    first.first_token()
    second = desk.take()
    third = desk.take()
    third.first_token()
    assert victims(desk, priority=1, may_end=lambda each: not each.is_answered) == [second]
    assert victims(desk, priority=1, may_end=lambda _each: False) is None


def test_tf_11_requests_of_other_tenants_are_none_of_its_business():
    desk = Desk({"a": quota(requests=1), "b": quota(requests=1)})
    desk.take("b")
    mine = desk.take("a")
    assert victims(desk, priority=1) == [mine]


def test_tf_11_quota_of_hardware_is_relaxed_by_what_the_victims_use():
    desk = Desk(accelerator_bytes=100 * GIB, endpoints=[tag(gib=80), tag(gib=30)])
    large, small = desk.take(slot=0), desk.take(slot=1, priority=-1)
    assert isinstance(small, Blocked)
    assert victims(desk, priority=1, pool=desk.pool) == [large]


def test_tf_11_many_victims_are_enough_and_none_can_be_spared():
    desk = Desk(tokens=1000)
    begun = [desk.take(prompt=10, output=0) for _ in range(100)]
    found = victims(desk, priority=1, prompt=505)
    assert len(found) == 51
    assert set(found) <= set(begun)


class Fake:
    """A request that gives back so much."""

    def __init__(self, *amounts):
        self.charged = Use(*amounts)

    def __repr__(self):
        return str(tuple(self.charged))


GAINS = st.lists(st.tuples(st.just(1), st.integers(0, 9), st.integers(0, 3)), max_size=7)


@given(GAINS, st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(0, 9)))
def test_tf_11_victims_are_enough_none_is_superfluous_and_for_one_limit_they_are_the_fewest(gains, missing):
    found, deficit = [Fake(*each) for each in gains], Use(*missing)

    def do(some):
        sums = [sum(amounts) for amounts in zip(*(each.charged for each in some), strict=True)] or [0] * 7
        return all(given >= wanted for given, wanted in zip(sums, deficit, strict=True))

    chosen = enough(deficit, found)
    if chosen is None:
        assert not do(found)
        return
    assert do(chosen)
    assert not any(do([other for other in chosen if other is not each]) for each in chosen)
    if sum(amount > 0 for amount in deficit) == 1:
        assert not any(do(some) for size in range(len(chosen)) for some in combinations(found, size))


def preempt(desk, request):
    """End the victims of a request, and hold their room for it."""
    found = desk.quotas.victims(request, any_of_them)
    desk.quotas.nominate(request, found)
    for each in found:
        each.release()
    return found


def test_tf_12_room_of_victims_is_held_against_lower_priorities_for_a_short_time():
    desk = Desk(requests=1)
    desk.take(priority=0)
    high = desk.request(priority=5)
    preempt(desk, high)
    blocked = desk.take(priority=4)
    assert isinstance(blocked, Blocked)
    assert blocked.until == desk.clock.now() + 5  # time alone lets it go
    assert blocked.retry_after_seconds == 5
    assert isinstance(desk.quotas.assume(high, desk.pool.snapshot, 0), Reservation)


def test_tf_12_nothing_is_held_after_five_seconds_or_once_the_request_has_left():
    desk = Desk(requests=1)
    desk.take()
    preempt(desk, desk.request(priority=5))
    desk.clock.advance(5)
    lower = desk.take()
    assert isinstance(lower, Reservation)
    high = desk.request(priority=5)
    preempt(desk, high)
    desk.came_back.clear()
    desk.quotas.forget_nomination(high)
    desk.quotas.forget_nomination(high)
    assert desk.came_back == ["a"]
    assert isinstance(desk.take(), Reservation)


def test_tf_12_nothing_is_held_any_more_once_the_request_has_begun():
    desk = Desk(requests=2)
    first = desk.take()
    desk.take()
    high = desk.request(priority=5)
    preempt(desk, high)
    desk.quotas.assume(high, desk.pool.snapshot, 0)
    first.release()
    assert isinstance(desk.take(), Reservation)


def test_tf_12_higher_and_equal_priorities_and_other_tenants_may_take_it():
    for more in ({"priority": 5}, {"priority": 6}, {"tenant": "b"}):
        desk = Desk({"a": quota(requests=1), "b": quota(requests=1)})
        desk.take()
        preempt(desk, desk.request(priority=5))
        assert isinstance(desk.take(**more), Reservation)


def test_tf_12_nothing_is_held_that_the_victims_have_not_given_back_yet():
    desk = Desk(requests=2)
    victim = desk.take()
    desk.quotas.nominate(desk.request(priority=5), [victim])
    lower = desk.take(priority=0)
    assert isinstance(lower, Reservation)  # there was room beside the victim
    lower.release()
    victim.release()
    assert isinstance(desk.take(priority=0), Reservation)
    assert isinstance(desk.take(priority=0), Blocked)


def test_tf_12_holds_are_bounded():
    desk = Desk(requests=1000)
    begun = [desk.take() for _ in range(100)]
    for each in begun:
        desk.quotas.nominate(desk.request(priority=1), [each])
        each.release()
    blocked = [desk.take() for _ in range(1000)]
    assert sum(isinstance(each, Reservation) for each in blocked) == 1000 - 64


@pytest.mark.parametrize("seconds", [0, 60])
def test_tf_12_the_time_is_the_callers(seconds):
    desk = Desk(requests=1)
    victim = desk.take()
    desk.quotas.nominate(desk.request(priority=1), [victim], seconds)
    victim.release()
    assert isinstance(desk.take(), Blocked if seconds else Reservation)
