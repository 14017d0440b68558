# SPDX-License-Identifier: Apache-2.0
"""Deadlines of queued requests: their time to live in the queue, and targets for the first token."""

from math import inf

from epp.admission.flow_control.queued_request import QueuedRequest
from epp.framework.heap import Heap
from epp.framework.rates import ttft_target_seconds
from epp.framework.request import Request


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


class FirstTokenDeadlines:
    """Queued requests with a target for the first token, by due time."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: Heap[QueuedRequest] = Heap()

    @property
    def next(self) -> float:
        """The earliest due time; infinite without one."""
        first = self._due.first()
        return inf if first is None else first[0]

    def add(self, queued: QueuedRequest) -> None:
        """Add a request, if it has a target."""
        due = due_at(queued.request)
        if due < inf:
            self._due.push(due, queued.number, queued)

    def discard(self, queued: QueuedRequest) -> None:
        """Remove a request, if it is there."""
        self._due.discard(queued.number)

    def missed(self, now: float) -> QueuedRequest | None:
        """Return a request that is past its due time; None without one."""
        first = self._due.first()
        return None if first is None or first[0] > now else first[1]
