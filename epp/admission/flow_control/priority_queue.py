# SPDX-License-Identifier: Apache-2.0
"""Queued requests of one priority: flows with their queues, shares and throttles, and the order of flows."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from math import inf

from epp.admission.flow_control.settings import BandSettings, QueuedRequest
from epp.framework.flow_control import SortedEntries
from epp.framework.quotas import Blocked

_MOST_VICTIMS = 32
"""Largest number of requests to evict for one with a long body."""


class ThrottledFlows:
    """Flows that are not dispatched, since the quota of their tenant is used up, and the times when they resume."""

    def __init__(self) -> None:
        self._blocked: dict[str, Blocked] = {}
        self._ends: SortedEntries[str, float, str] = SortedEntries()
        """Flows that resume at a known time."""

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
        return self._blocked.get(flow)

    def add(self, flow: str, blocked: Blocked) -> None:
        self._blocked[flow] = blocked
        if blocked.until is not None:
            self._ends.push(blocked.until, flow, flow)

    def discard(self, flow: str) -> bool:
        self._ends.discard(flow)
        return self._blocked.pop(flow, None) is not None

    def some(self, most: int) -> list[str]:
        """Return at most `most` flows, in rotation."""
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

    def __init__(self) -> None:
        self._flows: dict[str, OrderedDict[int, QueuedRequest]] = {}
        """Requests of each flow by number, oldest first."""
        self._size_bytes: dict[str, int] = {}
        self._longest: SortedEntries[str, tuple[float, ...], str] = SortedEntries()
        """Flows by requests, then bytes, in descending order, so keys are negative."""
        self._largest: SortedEntries[str, tuple[float, ...], str] = SortedEntries()
        """Flows by bytes, then requests, in descending order."""

    def add(self, queued: QueuedRequest) -> None:
        self._flows.setdefault(queued.flow, OrderedDict())[queued.number] = queued
        self._resize(queued.flow, queued.size_bytes)

    def remove(self, queued: QueuedRequest) -> None:
        del self._flows[queued.flow][queued.number]
        self._resize(queued.flow, -queued.size_bytes)

    def last(self, *, by_bytes: bool) -> QueuedRequest:
        """Return the newest request of the flow with most bytes or most requests; the band must not be empty."""
        return next(self._newest(_first_of(self._largest if by_bytes else self._longest)))

    def victims(
        self, flow: str, size_bytes: int, *, needs_place: bool, lacking_bytes: int
    ) -> list[QueuedRequest] | None:
        """Return the requests to evict for one more request of a flow; None if that would not be fair.

        The flow with most requests gives up a place, and the flow with most bytes gives up bytes, the newest requests
        first. A flow that loses requests keeps at least as much as the flow of the new request then has.
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


def _first_of(flows: SortedEntries[str, tuple[float, ...], str]) -> str:
    found = flows.first()
    return "" if found is None else found[1]


class Band:
    """Queues of one priority.

    A request that needs an endpoint without room is set aside while others can be dispatched: it still counts for the
    limits and keeps its time to live, but does not block its queue. A flow is throttled while its first request does
    not fit into the quota of its tenant.
    """

    def __init__(self, settings: BandSettings) -> None:
        self.settings = settings
        self.size_bytes = 0
        """Bytes of all bodies."""
        self.throttled_requests = 0
        """Requests in the queues of throttled flows."""
        self.arrivals: OrderedDict[int, QueuedRequest] = OrderedDict()
        """All requests by number, oldest first."""
        self._set_aside: OrderedDict[int, QueuedRequest] = OrderedDict()
        """Requests that are set aside, the least recently tried first."""
        self._flows: dict[str, SortedEntries[QueuedRequest]] = {}
        """All other requests, by flow."""
        self.throttled = ThrottledFlows()
        """Flows that are not in the order of flows."""
        self._order = settings.fairness.order()
        self._shares: Shares | None = None if settings.fairness.in_order_of_arrival else Shares()
        """Shares of flows; None if requests are dispatched in order of arrival."""

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def oldest(self) -> QueuedRequest | None:
        return next(iter(self.arrivals.values()), None)

    @property
    def first(self) -> QueuedRequest | None:
        """The request to dispatch next; None if all are throttled or set aside."""
        if len(self._flows) == len(self.throttled):
            return None
        found = self._flows[self._order.first()].first()
        return None if found is None else found[1]

    def add(self, queued: QueuedRequest) -> None:
        self.arrivals[queued.number] = queued
        self.size_bytes += queued.size_bytes
        if self._shares is not None:
            self._shares.add(queued)
        self._enqueue(queued)

    def remove(self, queued: QueuedRequest, *, dispatched: bool = False) -> None:
        """Remove a request; `dispatched` if it was the first one, which the order of flows then counts."""
        del self.arrivals[queued.number]
        self.size_bytes -= queued.size_bytes
        if self._shares is not None:
            self._shares.remove(queued)
        if queued.number in self._set_aside:
            del self._set_aside[queued.number]
        else:
            self._dequeue(queued, dispatched=dispatched)

    def set_aside(self, queued: QueuedRequest) -> None:
        """Set the first request aside; a request that is set aside already is tried again after all others."""
        if queued.is_set_aside:
            self._set_aside.move_to_end(queued.number)
            return
        self._dequeue(queued, dispatched=True)
        queued.is_set_aside = True
        self._set_aside[queued.number] = queued

    def some_set_aside(self, most: int) -> list[QueuedRequest]:
        """Return some of the requests that are set aside, the least recently tried first."""
        return list(islice(self._set_aside.values(), most))

    def clear_set_aside(self) -> None:
        """Unmark the requests that are set aside, since another band has queued them."""
        for queued in self._set_aside.values():
            queued.is_set_aside = False

    def throttled_by(self, queued: QueuedRequest) -> Blocked | None:
        return None if queued.is_set_aside else self.throttled.why(queued.flow)

    def some_throttled(self, most: int) -> list[QueuedRequest]:
        """Return the first requests of some throttled flows, in rotation."""
        heads = [self._flows[flow].first() for flow in self.throttled.some(most)]
        return [head[1] for head in heads if head is not None]

    def throttle(self, flow: str, blocked: Blocked) -> None:
        self.throttled.add(flow, blocked)
        self.throttled_requests += len(self._flows[flow])
        self._order.empty(flow)

    def resume(self, flow: str) -> None:
        if self.throttled.discard(flow):
            self.throttled_requests -= len(self._flows[flow])
            self._update_head(flow)

    def resume_due(self, now: float, most: int) -> int:
        """Resume at most `most` flows that are due; return their number."""
        for number in range(most):
            flow = self.throttled.due(now)
            if flow is None:
                return number
            self.resume(flow)
        return most

    def ahead_of(self, flow: str) -> int:
        """Return the smallest number of requests that are dispatched before a new request of a flow."""
        if not self.settings.ordering.in_order_of_arrival:
            return 0
        if self.settings.fairness.in_order_of_arrival:
            return len(self.arrivals) - len(self._set_aside) - self.throttled_requests
        return len(self._flows.get(flow, ()))

    def queue_length(self, flow: str) -> int | None:
        """Return the number of requests in the queue of a flow; None if flows have no shares."""
        return None if self.settings.fairness.in_order_of_arrival else len(self._flows.get(flow, ()))

    def free_some(self, most: int) -> bool:
        """Free at most `most` requests of a band that is no longer used; return whether any are left."""
        for _ in range(min(most, len(self.arrivals))):
            queued = self.arrivals.popitem()[1]
            self._flows.pop(queued.flow, None)
            if self._shares is not None:
                self._shares.remove(queued)
        return bool(self.arrivals)

    def victims(
        self, flow: str, size_bytes: int, *, needs_place: bool, lacking_bytes: int
    ) -> list[QueuedRequest] | None:
        """Return the requests to evict for one more request of a flow; None if the new one must be refused."""
        if not needs_place and lacking_bytes <= 0:
            return []
        if self._shares is None:
            return None
        return self._shares.victims(flow, size_bytes, needs_place=needs_place, lacking_bytes=lacking_bytes)

    def last(self, *, by_bytes: bool) -> QueuedRequest:
        """Return the request to evict first for a higher priority: the newest of the largest flow, or of all."""
        if self._shares is None:
            return next(reversed(self.arrivals.values()))
        return self._shares.last(by_bytes=by_bytes)

    def _enqueue(self, queued: QueuedRequest) -> None:
        name, ordering = queued.flow, self.settings.ordering
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = SortedEntries()
        key = 0.0 if ordering.in_order_of_arrival else ordering.key(queued.queued)
        flow.push(key, queued.number, queued)
        first = flow.first()
        is_first = first is not None and first[1] is queued
        if name in self.throttled:
            self.throttled_requests += 1
            if is_first:  # it may be smaller and fit
                self.resume(name)
        elif is_first:
            self._update_head(name)

    def _dequeue(self, queued: QueuedRequest, *, dispatched: bool) -> None:
        name = queued.flow
        if dispatched:
            self._order.dispatched(name)
        flow = self._flows[name]
        was = flow.first()
        flow.discard(queued.number)
        is_throttled = name in self.throttled
        self.throttled_requests -= is_throttled
        if not len(flow):
            del self._flows[name]
            if is_throttled:
                self.throttled.discard(name)
            else:
                self._order.empty(name)
        elif was is not None and was[1] is queued:
            if is_throttled:
                self.resume(name)
            else:
                self._update_head(name)

    def _update_head(self, flow: str) -> None:
        first = self._flows[flow].first()
        assert first is not None  # noqa: S101  flows without requests are dropped
        self._order.head(flow, first[0], first[1].queued)
