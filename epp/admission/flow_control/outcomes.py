# SPDX-License-Identifier: Apache-2.0
"""Outcome of a request's time in a queue, and its duration; the names are llm-d-router's."""

from enum import StrEnum
from typing import NamedTuple

from epp.framework.request import DataKey


class Outcome(StrEnum):
    """How a request left its queue, or why it never got in."""

    NOT_YET_FINALIZED = "NotYetFinalized"
    """It waits."""
    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    """The queue was full, and the pool empty."""
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    """It waited too long."""
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    """It waited too long, and the pool is empty."""
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    """Its client left."""
    EVICTED_OTHER = "EvictedOther"
    """It was refused while it waited: by a plugin, for one of higher priority or a shorter flow, or since the
    picker stops."""


class QueueingOutcome(NamedTuple):
    """Of requests that flow control has seen; the last one counts."""

    outcome: Outcome
    seconds: float
    """Time in a queue; 0 for a request that went at once, or was turned away."""

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
"""That of a request which was in no queue."""
WAITING = QueueingOutcome(Outcome.NOT_YET_FINALIZED, 0.0)
"""That of a request which is in one."""
QUEUEING_OUTCOME: DataKey[QueueingOutcome] = DataKey("queue-stay")
