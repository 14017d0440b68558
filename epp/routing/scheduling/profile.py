# SPDX-License-Identifier: Apache-2.0
"""A profile: filters, weighted scorers and exactly one picker under a name."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any

from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.plugin import OnError, Role
from epp.framework.result import DropCause
from epp.framework.roles import Filter, Picker, Scorer


class OnStale(StrEnum):
    """How a plugin is shown endpoints that have not reported for too long."""

    IGNORE = "Ignore"
    """As if nothing were wrong: with the last numbers that they reported."""
    NEUTRAL = "Neutral"
    """Without their load (WAITING, RUNNING, KV_USAGE): it is estimated like that of endpoints that report none."""
    DROP = "Drop"
    """Not at all; only for filters, which drop them."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """When the numbers of an endpoint are stale, and what follows."""

    after_seconds: float
    on_stale: OnStale = OnStale.NEUTRAL


@dataclass(frozen=True, slots=True)
class ProfileFilter:
    """A filter, its error policy and its view of stale endpoints in one profile."""

    filter: Filter[Any]
    role: Role = Filter.role
    staleness: Staleness | None = None

    @classmethod
    def of(cls, plugin: Filter[Any], on_error: OnError | None, staleness: Staleness | None = None) -> "ProfileFilter":
        """Return the filter with an error policy; None for that of its role."""
        return cls(plugin, replace(Filter.role, on_error=on_error or Filter.role.on_error), staleness)

    @property
    def drops_stale(self) -> bool:
        """Whether it also drops stale endpoints."""
        return self.staleness is not None and self.staleness.on_stale is OnStale.DROP

    @property
    def may_empty(self) -> bool:
        """Whether it can drop all candidates."""
        return self.filter.may_empty or self.drops_stale

    def fresh(self, candidates: Candidates) -> Mask:
        """Mark the candidates that are not stale."""
        assert self.staleness is not None  # noqa: S101  only called if it drops stale endpoints
        return ~candidates.stale(self.staleness.after_seconds)


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer, its weight, its error policy and its view of stale endpoints in one profile."""

    scorer: Scorer[Any]
    weight: float = 1.0
    role: Role = Scorer.role
    staleness: Staleness | None = None

    def __post_init__(self) -> None:
        """Refuse a weight that would poison every sum; raises ValueError."""
        if not isfinite(self.weight):
            raise ValueError(f"scorer {self.scorer.name!r}: weight {self.weight} is not a finite number")

    @classmethod
    def of(
        cls, plugin: Scorer[Any], weight: float, on_error: OnError | None, staleness: Staleness | None = None
    ) -> "WeightedScorer":
        """Return the scorer with an error policy, None for that of its role; raises ValueError."""
        return cls(plugin, weight, replace(Scorer.role, on_error=on_error or Scorer.role.on_error), staleness)


@dataclass(frozen=True, slots=True)
class Profile:
    """What one cycle runs, in this order; data, not code."""

    name: str
    filters: tuple[ProfileFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker[Any]
    drop_stale_after_seconds: float | None = None
    """Age of reports from which endpoints are dropped before any filter; None for no such age."""
    fail_open: frozenset[DropCause] = frozenset()
    """Causes for which filters drop nothing where they would leave no candidate."""
    constraint_status: int = 429
    """Status of requests whose constraints no endpoint meets."""

    @property
    def trusted_seconds(self) -> float:
        """The least age from which the load of endpoints does not count as it was reported; infinite for none."""
        rules = [*(member.staleness for member in self.filters), *(member.staleness for member in self.scorers)]
        ages = [rule.after_seconds for rule in rules if rule is not None and rule.on_stale is not OnStale.IGNORE]
        return min([*ages, inf if self.drop_stale_after_seconds is None else self.drop_stale_after_seconds])
