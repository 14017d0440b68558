# SPDX-License-Identifier: Apache-2.0
"""What one configuration says of flow control."""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from epp.admission.flow_control.eviction import EvictionSettings
from epp.framework.candidates import Candidates
from epp.framework.flow_control import (
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
    saturation_of,
)


class Limits(NamedTuple):
    """Most of what may wait; 0 for any number."""

    requests: int = 0
    size_bytes: int = 0

    def allow(self, requests: int, size_bytes: int) -> bool:
        """Return whether so many requests with bodies of so many bytes may wait."""
        return (not self.requests or requests <= self.requests) and (
            not self.size_bytes or size_bytes <= self.size_bytes
        )


@dataclass(frozen=True, slots=True)
class BandSettings:
    """What holds for the requests of one priority."""

    limits: Limits
    ttl_seconds: float
    """How long they wait; infinite for as long as it takes."""
    ordering: OrderingPolicy[Any]
    fairness: FairnessPolicy[Any]

    def orders_as(self, other: "BandSettings") -> bool:
        """Return whether what waits is in the same order under both."""
        return self.ordering == other.ordering and self.fairness == other.fairness


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """Detector, policies and limits."""

    detector: SaturationDetector[Any]
    usage_limits: UsageLimitPolicy[Any]
    default_band: BandSettings
    """Of priorities of 0 and more that are not among the bands."""
    negative_band: BandSettings
    """Of priorities below 0, likewise."""
    bands: Mapping[int, BandSettings] = field(default_factory=lambda: MappingProxyType({}))
    """By priority."""
    limits: Limits = NO_LIMITS
    """For all priorities together."""
    no_endpoint_ttl_seconds: float = inf
    """How long a request waits while the pool is empty."""
    eviction: EvictionSettings | None = None
    """None where no request is ended for another."""

    def of(self, priority: int) -> BandSettings:
        """Return what holds at a priority."""
        found = self.bands.get(priority)
        if found is not None:
            return found
        return self.negative_band if priority < 0 else self.default_band

    def longest_wait(self, priority: int) -> float:
        """Return the longest time in seconds that a request may wait at a priority; infinite without a limit.

        The time begins again as the pool becomes empty, or has an endpoint again: once in the time that is returned.
        """
        return self.no_endpoint_ttl_seconds + self.of(priority).ttl_seconds

    def ceiling(self, priority: int, candidates: Candidates) -> float:
        """Return the fullness from which an endpoint has no room for requests of a priority."""
        priorities, policy = self.priorities_with(priority), self.usage_limits
        saturation = saturation_of(self.detector, candidates).effective if policy.reads_saturation else 0.0
        return policy.ceilings(priorities, saturation)[priorities.index(priority)]

    def priorities_with(self, priority: int) -> list[int]:
        """Return the priorities of the configuration, 0 and this one among them, highest first."""
        found = sorted({*self.bands, 0})
        if priority not in found:
            insort(found, priority)
        return found[::-1]
