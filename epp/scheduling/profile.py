"""A profile: filters, weighted scorers and exactly one picker under a name."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from epp.framework.plugins import Filter, Picker, Scorer


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and what its voice counts."""

    scorer: Scorer[Any]
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a weight that would poison every sum; raises ValueError."""
        if not isfinite(self.weight):
            raise ValueError(f"scorer {self.scorer.name!r}: weight {self.weight} is not a finite number")


@dataclass(frozen=True, slots=True)
class Profile:
    """Data, not code: what one cycle runs, in this order."""

    name: str
    filters: tuple[Filter[Any], ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker[Any]
