# SPDX-License-Identifier: Apache-2.0
"""Flows of a band: their shares of its limits, and flows that are throttled by a quota."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from math import inf

from epp.admission.flow_control.queued_request import QueuedRequest
from epp.framework.heap import Heap
from epp.framework.quotas import Blocked

_MOST_VICTIMS = 32
"""Requests to evict for one with a long body."""


class ThrottledFlows:
    """Flows that are not dispatched, since the quota of their tenant is used up; and the time when each resumes."""

    __slots__ = ("_blocked", "_ends", "_numbers")

    def __init__(self) -> None:
        self._blocked: dict[str, tuple[int, Blocked]] = {}
        self._ends: Heap[str] = Heap()
        """Flows that resume at a known time."""
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._blocked)

    def __contains__(self, flow: object) -> bool:
        return flow in self._blocked

    @property
    def next_end(self) -> float:
        """Time when the first flow resumes, in seconds on the clock; infinite without one."""
        first = self._ends.first()
        return inf if first is None else first[0]

    def why(self, flow: str) -> Blocked | None:
        """Return the quota that throttles a flow; None if the flow is not throttled."""
        found = self._blocked.get(flow)
        return None if found is None else found[1]

    def add(self, flow: str, blocked: Blocked) -> None:
        """Throttle a flow that is not throttled."""
        self._numbers += 1
        self._blocked[flow] = self._numbers, blocked
        if blocked.until is not None:
            self._ends.push(blocked.until, self._numbers, flow)

    def discard(self, flow: str) -> bool:
        """Resume a flow; return whether it was throttled."""
        found = self._blocked.pop(flow, None)
        if found is None:
            return False
        self._ends.discard(found[0])
        return True

    def some(self, most: int) -> list[str]:
        """Return at most so many flows, in rotation."""
        flows = list(islice(self._blocked, most))
        for flow in flows:
            self._blocked[flow] = self._blocked.pop(flow)
        return flows

    def due(self, now: float) -> str | None:
        """Return a flow that resumes now; None without one."""
        first = self._ends.first()
        return None if first is None or first[0] > now else first[1]


class Shares:
    """Queued requests of one band by flow; their numbers are unique and ascending."""

    __slots__ = ("_flows", "_largest", "_longest", "_size_bytes")

    def __init__(self) -> None:
        self._flows: dict[str, OrderedDict[int, QueuedRequest]] = {}
        """Requests of each flow by number, oldest first."""
        self._size_bytes: dict[str, int] = {}
        self._longest: Heap[str, tuple[float, ...], str] = Heap()
        """Flows by requests, then bytes, most first: keys are negative."""
        self._largest: Heap[str, tuple[float, ...], str] = Heap()
        """Flows by bytes, then requests, likewise."""

    def add(self, queued: QueuedRequest) -> None:
        """Add a request."""
        self._flows.setdefault(queued.flow, OrderedDict())[queued.number] = queued
        self._resize(queued.flow, queued.size_bytes)

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request."""
        del self._flows[queued.flow][queued.number]
        self._resize(queued.flow, -queued.size_bytes)

    def newest_of_longest(self) -> QueuedRequest:
        """Return the newest request of the flow with most requests; there must be one."""
        return next(self._newest(_first_of(self._longest)))

    def newest_of_largest(self) -> QueuedRequest:
        """Return the newest request of the flow with most bytes; there must be one."""
        return next(self._newest(_first_of(self._largest)))

    def victims(
        self, flow: str, size_bytes: int, *, needs_place: bool, lacking_bytes: int
    ) -> list[QueuedRequest] | None:
        """Return the requests to evict for one more request of a flow; None if that would not be fair.

        A place comes from the flow with most requests, bytes from the flow with most bytes, the newest requests first.
        A flow that loses requests keeps at least as much as the flow of the new request then has.
        """
        found: list[QueuedRequest] = []
        longest = _first_of(self._longest)
        if needs_place:
            if self._requests_of(longest) - 1 < self._requests_of(flow) + 1:
                return None
            found.append(next(self._newest(longest)))
            lacking_bytes -= found[0].size_bytes
        if lacking_bytes <= 0:
            return found
        largest = _first_of(self._largest)
        own = self._size_bytes.get(flow, 0) + size_bytes
        left = self._size_bytes.get(largest, 0)
        begun = len(found) if largest == longest else 0
        left -= sum(each.size_bytes for each in found[:begun])
        for entry in islice(self._newest(largest), begun, _MOST_VICTIMS):
            left -= entry.size_bytes
            if left < own:
                return None
            found.append(entry)
            lacking_bytes -= entry.size_bytes
            if lacking_bytes <= 0:
                return found
        return None

    def _newest(self, flow: str) -> Iterator[QueuedRequest]:
        return reversed(self._flows.get(flow, OrderedDict()).values())

    def _requests_of(self, flow: str) -> int:
        return len(self._flows.get(flow, ()))

    def _resize(self, flow: str, more_bytes: int) -> None:
        requests, size_bytes = len(self._flows[flow]), self._size_bytes.get(flow, 0) + more_bytes
        if requests:
            self._size_bytes[flow] = size_bytes
            self._longest.push((-requests, -size_bytes), flow, flow)
            self._largest.push((-size_bytes, -requests), flow, flow)
        else:
            del self._flows[flow], self._size_bytes[flow]
            self._longest.discard(flow)
            self._largest.discard(flow)


def _first_of(flows: Heap[str, tuple[float, ...], str]) -> str:
    """Return the first flow; empty without one."""
    found = flows.first()
    return "" if found is None else found[1]
