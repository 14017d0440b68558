# SPDX-License-Identifier: Apache-2.0
"""Candidates of producers: those that filters may keep that need no data of producers."""

import numpy as np
import pytest

from epp.framework import Filter, Request
from epp.framework.request import DataKey
from epp.framework.result import DropCause
from epp.framework.testing import candidates
from epp.plugins.profile_handlers import MaxScorePicker
from epp.routing.scheduling.profile import Profile, ProfileFilter
from epp.routing.scheduling.scheduler import Shortlist

MATCH: DataKey[int] = DataKey("match", "some-producer")
COUNT = 100


class Upto(Filter):
    """Keeps the first endpoints."""

    plugin_type = "upto"

    def __init__(self, most: int, reads: tuple = (), start: int = 0) -> None:
        super().__init__()
        self.range, self.reads = range(start, most), reads

    def filter(self, request, candidates):
        return np.isin(candidates.slots, list(self.range))


class Broken(Upto):
    """Fails."""

    def filter(self, request, candidates):
        raise ValueError("no")


def profile(name: str, *filters: Filter, **more) -> Profile:
    return Profile(name, tuple(ProfileFilter.of(each, None) for each in filters), (), MaxScorePicker(), **more)


def slots(*profiles: Profile, count: int = COUNT) -> list[int]:
    found = Shortlist(profiles, {MATCH}).of(Request("r"), candidates(waiting=[0.0] * count))
    return found.slots.tolist()


def test_gie_23_candidates_of_producers_are_those_that_some_profile_may_keep():
    assert slots(profile("a", Upto(3), Upto(2))) == [0, 1]
    assert slots(profile("a", Upto(2)), profile("b", Upto(7, start=5))) == [0, 1, 5, 6]


def test_gie_23_filter_that_reads_data_of_producers_does_not_run_before_them():
    assert slots(profile("a", Upto(3), Upto(1, reads=(MATCH,)), Upto(2))) == [0, 1]


def test_gie_23_later_filter_that_compares_candidates_may_keep_others_beside_a_peer():
    least = Upto(1)
    least.may_empty = False
    assert slots(profile("a", Upto(3), least, Upto(2))) == [0, 1]
    assert slots(profile("a", least, Upto(2))) == [0]  # the first one always gets all candidates


@pytest.mark.parametrize(
    "other",
    [
        profile("b"),
        profile("b", Upto(1, reads=(MATCH,))),
        profile("b", Upto(1), fail_open=frozenset(DropCause)),
        profile("b", Broken(1)),
    ],
    ids=["no filter", "data of producers", "fails open", "fails"],
)
def test_gie_23_all_are_candidates_where_a_profile_may_keep_them(other):
    assert slots(profile("a", Upto(2)), other) == list(range(COUNT))


def test_gie_23_few_candidates_are_not_filtered_twice():
    assert slots(profile("a", Upto(2)), count=63) == list(range(63))
