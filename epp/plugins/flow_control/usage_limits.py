# SPDX-License-Identifier: Apache-2.0
"""How full endpoints may be for a priority."""

from collections.abc import Sequence
from typing import Literal

from epp.framework import Parameters, PositiveShare, Stability
from epp.framework.flow_control import UsageLimitPolicy


class StaticUsageLimitParameters(Parameters, frozen=True):
    """One limit."""

    threshold: PositiveShare = 1.0
    """Fullness of an endpoint from which it gets no more requests, 0..1."""


class StaticUsageLimit(UsageLimitPolicy[StaticUsageLimitParameters]):
    """The same ceiling for all priorities."""

    plugin_type = "static-usage-limit-policy"
    reads_saturation = False

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:  # noqa: ARG002
        return [self.parameters.threshold] * len(priorities)


class PriorityHoldbackParameters(Parameters, frozen=True):
    """Ceilings of the lowest and the highest priority."""

    min_ceiling: PositiveShare
    """That of the lowest priority, 0..1."""
    max_ceiling: PositiveShare = 1.0
    """That of the highest, 0..1."""
    shape: Literal["linear"] = "linear"
    """How ceilings grow between the two."""
    domain: Literal["rank", "value"] = "rank"
    """What they grow with: the number of priorities below, or the distance to the lowest one."""

    def __post_init__(self) -> None:
        """Refuse a ceiling that falls; raises ValueError."""
        if self.min_ceiling > self.max_ceiling:
            raise ValueError(f"minCeiling {self.min_ceiling:g} is above maxCeiling {self.max_ceiling:g}")


class PriorityHoldback(UsageLimitPolicy[PriorityHoldbackParameters]):
    """Holds room back for higher priorities: the ceiling grows from `minCeiling` to `maxCeiling`.

    Priorities are those of the configuration, 0, and that of the request; where there is one only, it has
    `maxCeiling`.
    """

    plugin_type = "priority-holdback-policy"
    reads_saturation = False
    stability = Stability.ALPHA

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:  # noqa: ARG002
        given = self.parameters
        if len(priorities) == 1:
            return [given.max_ceiling]
        if given.domain == "rank":
            places = [float(rank) for rank in range(len(priorities) - 1, -1, -1)]
        else:
            places = [float(priority - priorities[-1]) for priority in priorities]
        span = given.max_ceiling - given.min_ceiling
        return [given.min_ceiling + span * place / places[0] for place in places]


class SoftReflectiveCeiling(UsageLimitPolicy[Parameters]):
    """Lowers the ceilings of lower priorities as the pool fills: `1 - rank * saturation / (priorities - 1)`.

    `rank` is 0 for the highest priority, whose ceiling stays at 1. A priority whose ceiling is reached still gets
    through at one call in `round(saturation / (1 - saturation))`, so that nobody starves before the pool is full.
    """

    plugin_type = "soft-reflective-ceiling-policy"
    stability = Stability.ALPHA

    def setup(self) -> None:
        self._calls = 0

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        last = max(1, len(priorities) - 1)
        share = min(max(saturation, 0.0), 1.0)
        found = [1.0 - rank * share / last for rank in range(len(priorities))]
        if saturation >= 1.0:
            return found
        self._calls += 1
        if self._calls % max(1, round(share / (1.0 - share))) == 0:
            return [1.0 if saturation >= ceiling else ceiling for ceiling in found]
        return found
