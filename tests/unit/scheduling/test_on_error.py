# SPDX-License-Identifier: Apache-2.0
"""What becomes of a profile when a plugin fails or leaves nobody, and how the trace tells of it."""

import re

import numpy as np
import pytest

from epp.framework import (
    WAITING,
    Aggregator,
    Destination,
    Filter,
    FilterParameters,
    Picker,
    ProfilePicker,
    Request,
    Scorer,
)
from epp.framework.errors import BadRequestError, PluginFailedError
from epp.framework.plugin import OnError, SchedulingObserver
from epp.framework.refusals import SaturatedError
from epp.framework.testing import candidates
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer
from epp.routing.scheduling.scheduler import Scheduler

DIVISION = r"ZeroDivisionError: division by zero \(.*test_on_error\.py:\d+\)"


class Keeps(Filter[FilterParameters]):
    """Keeps the endpoints with that many waiting."""

    plugin_type = "keeps"

    def __init__(self, waiting: int, *, fallback: bool = False) -> None:
        super().__init__(FilterParameters(fallback_on_empty=fallback), name=f"keeps {waiting}")
        self._waiting = waiting

    def filter(self, request, candidates):
        return candidates.values(WAITING) == self._waiting


class BrokenFilter(Filter):
    plugin_type = "broken-filter"

    def filter(self, request, candidates):
        raise ZeroDivisionError("division by zero")


class Numbers(Filter):
    """Returns numbers where truths are due."""

    plugin_type = "numbers"

    def filter(self, request, candidates):
        return candidates.values(WAITING)


class Refuses(Filter):
    plugin_type = "refuses"

    def filter(self, request, candidates):
        raise BadRequestError("not like this")


class BrokenScorer(Scorer):
    plugin_type = "broken-scorer"

    def score(self, request, candidates):
        raise KeyError("slot")


class Few(Scorer):
    """Prefers few requests waiting."""

    plugin_type = "few"

    def score(self, request, candidates):
        return 1 - candidates.values(WAITING) / 10


class Best(Picker):
    plugin_type = "best"

    def pick(self, request, candidates, totals, draw):
        return np.argsort(-totals, kind="stable")


class Only(ProfilePicker, Aggregator):
    plugin_type = "only"

    def pick_profiles(self, request, profiles, results):
        return () if results else profiles

    def aggregate(self, request, results):
        return None if results["p"] is None else Destination(results["p"])


class Counting(SchedulingObserver):
    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    def plugin_failed(self, plugin, error, problem):
        self.failed.append((plugin, str(error)))


@pytest.fixture
def run():
    """Schedule one request over endpoints with 1, 2 and 3 waiting; give the result and what was counted."""

    def run(*members):
        filters = tuple(one for one in members if isinstance(one, ProfileFilter))
        scorers = tuple(one for one in members if isinstance(one, WeightedScorer))
        seen, handler = Counting(), Only()
        scheduler = Scheduler({"p": Profile("p", filters, scorers, Best())}, handler, handler, observer=seen)
        run.failed = seen.failed
        return scheduler.schedule(Request("r"), candidates(waiting=[1, 2, 3])).primary

    return run


def dropped(result) -> list[tuple[str, int, int, str]]:
    return [(trace.plugin, trace.before, trace.after, trace.problem) for trace in result.filters]


def test_gie_5_filter_that_raises_fails_its_profile_unless_told_otherwise(run):
    with pytest.raises(PluginFailedError, match=rf"'broken-filter' failed: {DIVISION}"):
        run(ProfileFilter(BrokenFilter()))
    assert run.failed == [("broken-filter", "division by zero")]


def test_gie_5_filter_that_may_be_skipped_keeps_everybody_and_the_trace_says_why(run):
    result = run(ProfileFilter(Keeps(3, fallback=True)), ProfileFilter.of(BrokenFilter(), OnError.SKIP))
    kept, (name, before, after, problem) = dropped(result)
    assert (kept, name, before, after) == (("keeps 3", 3, 1, ""), "broken-filter", 1, 1)
    assert re.fullmatch(DIVISION, problem)
    assert run.failed == [("broken-filter", "division by zero")]


@pytest.mark.parametrize("on_error", OnError)
def test_filter_that_returns_no_truths_has_failed(run, on_error):
    if on_error is OnError.FAIL:
        with pytest.raises(PluginFailedError, match="instead of one bool for each of 3 candidates"):
            run(ProfileFilter.of(Numbers(), on_error))
    else:
        ((plugin, before, after, problem),) = dropped(run(ProfileFilter.of(Numbers(), on_error)))
        assert (plugin, before, after) == ("numbers", 3, 3)
        assert problem.startswith("returned float64")


def test_filter_that_refuses_the_request_is_heard_even_where_it_may_be_skipped(run):
    with pytest.raises(BadRequestError, match="not like this"):
        run(ProfileFilter.of(Refuses(), OnError.SKIP))
    assert run.failed == []


def test_filter_with_fallback_is_passed_over_where_it_would_leave_nobody(run):
    result = run(ProfileFilter(Keeps(9, fallback=True)), ProfileFilter(Keeps(2, fallback=True)))
    assert dropped(result) == [("keeps 9", 3, 3, "dropped all candidates"), ("keeps 2", 3, 1, "")]
    assert [endpoint.name for endpoint in result.targets] == ["e1"]


def test_fallback_returns_to_those_that_the_filter_got_not_to_all(run):
    result = run(ProfileFilter(Keeps(2)), ProfileFilter(Keeps(3, fallback=True)))
    assert dropped(result) == [("keeps 2", 3, 1, ""), ("keeps 3", 1, 1, "dropped all candidates")]


def test_filter_that_leaves_nobody_fails_its_profile_although_the_next_one_has_a_fallback(run):
    with pytest.raises(SaturatedError):
        run(ProfileFilter(Keeps(9)), ProfileFilter(Keeps(1, fallback=True)))
    assert run.failed == []


def test_gie_5_scorer_that_raises_loses_its_vote_and_the_trace_says_why(run):
    result = run(WeightedScorer(BrokenScorer(), 5), WeightedScorer(Few(), 2))
    broken, few = result.scores
    assert (broken.plugin, broken.weight, broken.scores.tolist()) == ("broken-scorer", 5, [0.0, 0.0, 0.0])
    assert re.fullmatch(r"KeyError: 'slot' \(.*test_on_error\.py:\d+\)", broken.problem)
    assert few.problem == ""
    assert result.totals.tolist() == pytest.approx([1.8, 1.6, 1.4])  # 2 * (1 - waiting / 10)
    assert run.failed == [("broken-scorer", "'slot'")]


def test_gie_5_scorer_that_must_not_fail_fails_its_profile(run):
    with pytest.raises(PluginFailedError, match="'broken-scorer' failed: KeyError: 'slot'"):
        run(WeightedScorer.of(BrokenScorer(), 1.0, OnError.FAIL), WeightedScorer(Few()))
    assert run.failed == [("broken-scorer", "'slot'")]
