# SPDX-License-Identifier: Apache-2.0
"""Settings of flow control: limits, policies and times to live; and the deadlines of queued requests."""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from epp.admission.flow_control.eviction import EvictionSettings
from epp.admission.flow_control.queued_request import QueuedRequest
from epp.framework.candidates import Candidates
from epp.framework.flow_control import (
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
    saturation_of,
)
from epp.framework.rates import ttft_target_seconds
from epp.framework.request import Request


class Limits(NamedTuple):
    """Limits of queues; 0 for no limit."""

    requests: int = 0
    size_bytes: int = 0

    def allow(self, requests: int, size_bytes: int) -> bool:
        """Return whether so many requests with bodies of so many bytes may be queued."""
        return (not self.requests or requests <= self.requests) and (
            not self.size_bytes or size_bytes <= self.size_bytes
        )


@dataclass(frozen=True, slots=True)
class BandSettings:
    """Settings of the requests of one priority."""

    limits: Limits
    ttl_seconds: float
    """Time to live in the queue; infinite for no limit."""
    ordering: OrderingPolicy[Any]
    fairness: FairnessPolicy[Any]

    def orders_as(self, other: "BandSettings") -> bool:
        """Return whether queued requests have the same order under both."""
        return self.ordering == other.ordering and self.fairness == other.fairness


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """Detector, policies and limits."""

    detector: SaturationDetector[Any]
    usage_limits: UsageLimitPolicy[Any]
    default_band: BandSettings
    """For priorities of 0 and more that are not in `bands`."""
    negative_band: BandSettings
    """For priorities below 0, likewise."""
    bands: Mapping[int, BandSettings] = field(default_factory=lambda: MappingProxyType({}))
    """By priority."""
    limits: Limits = NO_LIMITS
    """For all priorities together."""
    no_endpoint_ttl_seconds: float = inf
    """Time to live in the queue while the pool is empty."""
    eviction: EvictionSettings | None = None
    """None if no request in flight may be evicted."""

    def of(self, priority: int) -> BandSettings:
        """Return the settings of a priority."""
        found = self.bands.get(priority)
        if found is not None:
            return found
        return self.negative_band if priority < 0 else self.default_band

    def longest_wait(self, priority: int) -> float:
        """Return the longest time in seconds that a request may be queued at a priority; infinite without a limit.

        The time to live starts again when the pool becomes empty or has endpoints again; that is included once.
        """
        return self.no_endpoint_ttl_seconds + self.of(priority).ttl_seconds

    def ceiling(self, priority: int, candidates: Candidates) -> float:
        """Return the fullness from which an endpoint has no room for requests of a priority."""
        priorities, policy = self.priorities_with(priority), self.usage_limits
        saturation = saturation_of(self.detector, candidates).effective if policy.reads_saturation else 0.0
        return policy.ceilings(priorities, saturation)[priorities.index(priority)]

    def priorities_with(self, priority: int) -> list[int]:
        """Return the priorities of the configuration, 0 and this one, highest first."""
        found = sorted({*self.bands, 0})
        if priority not in found:
            insort(found, priority)
        return found[::-1]


class QueueTtl:
    """Time to live in a queue; it starts again when the pool becomes empty, or has endpoints again."""

    __slots__ = ("_since", "has_endpoints")

    def __init__(self) -> None:
        self.has_endpoints = True
        """Whether the pool has endpoints."""
        self._since = -inf

    def pool_changed(self, now: float, *, has_endpoints: bool) -> None:
        """Record whether the pool has endpoints."""
        if has_endpoints != self.has_endpoints:
            self.has_endpoints = has_endpoints
            self._since = now

    def expires_at(self, queued: QueuedRequest, ttl_seconds: float, no_endpoint_ttl_seconds: float) -> float:
        """Return when a request expires; within one band, later arrivals expire later."""
        seconds = ttl_seconds if self.has_endpoints else no_endpoint_ttl_seconds
        return max(queued.queued.enqueued_at, self._since) + seconds


def due_at(request: Request) -> float:
    """Return when the first token of a request is due, in seconds on the clock; infinite without a target."""
    return request.received_at + ttft_target_seconds(request.headers)
