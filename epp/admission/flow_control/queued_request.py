# SPDX-License-Identifier: Apache-2.0
"""A request in front of the pool, and its queueing outcome; the names of outcomes are llm-d-router's."""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import NamedTuple

from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.flow_control import Queued
from epp.framework.quotas import Blocked
from epp.framework.request import DataKey, Request


class Outcome(StrEnum):
    """How a request left its queue, or why it was not queued."""

    NOT_YET_FINALIZED = "NotYetFinalized"
    """It is in a queue."""
    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    """The queue was full, and the pool empty."""
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    """Its time to live in the queue ended."""
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    """Its time to live in the queue ended while the pool was empty."""
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    """Its client disconnected."""
    EVICTED_OTHER = "EvictedOther"
    """It was refused while queued: by a plugin, for a request of higher priority or a shorter flow, or at shutdown."""


class QueueingOutcome(NamedTuple):
    """The outcome of a request that passed flow control; the last one counts."""

    outcome: Outcome
    seconds: float
    """Time in a queue; 0 for a request that was not queued."""

    @property
    def waited(self) -> bool:
        """Whether the request was in a queue, and has left it."""
        return self.seconds > 0.0 or self.outcome not in _WITHOUT_QUEUE


_WITHOUT_QUEUE = frozenset(
    {
        Outcome.NOT_YET_FINALIZED,
        Outcome.DISPATCHED,
        Outcome.REJECTED_CAPACITY,
        Outcome.REJECTED_NO_ENDPOINTS,
        Outcome.REJECTED_OTHER,
    }
)
AT_ONCE = QueueingOutcome(Outcome.DISPATCHED, 0.0)
"""The outcome of a request that was not queued."""
WAITING = QueueingOutcome(Outcome.NOT_YET_FINALIZED, 0.0)
"""The outcome of a request while it is in a queue."""
QUEUEING_OUTCOME: DataKey[QueueingOutcome] = DataKey("queue-stay")


class QueuedRequest(ABC):
    """A request that may have to wait in a queue.

    Flow control calls `route` until it succeeds, or `refuse` once. It calls neither after `FlowControl.leave`.
    """

    request: Request
    is_restricted: bool = False
    """Whether the gateway allows only a part of the pool."""
    queued: Queued
    """Its position in the order of arrival; set when it enters a queue."""
    is_set_aside: bool = False
    """Whether it is out of its queue until the endpoint that it needs has room; see `Band`."""

    @property
    def number(self) -> int:
        """Number in the order of arrival."""
        return self.queued.number

    @property
    def flow(self) -> str:
        """Name of its flow: the fairness id."""
        return self.request.fairness_id

    @property
    def priority(self) -> int:
        """Priority of the request."""
        return self.request.priority

    @property
    def size_bytes(self) -> int:
        """Size of the body."""
        return self.request.size_bytes

    @abstractmethod
    def candidates(self) -> Candidates:
        """Return the endpoints that may serve the request now, full ones included."""

    def fitting(self) -> Candidates:
        """Return the endpoints that could serve the request if they had room."""
        return self.candidates()

    def blocked(self) -> Blocked | None:
        """Return the quota that the request exceeds now, wherever it is routed; None for no such quota."""
        return None

    def preempt(self) -> bool:
        """End requests of lower priority so that this one fits into its quota; return whether any will end."""
        return False

    @abstractmethod
    def route(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route the request to one of the candidates where the mask is true.

        Returns False if only candidates without room could serve it, and Blocked if it exceeds a quota at all of them.
        """

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """Answer the request with an error."""
