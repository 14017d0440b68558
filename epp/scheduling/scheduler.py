"""The loop over profiles: what to run next, run it, and who gets the request in the end."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import xxhash

from epp.framework.arrays import Positions
from epp.framework.candidates import Candidates
from epp.framework.errors import InternalError, NoEndpointsError, RequestError
from epp.framework.plugins import Aggregator, ProfilePicker
from epp.framework.request import Request
from epp.framework.result import ProfileResult, SchedulingResult
from epp.scheduling.cycle import Cycle
from epp.scheduling.observer import SchedulingObserver
from epp.scheduling.profile import Profile

GeneratorFactory: TypeAlias = Callable[[Request, str], np.random.Generator]
"""Makes the random generator of one request's run of the named profile."""


def seeded_by_request(request: Request, profile: str) -> np.random.Generator:
    """Return a generator that is the same for the same request id and profile."""
    return np.random.default_rng(xxhash.xxh3_64_intdigest(f"{profile}\0{request.id}".encode()))


class Scheduler:
    """Stateless between requests; does no I/O and reads no clock."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        profile_picker: ProfilePicker[Any],
        aggregator: Aggregator[Any],
        *,
        generators: GeneratorFactory = seeded_by_request,
        observer: SchedulingObserver | None = None,
        max_iterations: int = 16,
    ) -> None:
        self.profiles = dict(profiles)
        self._names = tuple(self.profiles)
        self.profile_picker = profile_picker
        self.aggregator = aggregator
        self._generators = generators
        self._observer = observer or SchedulingObserver()
        self._max_iterations = max_iterations

    def schedule(self, request: Request, candidates: Candidates) -> SchedulingResult:
        """Return where the request goes; raises a RequestError that says why it can go nowhere."""
        if not len(candidates):
            raise NoEndpointsError
        results: dict[str, ProfileResult | None] = {}
        errors: dict[str, RequestError] = {}
        for _ in range(self._max_iterations):
            chosen = set(self.profile_picker.pick_profiles(request, self._names, results))
            if not chosen:
                return self._aggregate(request, results, errors)
            self._run(chosen, request, candidates, results, errors)
        raise InternalError(
            f"profile picker {self.profile_picker.name!r} was asked {self._max_iterations} times and still wants more"
        )

    def _run(
        self,
        chosen: set[str],
        request: Request,
        candidates: Candidates,
        results: dict[str, ProfileResult | None],
        errors: dict[str, RequestError],
    ) -> None:
        unknown = chosen - self.profiles.keys()
        if unknown:
            raise InternalError(
                f"profile picker {self.profile_picker.name!r} chose {sorted(unknown)}, "
                f"which are not among the profiles {sorted(self.profiles)}"
            )
        for name, profile in self.profiles.items():  # in configuration order, whatever order was asked for
            if name not in chosen:
                continue
            if results.get(name) is not None:
                raise InternalError(f"profile picker {self.profile_picker.name!r} chose {name!r} a second time")
            request.profile = name
            try:
                draw = partial(self._generators, request, name)
                results[name] = Cycle(profile, request, draw, self._observer).run(candidates)
                errors.pop(name, None)
            except RequestError as error:
                results[name] = None
                errors[name] = error
        request.profile = ""

    def _aggregate(
        self, request: Request, results: Mapping[str, ProfileResult | None], errors: Mapping[str, RequestError]
    ) -> SchedulingResult:
        if not results:
            raise InternalError(f"profile picker {self.profile_picker.name!r} chose no profile")
        verdict = self.aggregator.aggregate(request, results)
        primary = results.get(verdict.primary) if verdict else None
        if verdict is None or primary is None:
            raise next((errors[name] for name in sorted(errors)), InternalError("no profile brought a result"))
        final = {name: _with_picks(result, verdict.picks.get(name)) for name, result in results.items()}
        chosen = final[verdict.primary] or primary
        destination = verdict.destination or tuple(endpoint.hostport for endpoint in chosen.targets)
        return SchedulingResult(chosen, final, dict(errors), self._declared(verdict.headers), destination)

    def _declared(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers that the aggregator declares: of any other a client's own would pass."""
        undeclared = headers.keys() - self.aggregator.sets_headers
        if not undeclared:
            return headers
        problem = (
            f"headers {sorted(undeclared)} are dropped: add them to `sets_headers` of {type(self.aggregator).__name__}"
        )
        self._observer.plugin_failed(self.aggregator.name, ValueError(problem))
        return {name: value for name, value in headers.items() if name not in undeclared}


def _with_picks(result: ProfileResult | None, picks: Positions | None) -> ProfileResult | None:
    return result if result is None or picks is None else replace(result, picked=picks)
