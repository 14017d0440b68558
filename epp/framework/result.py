# SPDX-License-Identifier: Apache-2.0
"""Results of a profile run and of a whole scheduling, with the trace that explains them, and causes of drops."""

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
    """Why a filter drops an endpoint; from the most lasting cause to the one that passes soonest."""

    CONSTRAINT = "constraint"
    """It does not meet a constraint, such as hardware, price or label. Waiting does not change that."""
    AVAILABILITY = "availability"
    """It drains, is unhealthy or not ready, or its state is unknown."""
    STALE = "stale"
    """It has not reported for too long."""
    SATURATION = "saturation"
    """It is too busy."""
    UNSTATED = "unstated"
    """The filter gives no cause."""


def lasting_cause(kept: Iterable[Mapping[DropCause, Mask]], otherwise: DropCause) -> DropCause:
    """Return the first cause, in their order, that leaves none together with those before it.

    `kept` has, for each filter and cause, the candidates that the filter keeps. The order of the filters does not
    matter: if constraints alone leave no candidate, they are the cause, however busy the endpoints are. If all causes
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
    """How many candidates entered and left one filter."""

    plugin: str
    before: int
    after: int
    problem: str = ""
    """Why the filter was skipped: it dropped all candidates and falls back, or it failed."""
    slots: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Slots of the candidates that left it."""


class ScoreTrace(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Scores of one scorer for the candidates that passed the filters."""

    plugin: str
    weight: float
    scores: Floats
    """In [0, 1], one for each candidate, before the weight."""
    problem: str = ""
    """The error of a scorer that failed."""


class ProfileResult(msgspec.Struct, frozen=True, eq=False):
    """One profile run: the endpoints picked, the candidates, and the scores."""

    profile: str
    candidates: Candidates
    """Those that passed the filters."""
    totals: Floats
    """Sum of weight times score, one for each candidate."""
    picked: Positions
    """Positions in `candidates`, best first, never empty."""
    filters: tuple[FilterTrace, ...] = ()
    scores: tuple[ScoreTrace, ...] = ()
    picker: str = ""
    considered: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Slots of the candidates before its filters; none where there are no filters."""

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The endpoints picked: the first one, then the fallbacks in order."""
        return tuple([self.candidates[position] for position in self.picked.tolist()])

    @property
    def slot(self) -> int:
        """The slot of the endpoint picked first."""
        return self.candidates.slots.item(self.picked.item(0))


class ProfileAttempt(msgspec.Struct, frozen=True, gc=False, eq=False):
    """How far a profile came that failed."""

    candidates: Candidates
    """Those before its filters."""
    filters: tuple[FilterTrace, ...] = ()
    """Those that ran; the one that failed is not among them."""
    scores: tuple[ScoreTrace, ...] = ()
    """Likewise, of the candidates that passed the filters."""


class Destination(msgspec.Struct, frozen=True, eq=False):
    """Where a request goes: made once by the aggregator, and read by hooks, ledger and wire."""

    primary: ProfileResult
    """The profile run whose picks are the targets."""
    headers: Mapping[str, str] = _NO_HEADERS
    """Request headers for the endpoint, beside the destination: a prefill peer, say."""
    addresses: tuple[str, ...] = ()
    """`ip:port` for each target, as the gateway is told; those of the targets themselves unless given."""
    repicked: Mapping[str, ProfileResult] = _NO_RESULTS
    """Results of other profiles whose picks the aggregator changed."""
    targets: tuple[Endpoint, ...] = ()
    """The target endpoint, then its fallbacks in order: always those of `primary`."""

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
    """How far the scheduling of a request came that has no destination."""

    profiles: Mapping[str, ProfileResult | ProfileAttempt]
    """Every profile that ran."""
    errors: Mapping[str, RequestError]
    """Why profiles failed, by profile; without the error that the request is refused with."""


class SchedulingResult(msgspec.Struct, frozen=True, eq=False):
    """The outcome of a whole scheduling."""

    destination: Destination
    profiles: Mapping[str, ProfileResult | None]
    """Every profile that ran; None for one that failed."""
    errors: Mapping[str, RequestError]
    aggregator: str = ""

    @property
    def primary(self) -> ProfileResult:
        """The profile run whose picks are the targets."""
        return self.destination.primary

    def as_failed(self) -> FailedScheduling:
        """Return the same of a request that is refused after all."""
        runs: dict[str, ProfileResult | ProfileAttempt | None] = dict(self.profiles)
        runs |= {name: error.attempt for name, error in self.errors.items() if runs.get(name) is None}
        return FailedScheduling({name: run for name, run in runs.items() if run is not None}, self.errors)

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The target endpoint, then its fallbacks in order."""
        return self.destination.targets
