# SPDX-License-Identifier: Apache-2.0
"""Results of a profile run and of a whole scheduling, with traces that explain them, and causes of drops."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec
import numpy as np

from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.errors import RequestError


class DropCause(StrEnum):
    """Cause for which a filter drops an endpoint; the most lasting cause first."""

    CONSTRAINT = "constraint"
    """The endpoint does not meet a constraint, such as hardware, price or label. Waiting does not help."""
    AVAILABILITY = "availability"
    """The endpoint drains, is unhealthy or not ready, or its state is unknown."""
    STALE = "stale"
    """The last report of the endpoint is too old."""
    SATURATION = "saturation"
    """The endpoint is too busy."""
    UNSTATED = "unstated"
    """The filter gives no cause."""


def lasting_cause(kept: Iterable[Mapping[DropCause, Mask]], otherwise: DropCause) -> DropCause:
    """Return the first cause that, together with more lasting ones, leaves no candidate.

    `kept` has, for each filter and cause, the candidates that the filter keeps. The order of the filters does not
    matter: if constraints alone leave no candidate, they are the cause, even if endpoints are busy too. If all causes
    together leave a candidate, which is possible for filters that compare candidates, the result is `otherwise`.
    """
    filters = tuple(kept)
    for number, cause in enumerate(DropCause, 1):
        causes = tuple(DropCause)[:number]
        masks = [mask for each in filters for which, mask in each.items() if which in causes]
        if masks and not np.logical_and.reduce(masks).any():
            return cause
    return otherwise


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_RESULTS: "Mapping[str, ProfileResult]" = MappingProxyType({})
_NO_SLOTS: Positions = np.empty(0, dtype=np.intp)


class FilterTrace(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Numbers of candidates before and after one filter."""

    plugin: str
    before: int
    after: int
    problem: str = ""
    """Reason that the filter was skipped: it dropped all candidates and falls back, or it failed."""
    slots: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Slots of the candidates that it kept."""


class ScoreTrace(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Scores of one scorer for the candidates that passed the filters."""

    plugin: str
    weight: float
    scores: Floats
    """Scores in [0, 1] without the weight, one for each candidate."""
    problem: str = ""
    """Error of a scorer that failed."""


class ProfileResult(msgspec.Struct, frozen=True, eq=False):
    """One profile run: picked endpoints, candidates and scores."""

    profile: str
    candidates: Candidates
    """Candidates that passed the filters."""
    totals: Floats
    """Sum of weight times score, one for each candidate."""
    picked: Positions
    """Positions in `candidates`, best first, never empty."""
    filters: tuple[FilterTrace, ...] = ()
    scores: tuple[ScoreTrace, ...] = ()
    picker: str = ""
    considered: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Slots of the candidates before the filters; empty without filters."""

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The picked endpoints: the target, then its fallbacks in order."""
        return tuple([self.candidates[position] for position in self.picked.tolist()])

    @property
    def slot(self) -> int:
        """Slot of the target."""
        return self.candidates.slots.item(self.picked.item(0))


class ProfileAttempt(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Partial run of a profile that failed."""

    candidates: Candidates
    """Candidates before the filters."""
    filters: tuple[FilterTrace, ...] = ()
    """Filters that ran, without one that failed."""
    scores: tuple[ScoreTrace, ...] = ()
    """Scorers that ran, without one that failed; their scores are those of the candidates that passed the filters."""


class Destination(msgspec.Struct, frozen=True, eq=False):
    """Destination of a request, created by the aggregator."""

    primary: ProfileResult
    """The profile run whose picks are the targets."""
    headers: Mapping[str, str] = _NO_HEADERS
    """Further request headers for the endpoint, such as that of a prefill peer."""
    addresses: tuple[str, ...] = ()
    """`ip:port` of each target for the gateway; by default those of the target endpoints."""
    repicked: Mapping[str, ProfileResult] = _NO_RESULTS
    """Results of other profiles whose picks the aggregator changed."""
    targets: tuple[Endpoint, ...] = ()
    """The target endpoint, then its fallbacks in order; always those of `primary`."""

    def __post_init__(self) -> None:
        assign = msgspec.structs.force_setattr
        targets = self.primary.targets
        assign(self, "targets", targets)
        if self.headers is not _NO_HEADERS:
            assign(self, "headers", MappingProxyType(dict(self.headers)))
        if self.repicked is not _NO_RESULTS:
            assign(self, "repicked", MappingProxyType(dict(self.repicked)))
        if not self.addresses:
            assign(self, "addresses", tuple([endpoint.hostport for endpoint in targets]))


class FailedScheduling(msgspec.Struct, frozen=True, eq=False):
    """Partial scheduling of a request that has no destination."""

    profiles: Mapping[str, ProfileResult | ProfileAttempt]
    """All profiles that ran."""
    errors: Mapping[str, RequestError]
    """Errors by profile, without the one that is returned to the client."""


class SchedulingResult(msgspec.Struct, frozen=True, eq=False):
    """Result of a whole scheduling."""

    destination: Destination
    profiles: Mapping[str, ProfileResult | None]
    """Results of all profiles that ran; None for one that failed."""
    errors: Mapping[str, RequestError]
    aggregator: str = ""

    @property
    def primary(self) -> ProfileResult:
        """The profile run whose picks are the targets."""
        return self.destination.primary

    def as_failed(self) -> FailedScheduling:
        """Return the scheduling as that of a request that is refused afterwards."""
        runs: dict[str, ProfileResult | ProfileAttempt | None] = dict(self.profiles)
        runs |= {name: error.attempt for name, error in self.errors.items() if runs.get(name) is None}
        return FailedScheduling({name: run for name, run in runs.items() if run is not None}, self.errors)

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The target endpoint, then its fallbacks in order."""
        return self.destination.targets
