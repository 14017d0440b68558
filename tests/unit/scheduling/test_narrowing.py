# SPDX-License-Identifier: Apache-2.0
"""Filters that leave no candidate: the cause by which the request is refused, and failing open."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import WAITING, Candidates, DropCause, Filter, FilterParameters, Request
from epp.framework.errors import RequestError
from epp.framework.plugin import Guard, SchedulingObserver
from epp.framework.refusals import AllBusyError, SaturatedError, StaleDataError, UnavailableError, UnmetConstraintError
from epp.framework.result import FilterTrace, lasting_cause
from epp.framework.testing import candidates
from epp.routing.scheduling.profile import Narrowing, OnStale, Profile, ProfileFilter, Staleness


class Keeps(Filter[FilterParameters]):
    """Keeps the endpoints of these slots."""

    plugin_type = "keeps"

    def __init__(self, *slots: int, drops: DropCause, fallback: bool = False) -> None:
        super().__init__(FilterParameters(fallback_on_empty=fallback), name=drops.value)
        self._slots = slots
        self.drops = drops

    def filter(self, request, candidates):
        return np.isin(candidates.slots, self._slots)

    def drop_reasons(self, request, candidates):
        return [f"not kept by {self.name}"] * int((~self.filter(request, candidates)).sum())


class Idle(Filter):
    plugin_type = "idle"
    drops = DropCause.SATURATION

    def filter(self, request, candidates):
        return ~(candidates.values(WAITING) > 0)


def gold(*slots: int) -> Keeps:
    return Keeps(*slots, drops=DropCause.CONSTRAINT)


def idle(*slots: int, fallback: bool = False) -> Keeps:
    return Keeps(*slots, drops=DropCause.SATURATION, fallback=fallback)


def healthy(*slots: int) -> Keeps:
    return Keeps(*slots, drops=DropCause.AVAILABILITY)


def narrowed(*filters: Filter | ProfileFilter, pool: Candidates | None = None, **options) -> list[int]:
    members = tuple(each if isinstance(each, ProfileFilter) else ProfileFilter(each) for each in filters)
    profile = Profile("p", members, (), None, **options)  # type: ignore[arg-type]  it is not asked to pick
    trace: list[FilterTrace] = []
    left = Narrowing(profile, Guard(SchedulingObserver())).run(
        Request("r"), pool or candidates(waiting=[0, 0, 0, 0]), trace
    )
    assert trace[-1].after == len(left)
    return left.slots.tolist()


def refusal(*filters: Filter | ProfileFilter, **options) -> RequestError:
    with pytest.raises(RequestError) as refused:
        narrowed(*filters, **options)
    return refused.value


@pytest.mark.parametrize(
    ("cause", "error", "status", "reason", "wait"),
    [
        (DropCause.CONSTRAINT, UnmetConstraintError, 429, "rejected-constraint", None),
        (DropCause.AVAILABILITY, UnavailableError, 503, "rejected-unavailable", 5),
        (DropCause.STALE, StaleDataError, 503, "rejected-stale", 1),
        (DropCause.SATURATION, AllBusyError, 429, "rejected-saturated", 1),
        (DropCause.UNSTATED, SaturatedError, 429, "rejected-saturated", None),
    ],
)
def test_gie_10_each_cause_has_its_status_reason_and_time_to_wait(cause, error, status, reason, wait):
    found = refusal(Keeps(drops=cause))
    assert type(found) is error
    assert (found.status, found.reason, found.retry_after_seconds) == (status, reason, wait)


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ([gold(0, 1), idle(2, 3)], AllBusyError),  # waiting helps
        ([gold(), idle(2), healthy(3)], UnmetConstraintError),  # it does not matter that they are busy
        ([gold(0, 1), idle(0), healthy(2, 3)], UnavailableError),  # those that meet the constraint are unhealthy
    ],
)
def test_gie_10_the_most_lasting_cause_counts_in_any_order_of_filters(filters, error):
    for order in permutations(filters):
        assert isinstance(refusal(*order), error)


def test_gie_10_the_status_of_an_unmet_constraint_is_the_profiles():
    assert refusal(gold(), constraint_status=404).status == 404


def test_gie_10_the_operator_reads_which_filters_dropped_how_many_and_why():
    error = refusal(gold(0), idle(1))
    assert error.detail == "p: constraint 4>1, saturation 1>0 (3 x not kept by constraint; 3 x not kept by saturation)"
    assert "saturation" not in error.message


def test_gie_10_one_filter_with_two_causes_is_judged_by_each_of_them():
    class Both(Filter):
        plugin_type = "both"

        def filter(self, request, candidates):
            return np.zeros(len(candidates), dtype=np.bool_)

        def kept_by_cause(self, request, candidates):
            return {
                DropCause.AVAILABILITY: np.isin(candidates.slots, [0]),
                DropCause.CONSTRAINT: np.isin(candidates.slots, [1]),
            }

    assert isinstance(refusal(Both()), UnavailableError)  # e1 meets the constraint, and is not ready
    assert narrowed(Both(), fail_open=frozenset({DropCause.AVAILABILITY})) == [1]


def test_gie_10_a_filter_with_a_fallback_is_never_the_cause():
    assert isinstance(refusal(idle(fallback=True), gold()), UnmetConstraintError)


def test_gie_10_a_filter_that_compares_candidates_and_leaves_none_is_the_cause_itself():
    class Fewer(Filter):
        """Keeps the lower half of the candidates: of one, none."""

        plugin_type = "fewer"
        drops = DropCause.SATURATION

        def filter(self, request, candidates):
            return np.arange(len(candidates)) < len(candidates) // 2

    assert isinstance(refusal(gold(1), Fewer()), AllBusyError)


def test_gie_10_fail_open_serves_from_all_where_the_filters_leave_none():
    everything = frozenset(DropCause)
    assert narrowed(gold(), idle(2), fail_open=everything) == [0, 1, 2, 3]
    assert narrowed(gold(0, 1), idle(1), fail_open=everything) == [1]  # no reason to open


def test_gie_10_fail_open_for_some_causes_keeps_the_filters_of_the_others():
    busy = frozenset({DropCause.SATURATION})
    assert narrowed(gold(0, 1), idle(3), fail_open=busy) == [0, 1]
    assert isinstance(refusal(gold(), idle(3), fail_open=busy), UnmetConstraintError)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(DropCause), st.lists(st.booleans(), min_size=3, max_size=3).map(np.array), min_size=1
        ),
        min_size=1,
        max_size=4,
    )
)
def test_gie_10_the_cause_does_not_depend_on_the_order_of_filters(kept):
    causes = {lasting_cause(order, DropCause.UNSTATED) for order in permutations(kept)}
    assert len(causes) == 1


def aged(*waiting: float, reported_at: list[float], now: float = 100.0) -> Candidates:
    pool = candidates(waiting=waiting, metrics_at=reported_at)
    return Candidates(pool.snapshot, pool.slots, now=now)


def test_gie_6_stale_endpoints_are_dropped_before_any_filter_and_all_of_them_are_503():
    pool = aged(0, 0, 0, reported_at=[99, 90, 50])
    assert narrowed(pool=pool, drop_stale_after_seconds=20) == [0, 1]
    error = refusal(Keeps(0, drops=DropCause.SATURATION), pool=pool, drop_stale_after_seconds=0.5)
    assert isinstance(error, StaleDataError)
    assert error.detail == "p: staleAfter 3>0"
    assert narrowed(pool=pool, drop_stale_after_seconds=0.5, fail_open=frozenset({DropCause.STALE})) == [0, 1, 2]


def test_gie_6_an_endpoint_that_never_reported_is_not_stale():
    assert narrowed(pool=aged(0, 0, reported_at=[float("nan"), 10]), drop_stale_after_seconds=20) == [0]


def test_gie_6_a_filter_sees_stale_load_or_none_or_drops_stale_endpoints():
    pool = aged(0, 3, 0, reported_at=[99, 50, 50])

    def kept(on_stale: OnStale) -> list[int]:
        return narrowed(ProfileFilter(Idle(), staleness=Staleness(20, on_stale)), pool=pool)

    assert kept(OnStale.IGNORE) == [0, 2]
    assert kept(OnStale.NEUTRAL) == [0, 1, 2]
    assert kept(OnStale.DROP) == [0]


def test_gie_6_a_filter_that_drops_stale_endpoints_says_so_where_none_is_left():
    pool = aged(0, 3, reported_at=[50, 99])
    dropping = ProfileFilter(Idle(), staleness=Staleness(20, OnStale.DROP))
    assert isinstance(refusal(dropping, pool=pool), AllBusyError)  # e1 would do, once it is idle
    assert isinstance(refusal(dropping, gold(0), pool=pool), StaleDataError)
