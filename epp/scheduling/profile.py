"""A profile: filters, weighted scorers and exactly one picker under a name."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

from epp.framework.plugins import Filter, Picker, Scorer


class OnError(StrEnum):
    """What becomes of the profile when a plugin raises."""

    SKIP = "Skip"
    """The profile goes on as if the plugin were not there."""
    FAIL = "Fail"
    """The profile fails."""


@dataclass(frozen=True, slots=True)
class ProfileFilter:
    """A filter as one profile uses it."""

    filter: Filter[Any]
    on_error: OnError = OnError.FAIL


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer, what its voice counts, and whether it can be done without."""

    scorer: Scorer[Any]
    weight: float = 1.0
    on_error: OnError = OnError.SKIP

    def __post_init__(self) -> None:
        """Refuse a weight that would poison every sum; raises ValueError."""
        if not isfinite(self.weight):
            raise ValueError(f"scorer {self.scorer.name!r}: weight {self.weight} is not a finite number")


@dataclass(frozen=True, slots=True)
class Profile:
    """Data, not code: what one cycle runs, in this order."""

    name: str
    filters: tuple[ProfileFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker[Any]
