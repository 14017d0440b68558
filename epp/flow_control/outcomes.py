# SPDX-License-Identifier: Apache-2.0
"""What becomes of requests that are to wait; the names are llm-d-router's."""

from enum import StrEnum


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
