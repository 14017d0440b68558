# SPDX-License-Identifier: Apache-2.0
"""Settings of flow control, the interface of queued requests, and outcomes with the names of llm-d-router."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from epp.admission.flow_control.in_flight_eviction import EvictionSettings
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.expected_times import ttft_target_seconds
from epp.framework.flow_control import (
    FairnessPolicy,
    OrderingPolicy,
    Queued,
    SaturationDetector,
    UsageLimitPolicy,
    saturation_of,
)
from epp.framework.quotas import Blocked
from epp.framework.request import DataKey, Request


class Outcome(StrEnum):
    """Reason that a request left its queue or was not queued."""

    NOT_YET_FINALIZED = "NotYetFinalized"
    """The request is still queued."""
    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    """The queue was full, and the pool empty."""
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    """The request's time to live in the queue expired."""
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    """The request's time to live in the queue expired while the pool was empty."""
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    """The client disconnected."""
    EVICTED_OTHER = "EvictedOther"
    """Refused while queued: by a plugin, for a request of higher priority or a shorter flow, or at shutdown."""


class QueueingOutcome(NamedTuple):
    """Outcome of a request in flow control."""

    outcome: Outcome
    seconds: float
    """Time in a queue; 0 for a request that was not queued."""

    @property
    def waited(self) -> bool:
        """Whether the request was queued, and has left the queue."""
        return self.seconds > 0.0 or self.outcome.startswith("Evicted")


AT_ONCE = QueueingOutcome(Outcome.DISPATCHED, 0.0)
WAITING = QueueingOutcome(Outcome.NOT_YET_FINALIZED, 0.0)
QUEUEING_OUTCOME: DataKey[QueueingOutcome] = DataKey("queue-stay")


class QueuedRequest(ABC):
    """A request that may have to wait in a queue.

    Flow control calls `route` until it succeeds, or `refuse` once. It calls neither after `FlowControl.leave`.
    """

    request: Request
    is_restricted: bool = False
    """Whether the gateway allows only a part of the pool."""
    queued: Queued
    """Position in the order of arrival; set when the request enters a queue."""
    is_set_aside: bool = False
    """Whether it is not in its queue, because the endpoint that it needs has no room; see `Band`."""

    @property
    def number(self) -> int:
        return self.queued.number

    @property
    def flow(self) -> str:
        return self.request.fairness_id

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def size_bytes(self) -> int:
        return self.request.size_bytes

    @abstractmethod
    def candidates(self) -> Candidates:
        """Return the endpoints that may serve the request now, including full ones."""

    def fitting(self) -> Candidates:
        """Return the endpoints that could serve the request if they had room."""
        return self.candidates()

    def blocked(self) -> Blocked | None:
        """Return the quota that the request exceeds now at every endpoint; None if there is none."""
        return None

    def preempt(self) -> bool:
        """Evict requests of lower priority to fit this one into its quota; return whether any are evicted."""
        return False

    @abstractmethod
    def route(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route the request to one of the candidates where the mask is true.

        Returns False if only candidates without room could serve it, and Blocked if it exceeds a quota at all of them.
        """

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """Answer the request with an error."""


class Limits(NamedTuple):
    """Limits of queues; 0 for no limit."""

    requests: int = 0
    size_bytes: int = 0

    def allow(self, requests: int, size_bytes: int) -> bool:
        return (not self.requests or requests <= self.requests) and (
            not self.size_bytes or size_bytes <= self.size_bytes
        )


@dataclass(frozen=True, slots=True)
class BandSettings:
    limits: Limits
    ttl_seconds: float
    """Time to live in the queue; infinite for no limit."""
    ordering: OrderingPolicy[Any]
    fairness: FairnessPolicy[Any]


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    detector: SaturationDetector[Any]
    usage_limits: UsageLimitPolicy[Any]
    default_band: BandSettings
    """Settings for priorities of 0 and more that are not in `bands`."""
    negative_band: BandSettings
    """Settings for priorities below 0 that are not in `bands`."""
    bands: Mapping[int, BandSettings] = field(default_factory=lambda: MappingProxyType({}))
    limits: Limits = NO_LIMITS
    """Limits on all priorities together."""
    no_endpoint_ttl_seconds: float = inf
    """Time to live in the queue while the pool is empty."""
    eviction: EvictionSettings | None = None
    """None if no request in flight may be evicted."""

    def of(self, priority: int) -> BandSettings:
        return self.bands.get(priority) or (self.negative_band if priority < 0 else self.default_band)

    def longest_wait(self, priority: int) -> float:
        """Return the longest time in seconds that a request of a priority may be queued; infinite without a limit.

        The time to live restarts when the pool becomes empty or has endpoints again; one restart is included.
        """
        return self.no_endpoint_ttl_seconds + self.of(priority).ttl_seconds

    def may_wait(self, blocked: Blocked, priority: int, now: float) -> bool:
        """Return whether a request may wait for the quota of its tenant, and fits before its time to live ends."""
        return blocked.waits and (blocked.until is None or blocked.until - now <= self.of(priority).ttl_seconds)

    def ceiling(self, priority: int, candidates: Candidates) -> float:
        """Return the fullness from which an endpoint has no room for requests of a priority."""
        priorities, policy = self.priorities_with(priority), self.usage_limits
        saturation = saturation_of(self.detector, candidates).effective if policy.reads_saturation else 0.0
        return policy.ceilings(priorities, saturation)[priorities.index(priority)]

    def priorities_with(self, priority: int) -> list[int]:
        """Return the configured priorities, 0 and this one, in descending order."""
        return sorted({*self.bands, 0, priority}, reverse=True)


def due_at(request: Request) -> float:
    """Return the time at which the first token is due, in seconds on the clock; infinite without a target."""
    return request.received_at + ttft_target_seconds(request.headers)
