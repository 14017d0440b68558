# SPDX-License-Identifier: Apache-2.0
"""The loop over profiles: choose, run, aggregate."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from epp.framework.arrays import ResultError
from epp.framework.candidates import Candidates
from epp.framework.errors import InternalError, RequestError
from epp.framework.guard import Failure, Guard, SchedulingObserver
from epp.framework.refusals import (
    AllBusyError,
    NoEndpointsError,
    StaleDataError,
    UnavailableError,
    UnmetConstraintError,
)
from epp.framework.request import Request
from epp.framework.result import Destination, FailedScheduling, ProfileAttempt, ProfileResult, SchedulingResult
from epp.framework.roles import Aggregator, ProfilePicker
from epp.routing.scheduling.cycle import Cycle
from epp.routing.scheduling.profile import Profile

MAX_ITERATIONS = 16
"""Default number of times that a profile picker is asked for one request."""
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
        """Return another scheduler of the same plugins, with these profiles if any are given."""
        return Scheduler(
            self.profiles if profiles is None else profiles,
            self.profile_picker,
            self.aggregator,
            observer=observer,
            max_iterations=self._max_iterations,
        )

    def schedule(self, request: Request, candidates: Candidates) -> SchedulingResult:
        """Return the destination of the request; raises a RequestError where it has none, with `scheduling`."""
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
            f"profile picker {self.profile_picker.name!r} was asked {self._max_iterations} times, the limit of "
            "scheduling.maxIterations, and still wants more"
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
        for name, cycle in self._cycles.items():  # in configuration order, whatever order was asked for
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
        assert not isinstance(destination, Failure)  # noqa: S101  nor is an aggregator
        if destination is None:
            raise _worst(errors)
        if destination.headers:
            destination = self._declared(destination)
        primary = destination.primary
        final = {**results, **destination.repicked, primary.profile: primary}
        failed = MappingProxyType(dict(errors)) if errors else _NO_ERRORS
        return SchedulingResult(destination, MappingProxyType(final), failed, self.aggregator.name)

    def _declared(self, destination: Destination) -> Destination:
        """Drop headers that the aggregator does not declare: a client's own of that name would pass."""
        undeclared = destination.headers.keys() - self.aggregator.sets_headers
        if not undeclared:
            return destination
        problem = (
            f"headers {sorted(undeclared)} are dropped: add them to `sets_headers` of {type(self.aggregator).__name__}"
        )
        self._observer.plugin_failed(self.aggregator.name, ResultError(problem), problem)
        return replace(destination, headers={k: v for k, v in destination.headers.items() if k not in undeclared})


def _chosen(
    picker: ProfilePicker[Any],
    request: Request,
    names: Sequence[str],
    results: Mapping[str, ProfileResult | None],
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
"""Errors of profiles, the longest-lasting cause first."""


def _worst(errors: Mapping[str, RequestError]) -> RequestError:
    """Return the error that lasts longest, of equal ones that of the first profile by name."""

    def rank(name: str) -> tuple[int, str]:
        places = [place for place, kind in enumerate(_FROM_WORST) if isinstance(errors[name], kind)]
        return places[0] if places else len(_FROM_WORST), name

    if not errors:
        return InternalError("no profile has a result")
    first, *others = (errors[name] for name in sorted(errors, key=rank))
    for other in others:
        if other.detail not in first.detail:
            first.detail = f"{first.detail}; {other.detail}" if first.detail else other.detail
    return first


def _peer(results: Mapping[str, ProfileResult | None]) -> int | None:
    """Return the slot that the first profile with a result picked."""
    for result in results.values():
        if result is not None:
            return result.slot
    return None
