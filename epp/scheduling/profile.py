# SPDX-License-Identifier: Apache-2.0
"""A profile: filters, weighted scorers and exactly one picker under a name."""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from epp.framework.plugin import OnError, Role
from epp.framework.roles import Filter, Picker, Scorer


@dataclass(frozen=True, slots=True)
class ProfileFilter:
    """A filter and its error policy in one profile."""

    filter: Filter[Any]
    role: Role = Filter.role

    @classmethod
    def of(cls, plugin: Filter[Any], on_error: OnError | None) -> "ProfileFilter":
        """Return the filter with an error policy; None for that of its role."""
        return cls(plugin, replace(Filter.role, on_error=on_error or Filter.role.on_error))


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer, its weight and its error policy in one profile."""

    scorer: Scorer[Any]
    weight: float = 1.0
    role: Role = Scorer.role

    def __post_init__(self) -> None:
        """Refuse a weight that would poison every sum; raises ValueError."""
        if not isfinite(self.weight):
            raise ValueError(f"scorer {self.scorer.name!r}: weight {self.weight} is not a finite number")

    @classmethod
    def of(cls, plugin: Scorer[Any], weight: float, on_error: OnError | None) -> "WeightedScorer":
        """Return the scorer with an error policy, None for that of its role; raises ValueError."""
        return cls(plugin, weight, replace(Scorer.role, on_error=on_error or Scorer.role.on_error))


@dataclass(frozen=True, slots=True)
class Profile:
    """What one cycle runs, in this order; data, not code."""

    name: str
    filters: tuple[ProfileFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker[Any]
