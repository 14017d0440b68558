# SPDX-License-Identifier: Apache-2.0
"""The scheduler: chooses profiles, runs one cycle for each, and aggregates the results."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from epp.framework.arrays import ROUNDING, Floats, Positions, ResultError, all_true, are_scores, as_positions, as_scores
from epp.framework.candidates import Candidates
from epp.framework.errors import InternalError, RequestError
from epp.framework.plugin import Datum, Failure, Guard, SchedulingObserver
from epp.framework.refusals import (
    AllBusyError,
    NoEndpointsError,
    StaleDataError,
    UnavailableError,
    UnmetConstraintError,
)
from epp.framework.request import DataKey, Request
from epp.framework.result import (
    Destination,
    FailedScheduling,
    FilterTrace,
    ProfileAttempt,
    ProfileResult,
    SchedulingResult,
    ScoreTrace,
)
from epp.framework.roles import Aggregator, Draw, Picker, ProfilePicker
from epp.routing.scheduling.profile import Narrowing, Profile, ProfileFilter, WeightedScorer, seen


class Cycle:
    """Runs one profile, each time for another request."""

    def __init__(self, profile: Profile, guard: Guard, observer: SchedulingObserver) -> None:
        self._profile = profile
        self._guard = guard
        self._observer = observer
        self._narrowing = Narrowing(profile, guard)
        self._narrows = bool(profile.filters) or profile.drop_stale_after_seconds is not None
        self._scorers = [
            (weighted, None if weighted.weight == 1.0 else np.array(weighted.weight)) for weighted in profile.scorers
        ]
        """Scorers with their weights; zero-dimensional arrays cost half as much as floats. None for a weight of 1."""

    def run(self, request: Request, candidates: Candidates) -> ProfileResult:
        """Return the result of the profile.

        Raises the RequestError of the cause if its filters drop all candidates, and PluginFailedError if a plugin fails
        that may not be skipped; `attempt` of the error has the completed steps. A failed scorer that is skipped adds
        nothing to the totals.
        """
        steps: list[FilterTrace] = []
        traces: list[ScoreTrace] = []
        try:
            return self._run(request, candidates, steps, traces)
        except RequestError as error:
            error.attempt = ProfileAttempt(candidates, tuple(steps), tuple(traces))
            raise

    def _run(
        self, request: Request, candidates: Candidates, steps: list[FilterTrace], traces: list[ScoreTrace]
    ) -> ProfileResult:
        profile = self._profile
        left = self._narrowing.run(request, candidates, steps) if self._narrows else candidates
        count = len(left)
        totals: Floats | None = None
        staleness, shown = None, left
        for weighted, weight in self._scorers:
            scorer, problem = weighted.scorer, ""
            if weighted.staleness != staleness:
                staleness, shown = weighted.staleness, seen(left, weighted.staleness)
            scores = self._guard.call(weighted.role, scorer, scorer.score, request, shown)
            if not are_scores(scores, count):
                scores, problem = self._repaired(weighted, scores, count)
            trace = scores.view()
            trace.setflags(write=False)
            traces.append(ScoreTrace(scorer.name, weighted.weight, trace, problem))
            if totals is None:
                totals = scores.copy() if weight is None else weight * scores
            else:
                totals += scores if weight is None else weight * scores
        totals = np.zeros(count) if totals is None else totals
        totals.setflags(write=False)
        picker = profile.picker
        picked = self._guard.call(
            Picker.role, picker, _picked, picker, request, left, totals, partial(request.generator, profile.name)
        )
        assert not isinstance(picked, Failure)  # noqa: S101  a picker is never skipped
        return ProfileResult(
            profile.name, left, totals, picked, tuple(steps), tuple(traces), picker.name, candidates.slots
        )

    def _repaired(self, weighted: WeightedScorer, found: object, count: int) -> tuple[Floats, str]:
        """Return usable scores in place of those found, and the problem of a scorer without any."""
        scorer = weighted.scorer
        scores = (
            found if isinstance(found, Failure) else self._guard.check(weighted.role, scorer, as_scores, found, count)
        )
        if isinstance(scores, Failure):
            return np.zeros(count), scores.problem
        finite = np.isfinite(scores)
        if not all_true(finite):
            self._observer.scores_rejected(scorer.name, int((~finite).sum()))
            scores = np.where(finite, scores, 0.0)
        clamped = np.clip(scores, 0.0, 1.0)
        outside = int((np.abs(scores - clamped) > ROUNDING).sum())
        if outside:
            self._observer.scores_clamped(scorer.name, outside)
        return clamped, ""


def _picked(picker: Picker[Any], request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
    return as_positions(picker.pick(request, candidates, totals, draw), len(candidates))


_FEWEST = 64
"""Number of candidates from which it pays to run filters twice."""


class Shortlist:
    """Runs those filters of each profile that read no data of producers, without traces and metrics."""

    def __init__(self, profiles: Iterable[Profile], produced: AbstractSet[Datum]) -> None:
        """Find these filters; `produced` are the data that producers write."""
        guard = Guard(SchedulingObserver())
        reduced = [dataclasses.replace(each, filters=tuple(_independent(each, produced))) for each in profiles]
        self._narrows = bool(reduced) and all(each.filters and not each.fail_open for each in reduced)
        self._narrowings = [(each.name, Narrowing(each, guard)) for each in reduced]

    def of(self, request: Request, candidates: Candidates) -> Candidates:
        """Return the candidates that any profile may keep; all of them if there are few, or if a filter fails."""
        if not self._narrows or len(candidates) < _FEWEST:
            return candidates
        kept = np.zeros(candidates.snapshot.capacity, dtype=np.bool_)
        try:
            for name, narrowing in self._narrowings:
                kept[narrowing.kept(request, candidates.within(name, None)).slots] = True
        except RequestError:
            return candidates
        return candidates.keep(kept[candidates.slots])


def _independent(profile: Profile, produced: AbstractSet[Datum]) -> Iterator[ProfileFilter]:
    """Yield the filters whose result does not depend on other filters, the peer or producers.

    A filter that falls back, or never drops all candidates, compares candidates: only the first filter may be one.
    """
    for index, member in enumerate(profile.filters):
        keys = {each for each in (*member.filter.reads, *member.filter.may_read) if isinstance(each, DataKey)}
        judges_each = member.may_empty and not member.filter.parameters.fallback_on_empty
        if not keys & produced and (index == 0 or judges_each):
            yield member


MAX_ITERATIONS = 16
"""Default limit on the calls of a profile picker for one request."""
_NO_ERRORS: Mapping[str, RequestError] = MappingProxyType({})


class Scheduler:
    """Stateless between requests; does no I/O and reads no clock."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        profile_picker: ProfilePicker[Any],
        aggregator: Aggregator[Any],
        *,
        observer: SchedulingObserver | None = None,
        max_iterations: int = MAX_ITERATIONS,
    ) -> None:
        self.profiles = dict(profiles)
        self._names = tuple(self.profiles)
        self.profile_picker = profile_picker
        self.aggregator = aggregator
        self._observer = observer or SchedulingObserver()
        started = self._observer.profile_started
        is_ignored = getattr(started, "__func__", None) is SchedulingObserver.profile_started
        self._started = None if is_ignored else started
        self._guard = Guard(self._observer)
        self._cycles = {name: Cycle(profile, self._guard, self._observer) for name, profile in self.profiles.items()}
        self._max_iterations = max_iterations

    def observed_by(self, observer: SchedulingObserver, profiles: Mapping[str, Profile] | None = None) -> "Scheduler":
        """Return another scheduler with the same plugins, with these profiles if any are given."""
        return Scheduler(
            self.profiles if profiles is None else profiles,
            self.profile_picker,
            self.aggregator,
            observer=observer,
            max_iterations=self._max_iterations,
        )

    def schedule(self, request: Request, candidates: Candidates) -> SchedulingResult:
        """Return the destination of the request; raises a RequestError, with `scheduling`, if it has none."""
        if not len(candidates):
            raise NoEndpointsError
        results: dict[str, ProfileResult | None] = {}
        errors: dict[str, RequestError] = {}
        try:
            return self._schedule(request, candidates, results, errors)
        except RequestError as error:
            error.scheduling = _so_far(results, errors, error)
            raise

    def _schedule(
        self,
        request: Request,
        candidates: Candidates,
        results: dict[str, ProfileResult | None],
        errors: dict[str, RequestError],
    ) -> SchedulingResult:
        shown = MappingProxyType(results)
        for _ in range(self._max_iterations):
            chosen = self._guard.call(
                ProfilePicker.role, self.profile_picker, _chosen, self.profile_picker, request, self._names, shown
            )
            assert not isinstance(chosen, Failure)  # noqa: S101  a profile picker is never skipped
            if not chosen:
                return self._aggregate(request, shown, errors)
            self._run(chosen, request, candidates, results, errors)
        raise InternalError(
            f"profile picker {self.profile_picker.name!r} still chooses profiles after {self._max_iterations} calls, "
            "the limit of scheduling.maxIterations"
        )

    def _run(
        self,
        chosen: Collection[str],
        request: Request,
        candidates: Candidates,
        results: dict[str, ProfileResult | None],
        errors: dict[str, RequestError],
    ) -> None:
        unknown = () if chosen is self._names else [name for name in chosen if name not in self._cycles]
        if unknown:
            raise InternalError(
                f"profile picker {self.profile_picker.name!r} chose {sorted(unknown)}, "
                f"which are not among the profiles {sorted(self.profiles)}"
            )
        for name, cycle in self._cycles.items():  # in configuration order
            if name not in chosen:
                continue
            if results.get(name) is not None:
                raise InternalError(f"profile picker {self.profile_picker.name!r} chose {name!r} a second time")
            if self._started is not None:
                self._started(name)
            try:
                results[name] = cycle.run(request, candidates.within(name, _peer(results)))
                errors.pop(name, None)
            except RequestError as error:
                results[name] = None
                errors[name] = error

    def _aggregate(
        self, request: Request, results: Mapping[str, ProfileResult | None], errors: Mapping[str, RequestError]
    ) -> SchedulingResult:
        if not results:
            raise InternalError(f"profile picker {self.profile_picker.name!r} chose no profile")
        destination = self._guard.call(
            Aggregator.role, self.aggregator, _destination, self.aggregator, request, results
        )
        assert not isinstance(destination, Failure)  # noqa: S101  an aggregator is never skipped
        if destination is None:
            raise _worst(errors)
        if destination.headers:
            destination = self._declared(destination)
        primary = destination.primary
        final = {**results, **destination.repicked, primary.profile: primary}
        failed = MappingProxyType(dict(errors)) if errors else _NO_ERRORS
        return SchedulingResult(destination, MappingProxyType(final), failed, self.aggregator.name)

    def _declared(self, destination: Destination) -> Destination:
        """Drop headers that the aggregator does not declare, since the client's own headers of that name would pass."""
        undeclared = destination.headers.keys() - self.aggregator.sets_headers
        if not undeclared:
            return destination
        problem = (
            f"headers {sorted(undeclared)} are dropped: add them to `sets_headers` of {type(self.aggregator).__name__}"
        )
        self._observer.plugin_failed(self.aggregator.name, ResultError(problem), problem)
        return replace(destination, headers={k: v for k, v in destination.headers.items() if k not in undeclared})


def _chosen(
    picker: ProfilePicker[Any], request: Request, names: Sequence[str], results: Mapping[str, ProfileResult | None]
) -> Collection[str]:
    chosen: object = picker.pick_profiles(request, names, results)
    if isinstance(chosen, (tuple, list)):
        return chosen
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        raise ResultError(f"returned {chosen!r} instead of a list of profiles")
    return set(chosen)


def _destination(
    aggregator: Aggregator[Any], request: Request, results: Mapping[str, ProfileResult | None]
) -> Destination | None:
    found: object = aggregator.aggregate(request, results)
    if found is not None and not isinstance(found, Destination):
        raise ResultError(f"returned {type(found).__name__} instead of a Destination")
    return found


def _so_far(
    results: Mapping[str, ProfileResult | None], errors: Mapping[str, RequestError], raised: RequestError
) -> FailedScheduling:
    """Return the results so far, without the error itself, to avoid a reference cycle."""
    runs: dict[str, ProfileResult | ProfileAttempt] = {}
    for name, result in results.items():
        run = result if result is not None else errors[name].attempt
        if run is not None:
            runs[name] = run
    return FailedScheduling(runs, {name: error for name, error in errors.items() if error is not raised})


_FROM_WORST = (InternalError, UnmetConstraintError, UnavailableError, StaleDataError, AllBusyError)
"""Errors of profiles, in descending order of the time that their cause lasts."""


def _worst(errors: Mapping[str, RequestError]) -> RequestError:
    """Return the error that lasts longest; of several, that of the first profile by name."""

    def rank(name: str) -> tuple[int, str]:
        places = (place for place, kind in enumerate(_FROM_WORST) if isinstance(errors[name], kind))
        return next(places, len(_FROM_WORST)), name

    if not errors:
        return InternalError("no profile has a result")
    first, *others = (errors[name] for name in sorted(errors, key=rank))
    for other in others:
        if other.detail not in first.detail:
            first.detail = f"{first.detail}; {other.detail}" if first.detail else other.detail
    return first


def _peer(results: Mapping[str, ProfileResult | None]) -> int | None:
    return next((result.slot for result in results.values() if result is not None), None)
