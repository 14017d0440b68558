# SPDX-License-Identifier: Apache-2.0
"""Results of a profile run and of a whole scheduling, with the trace that explains them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from epp.framework.arrays import Floats, Positions
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.errors import RequestError


@dataclass(frozen=True, slots=True)
class FilterTrace:
    """How many candidates entered and left one filter."""

    plugin: str
    before: int
    after: int
    problem: str = ""
    """Why the filter was skipped: it dropped all candidates and falls back, or it failed."""
    slots: Positions = field(default_factory=lambda: np.empty(0, dtype=np.intp), compare=False)
    """Slots of the candidates that left it."""


@dataclass(frozen=True, slots=True)
class ScoreTrace:
    """Scores of one scorer for the candidates that passed the filters."""

    plugin: str
    weight: float
    scores: Floats
    """In [0, 1], one for each candidate, before the weight."""
    problem: str = ""
    """The error of a scorer that failed."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
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

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The endpoints picked: the first one, then the fallbacks in order."""
        return tuple(self.candidates[int(position)] for position in self.picked)

    @property
    def slot(self) -> int:
        """The slot of the endpoint picked first."""
        return int(self.candidates.slots[self.picked[0]])


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes: made once by the aggregator, and read by hooks, ledger and wire."""

    primary: ProfileResult
    """The profile run whose picks are the targets."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers for the endpoint, beside the destination: a prefill peer, say."""
    addresses: tuple[str, ...] = ()
    """`ip:port` for each target, as the gateway is told; those of the targets themselves unless given."""
    repicked: Mapping[str, ProfileResult] = field(default_factory=dict)
    """Results of other profiles whose picks the aggregator changed."""
    targets: tuple[Endpoint, ...] = field(init=False)
    """The target endpoint, then its fallbacks in order."""

    def __post_init__(self) -> None:
        """Look the targets up, and copy the mappings."""
        targets = self.primary.targets
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))
        object.__setattr__(self, "repicked", MappingProxyType(dict(self.repicked)))
        if not self.addresses:
            object.__setattr__(self, "addresses", tuple(endpoint.hostport for endpoint in targets))


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The outcome of a whole scheduling."""

    destination: Destination
    profiles: Mapping[str, ProfileResult | None]
    """Every profile that ran; None for one that failed."""
    errors: Mapping[str, RequestError]
    """Why those failed, by profile."""
    aggregator: str = ""

    @property
    def primary(self) -> ProfileResult:
        """The profile run whose picks are the targets."""
        return self.destination.primary

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The target endpoint, then its fallbacks in order."""
        return self.destination.targets
