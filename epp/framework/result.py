"""What a profile run and a whole scheduling return, with the trace that explains them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Why the filter was passed over: it left nobody and falls back, or it failed and may be skipped."""


@dataclass(frozen=True, slots=True)
class ScoreTrace:
    """What one scorer said of the candidates that came through the filters."""

    plugin: str
    weight: float
    scores: Floats
    """In [0, 1], one for each candidate, before the weight."""
    problem: str = ""
    """Why the scorer has no vote, where it failed."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """One profile run: whom it picked, out of whom, and why."""

    profile: str
    candidates: Candidates
    """Those that came through the filters."""
    totals: Floats
    """Sum of weight times score, one for each candidate."""
    picked: Positions
    """Positions in `candidates`, best first, never empty."""
    filters: tuple[FilterTrace, ...] = ()
    scores: tuple[ScoreTrace, ...] = ()

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The endpoints picked: the first one, then the fallbacks in order."""
        return tuple(self.candidates[int(position)] for position in self.picked)

    @property
    def slot(self) -> int:
        """The slot of the endpoint picked first."""
        return int(self.candidates.slots[self.picked[0]])


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregator's verdict over the results of all profiles."""

    primary: str
    """Name of the profile whose targets the gateway gets."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers the endpoint gets beside the destination (a prefill peer, say), of those in `sets_headers`."""
    picks: Mapping[str, Positions] = field(default_factory=dict)
    """Other picks than the profiles' own, by profile: positions in the profile's candidates, best first."""
    destination: tuple[str, ...] = ()
    """What the gateway is told in place of the addresses of the targets, one for each; empty for those themselves."""


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """Where a request goes."""

    primary: ProfileResult
    profiles: Mapping[str, ProfileResult | None]
    """Every profile that ran; None for one that failed."""
    errors: Mapping[str, RequestError]
    """Why those failed, by profile."""
    headers: Mapping[str, str] = field(default_factory=dict)
    destination: tuple[str, ...] = ()
    """`ip:port` for each target, as the gateway is told."""

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        """The target endpoint, then its fallbacks in order."""
        return self.primary.targets
