# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Sequence

import numpy as np
import pytest

from epp.framework import (
    WAITING,
    Aggregator,
    Destination,
    Filter,
    Picker,
    ProfilePicker,
    ProfileResult,
    Request,
    Scorer,
)
from epp.framework.errors import InternalError, PluginFailedError
from epp.framework.plugin import Guard, SchedulingObserver
from epp.framework.refusals import NoEndpointsError, SaturatedError
from epp.framework.result import ProfileAttempt, SchedulingResult
from epp.framework.testing import candidates
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer
from epp.routing.scheduling.scheduler import Scheduler


class Fixed(Scorer):
    """Says the numbers it was given."""

    plugin_type = "fixed"

    def __init__(self, *scores: float, name: str = "fixed") -> None:
        super().__init__(name=name)
        self.scores = np.array(scores)

    def score(self, request, candidates):
        return self.scores


class Raises(Scorer):
    plugin_type = "raises"

    def score(self, request, candidates):
        raise RuntimeError("boom")


class Best(Picker):
    plugin_type = "best"

    def pick(self, request, candidates, totals, draw):
        return np.argsort(-totals, kind="stable")


class Drawn(Picker):
    plugin_type = "drawn"

    def pick(self, request, candidates, totals, draw):
        return draw().permutation(len(candidates))


class Idle(Filter):
    """Keeps endpoints with nothing waiting."""

    plugin_type = "idle"

    def filter(self, request, candidates):
        return candidates.values(WAITING) == 0


class Sequentially(ProfilePicker, Aggregator):
    """Asks for groups of profiles in turn; the last profile that brought a result is primary."""

    plugin_type = "sequentially"

    def __init__(self, *groups: Sequence[str]) -> None:
        super().__init__()
        self.groups = list(groups)
        self.seen: list[tuple[str, ...]] = []

    def pick_profiles(self, request, profiles, results):
        self.seen.append(tuple(results))
        return self.groups.pop(0) if self.groups else ()

    def aggregate(self, request, results):
        usable = [result for result in results.values() if result is not None]
        return Destination(usable[-1]) if usable else None


class Counting(SchedulingObserver):
    def __init__(self) -> None:
        self.rejected: dict[str, int] = {}
        self.clamped: dict[str, int] = {}
        self.failed: list[str] = []
        self.called: list[tuple[str, str, float]] = []

    def scores_rejected(self, plugin, count):
        self.rejected[plugin] = self.rejected.get(plugin, 0) + count

    def scores_clamped(self, plugin, count):
        self.clamped[plugin] = self.clamped.get(plugin, 0) + count

    def plugin_failed(self, plugin, error, problem):
        self.failed.append(plugin)

    def plugin_called(self, role, plugin, seconds):
        self.called.append((role.name, plugin.name, seconds))


def profile(name: str, *scorers: WeightedScorer, filters: tuple[Filter, ...] = (), picker: Picker | None = None):
    return Profile(name, tuple(map(ProfileFilter, filters)), scorers, picker or Best())


def scheduled(
    *scorers: Scorer, waiting: Sequence[float] = (0, 0), observer: SchedulingObserver | None = None, **more
) -> ProfileResult:
    """Schedule one request by a profile of these scorers."""
    spec = profile("p", *map(WeightedScorer, scorers), **more)
    return by_profiles(Sequentially(("p",)), spec, waiting=waiting, observer=observer).primary


def by_profiles(
    handler: ProfilePicker, *specs: Profile, waiting: Sequence[float] = (0,), observer: SchedulingObserver | None = None
) -> SchedulingResult:
    """Schedule one request by the profiles that the handler chooses."""
    scheduler = Scheduler({spec.name: spec for spec in specs}, handler, handler, observer=observer)
    return scheduler.schedule(Request("r"), candidates(waiting=waiting))


def test_weighted_scores_are_summed_and_not_divided_by_the_weights():
    spec = profile("p", WeightedScorer(Fixed(1.0, 0.5), 2), WeightedScorer(Fixed(0.0, 1.0), 3))
    result = by_profiles(Sequentially(("p",)), spec, waiting=[0, 0])
    assert result.primary.totals.tolist() == [2.0, 4.0]  # 2*1 + 3*0, 2*0.5 + 3*1
    assert [e.name for e in result.targets] == ["e1", "e0"]


def test_totals_stay_when_a_scorer_writes_to_its_own_array_later():
    scorer = Fixed(0.25, 0.75)
    result = scheduled(scorer)
    scorer.scores[:] = 0.5
    assert result.totals.tolist() == [0.25, 0.75]
    assert scheduled(scorer, scorer).totals.tolist() == [1.0, 1.0]
    assert scorer.scores.tolist() == [0.5, 0.5]


def test_gie_5_defect_23_scores_are_clamped_and_nan_and_infinite_count_as_zero_and_are_counted():
    seen = Counting()
    result = scheduled(Fixed(2.0, -1.0, math.nan, math.inf, -math.inf), waiting=[0] * 5, observer=seen)
    assert result.totals.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert seen.rejected == {"fixed": 3}
    assert seen.clamped == {"fixed": 2}


def test_rounding_of_sums_is_no_score_out_of_range():
    seen = Counting()
    scheduled(Fixed(1.0 + 1e-15, -1e-15), observer=seen)
    assert seen.clamped == {}


def test_every_call_of_a_plugin_is_timed_by_role():
    seen = Counting()
    scheduled(Raises(), filters=(Idle(),), observer=seen)
    called = [(role, name) for role, name, _ in seen.called]
    assert called == [
        ("ProfilePicker", "sequentially"),
        ("Filter", "idle"),
        ("Scorer", "raises"),
        ("Picker", "best"),
        ("ProfilePicker", "sequentially"),
        ("ProcessProfilesResults", "sequentially"),
    ]
    assert all(seconds >= 0 for _, _, seconds in seen.called)


def test_time_of_a_call_is_that_between_two_looks_at_the_clock():
    seen = Counting()
    looks = iter([10.0, 10.5, 20.0, 20.25])
    guard = Guard(seen, timer=lambda: next(looks))
    guard.call(Scorer.role, Raises(), lambda: None)
    guard.call(Scorer.role, Raises(), lambda: 1 / 0)
    assert [seconds for _, _, seconds in seen.called] == [0.5, 0.25]


class Handler(ProfilePicker, Aggregator):
    """Returns or raises what it is given."""

    plugin_type = "handler"

    def __init__(self, profiles: object = ("p",), destination: object = None) -> None:
        super().__init__()
        self.profiles, self.destination = profiles, destination

    def pick_profiles(self, request, profiles, results):
        if isinstance(self.profiles, dict):
            return self.profiles["missing"]
        return () if results else self.profiles

    def aggregate(self, request, results):
        return self.destination


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (Handler({}), r"KeyError: 'missing' \(.*test_scheduler\.py:\d+\)"),
        (Handler(None), "returned None instead of a list of profiles"),
        (Handler("p"), "returned 'p' instead of a list of profiles"),
        (Handler(destination="e0"), "returned str instead of a Destination"),
    ],
)
def test_profile_picker_or_aggregator_that_fails_is_named_with_what_and_where(handler, problem):
    seen = Counting()
    with pytest.raises(PluginFailedError, match=f"plugin 'handler' failed: {problem}"):
        by_profiles(handler, profile("p"), observer=seen)
    assert seen.failed == ["handler"]


def test_scorer_that_returns_the_wrong_shape_loses_its_vote():
    seen = Counting()
    scheduled(Fixed(1.0), observer=seen)
    assert seen.failed == ["fixed"]


def test_gie_10_filters_that_leave_nobody_are_saturation_and_an_empty_pool_is_not():
    with pytest.raises(SaturatedError) as saturated:
        scheduled(filters=(Idle(),), waiting=[1, 2])
    assert (saturated.value.status, saturated.value.reason) == (429, "rejected-saturated")
    with pytest.raises(NoEndpointsError) as empty:
        scheduled(filters=(Idle(),), waiting=[])
    assert (empty.value.status, empty.value.reason) == (503, "rejected-no-endpoints")


def test_trace_tells_what_filters_dropped_and_scorers_said():
    spec = profile("p", WeightedScorer(Fixed(0.25, 0.75), 4), filters=(Idle(),))
    result = by_profiles(Sequentially(("p",)), spec, waiting=[0, 9, 0]).primary
    (dropped,) = result.filters
    assert (dropped.plugin, dropped.before, dropped.after) == ("idle", 3, 2)
    (said,) = result.scores
    assert (said.plugin, said.weight, said.scores.tolist()) == ("fixed", 4, [0.25, 0.75])
    assert (result.considered.tolist(), result.candidates.slots.tolist()) == ([0, 1, 2], [0, 2])


def test_trace_of_a_request_that_fails_is_on_its_error():
    class Nobody(Best):
        def pick(self, request, candidates, totals, draw):
            return np.empty(0, dtype=np.intp)

    scored = profile("scored", WeightedScorer(Fixed(0.25, 0.75), 4), filters=(Idle(),), picker=Nobody())
    handler = Sequentially(("easy", "scored", "empty"))
    handler.aggregate = lambda request, results: None  # type: ignore[method-assign]  whatever they found
    with pytest.raises(InternalError) as refused:
        by_profiles(handler, profile("easy"), scored, profile("empty", filters=(Idle(), Idle())), waiting=[0, 9, 0])
    scheduling = refused.value.scheduling
    assert scheduling is not None
    easy, failed, _ = (scheduling.profiles[name] for name in ("easy", "scored", "empty"))
    assert isinstance(easy, ProfileResult)
    assert isinstance(failed, ProfileAttempt)
    assert len(failed.candidates) == 3
    assert [(step.plugin, step.after) for step in failed.filters] == [("idle", 2)]
    assert [trace.scores.tolist() for trace in failed.scores] == [[0.25, 0.75]]
    assert refused.value not in scheduling.errors.values()


def test_gie_2_profile_picker_is_asked_until_it_wants_no_more_and_sees_the_results_so_far():
    handler = Sequentially(("decode",), ("prefill",))
    result = by_profiles(handler, profile("prefill"), profile("decode"))
    assert handler.seen == [(), ("decode",), ("decode", "prefill")]
    assert set(result.profiles) == {"decode", "prefill"}
    assert result.primary.profile == "prefill"


def test_gie_2_defect_23_profiles_of_one_round_run_in_configuration_order():
    result = by_profiles(Sequentially(("b", "a")), profile("a"), profile("b"))
    assert list(result.profiles) == ["a", "b"]


def test_gie_2_defect_23_runaway_profile_picker_is_stopped():
    class Insatiable(Sequentially):
        def pick_profiles(self, request, profiles, results):
            return ("p",)

    handler = Insatiable()
    with pytest.raises(InternalError, match="chose 'p' a second time"):
        by_profiles(handler, profile("p"))
    failing = Scheduler({"p": profile("p", filters=(Idle(),))}, handler, handler, max_iterations=16)
    with pytest.raises(InternalError, match="after 16 calls"):
        failing.schedule(Request("r"), candidates(waiting=[1]))


def test_gie_7_failed_profile_is_none_with_its_error_while_another_serves():
    picky = profile("picky", filters=(Idle(),))
    result = by_profiles(Sequentially(("picky", "easy")), picky, profile("easy"), waiting=[1])
    assert result.profiles["picky"] is None
    assert isinstance(result.errors["picky"], SaturatedError)
    assert result.primary.profile == "easy"


def test_profile_that_does_not_exist_is_named():
    with pytest.raises(InternalError, match="nope"):
        by_profiles(Sequentially(("nope",)), profile("p"))


def test_gie_17_same_seed_draws_the_same_numbers():
    def order(seed: int) -> list[str]:
        handler = Sequentially(("p",))
        scheduler = Scheduler({"p": profile("p", picker=Drawn())}, handler, handler)
        result = scheduler.schedule(Request("r", seed=seed), candidates(waiting=[0] * 20))
        return [endpoint.name for endpoint in result.targets]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_picker_that_picks_nobody_or_outside_fails():
    class Wild(Best):
        def __init__(self, *positions: int) -> None:
            super().__init__(name="wild")
            self.positions = np.array(positions, dtype=np.intp)

        def pick(self, request, candidates, totals, draw):
            return self.positions

    for picker in (Wild(), Wild(2), Wild(-1)):
        with pytest.raises(PluginFailedError, match="wild"):
            scheduled(picker=picker)


def test_gie_4_weight_must_be_finite():
    with pytest.raises(ValueError, match="weight nan"):
        WeightedScorer(Fixed(), math.nan)


class Heading(Sequentially):
    """Sets one header that it declares and one that it does not."""

    plugin_type = "heading"
    sets_headers = ("x-declared",)

    def aggregate(self, request, results):
        return Destination(results["default"], {"x-declared": "1", "x-other": "2"})


def test_header_that_its_aggregator_does_not_declare_is_dropped_and_counts_as_a_failure():
    observer = Counting()
    result = by_profiles(Heading(("default",)), profile("default"), observer=observer)
    assert result.destination.headers == {"x-declared": "1"}
    assert observer.failed == ["heading"]
