# SPDX-License-Identifier: Apache-2.0
"""The requests that wait at one priority: a queue for each flow, and an order of the flows."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from epp.admission.flow_control.entrant import Entrant
from epp.admission.flow_control.settings import BandSettings
from epp.admission.flow_control.shares import Shares
from epp.admission.flow_control.throttled_flows import ThrottledFlows
from epp.framework.flow_control import Queued
from epp.framework.heap import Heap
from epp.framework.quotas import Blocked


class Waiting(msgspec.Struct, eq=False):
    """A request in a queue, or set aside."""

    entrant: Entrant
    queued: Queued
    flow: str
    priority: int
    size_bytes: int
    is_aside: bool = False

    @property
    def number(self) -> int:
        """Its number in the order of arrival."""
        return self.queued.number


class Band:
    """Queues of one priority.

    A request that cannot go although others can, since it needs an endpoint that is full, is set aside: it keeps its
    place in the limits and its patience, and is in nobody's way. A flow whose first request does not fit into the quota
    of its tenant is held back likewise.
    """

    __slots__ = (
        "_arrivals",
        "_aside",
        "_flows",
        "_held",
        "_order",
        "_shares",
        "held_requests",
        "settings",
        "size_bytes",
    )

    def __init__(self, settings: BandSettings) -> None:
        self.settings = settings
        self.size_bytes = 0
        """Of the bodies that wait."""
        self.held_requests = 0
        """Requests in the queues of flows that are held back."""
        self._arrivals: OrderedDict[int, Waiting] = OrderedDict()
        """All that wait, by number, oldest first."""
        self._aside: OrderedDict[int, Waiting] = OrderedDict()
        """Those of them that are set aside, in the order in which they were tried."""
        self._flows: dict[str, Heap[Waiting]] = {}
        """All others, by flow."""
        self._held = ThrottledFlows()
        """Those of them that are not in the order."""
        self._order = settings.fairness.order()
        self._shares: Shares[Waiting] | None = None if settings.fairness.in_order_of_arrival else Shares()
        """Where flows have a right to their share."""

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._arrivals)

    def __contains__(self, number: object) -> bool:
        """Return whether the request of this number waits here."""
        return number in self._arrivals

    @property
    def flows(self) -> int:
        """Number of flows with a queue."""
        return len(self._flows)

    @property
    def oldest(self) -> Waiting | None:
        """The request that has waited longest."""
        return next(iter(self._arrivals.values()), None)

    @property
    def first(self) -> Waiting | None:
        """The request that is next; None where none is in a queue."""
        if len(self._flows) == len(self._held):
            return None
        found = self._flows[self._order.first()].first()
        return None if found is None else found[1]

    def add(self, waiting: Waiting) -> None:
        """Let a request wait."""
        self._arrivals[waiting.number] = waiting
        self.size_bytes += waiting.size_bytes
        if self._shares is not None:
            self._shares.add(waiting.flow, waiting.number, waiting.size_bytes, waiting)
        self._enqueue(waiting)

    def remove(self, waiting: Waiting, *, in_turn: bool = False) -> None:
        """Take out a request, wherever it is; `in_turn` for the first one, whose flow has had its turn."""
        del self._arrivals[waiting.number]
        self.size_bytes -= waiting.size_bytes
        if self._shares is not None:
            self._shares.remove(waiting.flow, waiting.number)
        if waiting.number in self._aside:
            del self._aside[waiting.number]
        else:
            self._dequeue(waiting, in_turn=in_turn)

    def set_aside(self, waiting: Waiting) -> None:
        """Take the first request out of its queue, or let one that is aside already be the last to be tried again."""
        if waiting.is_aside:
            self._aside.move_to_end(waiting.number)
            return
        self._dequeue(waiting, in_turn=True)
        waiting.is_aside = True
        self._aside[waiting.number] = waiting

    @property
    def next_end_of_hold(self) -> float:
        """Time at which the next held flow resumes by itself, in seconds on the clock; infinite for never."""
        return self._held.next_end

    def holds(self, flow: str) -> bool:
        """Return whether a flow is held back."""
        return flow in self._held

    def why_held(self, waiting: Waiting) -> Blocked | None:
        """Return what a request is held back for; None for one that is not."""
        return None if waiting.is_aside else self._held.why(waiting.flow)

    def some_held(self, most: int) -> list[Waiting]:
        """Return the first requests of some flows that are held back, of others each time."""
        heads = [self._flows[flow].first() for flow in self._held.some(most)]
        return [head[1] for head in heads if head is not None]

    def hold(self, flow: str, blocked: Blocked) -> None:
        """Hold back a flow, the next one say, until it is resumed."""
        self._held.add(flow, blocked)
        self.held_requests += len(self._flows[flow])
        self._order.empty(flow)

    def resume(self, flow: str) -> None:
        """Resume a held flow; no effect on others."""
        if self._held.discard(flow):
            self.held_requests -= len(self._flows[flow])
            self._head(flow)

    @property
    def held_flows(self) -> int:
        """Number of flows that are held back."""
        return len(self._held)

    def resume_some(self, most: int) -> None:
        """Resume so many flows, in rotation."""
        for flow in self._held.some(most):
            self.resume(flow)

    def resume_due(self, now: float, most: int) -> int:
        """Resume at most so many flows whose time has come; return their number."""
        for number in range(most):
            flow = self._held.due(now)
            if flow is None:
                return number
            self.resume(flow)
        return most

    def aside(self, most: int) -> list[Waiting]:
        """Return some of the requests that are set aside, those first that were tried longest ago."""
        return list(islice(self._aside.values(), most))

    def ahead_of(self, flow: str) -> int:
        """Return how many of these go before a request that comes to a flow, at the least."""
        if not self.settings.ordering.in_order_of_arrival:
            return 0
        queued = len(self._arrivals) - len(self._aside) - self.held_requests
        if self.settings.fairness.in_order_of_arrival:
            return queued
        return len(self._flows[flow]) if flow in self._flows else 0

    def in_turn(self, flow: str) -> int | None:
        """Return how many requests of a flow are in its queue; None where flows have no turns."""
        if self.settings.fairness.in_order_of_arrival:
            return None
        return len(self._flows[flow]) if flow in self._flows else 0

    def numbered(self, number: int) -> Waiting | None:
        """Return the request of this number; None where it does not wait here."""
        return self._arrivals.get(number)

    @property
    def numbers(self) -> Iterable[int]:
        """The numbers of all that wait, in the order of arrival."""
        return self._arrivals.keys()

    def forget_some(self, most: int) -> bool:
        """Free so many requests of a band that is in use no more; return whether there are more."""
        for _ in range(min(most, len(self._arrivals))):
            waiting = self._arrivals.popitem()[1]
            self._flows.pop(waiting.flow, None)
            if self._shares is not None:
                self._shares.remove(waiting.flow, waiting.number)
        return bool(self._arrivals)

    def none_aside(self) -> None:
        """Note that requests set aside here are queued in another band."""
        for waiting in self._aside.values():
            waiting.is_aside = False

    def oldest_first(self) -> Iterator[Waiting]:
        """Yield what waits, in the order of arrival."""
        return iter(self._arrivals.values())

    def giving_way(self, flow: str, size_bytes: int, *, place: bool, lacking_bytes: int) -> list[Waiting] | None:
        """Return what goes so that one more request of a flow may come; None where it is the newcomer that goes."""
        if not place and lacking_bytes <= 0:
            return []
        shares = self._shares
        return None if shares is None else shares.giving_way(flow, size_bytes, place=place, lacking_bytes=lacking_bytes)

    def last(self, *, by_bytes: bool) -> Waiting:
        """Return what goes first for a higher priority: the newest of the flow that takes most, or of all."""
        if self._shares is None:
            return next(reversed(self._arrivals.values()))
        return self._shares.newest_of_largest() if by_bytes else self._shares.newest_of_longest()

    def _enqueue(self, waiting: Waiting) -> None:
        flow = self._flows.get(waiting.flow)
        if flow is None:
            flow = self._flows[waiting.flow] = Heap()
        ordering, number = self.settings.ordering, waiting.queued.number
        key = 0.0 if ordering.in_order_of_arrival else ordering.key(waiting.queued)
        flow.push(key, number, waiting)
        first = flow.first()
        is_first = first is not None and first[1] is waiting
        if waiting.flow in self._held:
            self.held_requests += 1
            if is_first:  # which may be a smaller one
                self.resume(waiting.flow)
        elif is_first:
            self._head(waiting.flow)

    def _dequeue(self, waiting: Waiting, *, in_turn: bool) -> None:
        name = waiting.flow
        if in_turn:
            self._order.dispatched(name)
        flow = self._flows[name]
        was = flow.first()
        flow.discard(waiting.number)
        is_held = name in self._held
        self.held_requests -= is_held
        if not len(flow):
            del self._flows[name]
            if is_held:
                self._held.discard(name)
            else:
                self._order.empty(name)
        elif was is not None and was[1] is waiting:
            if is_held:
                self.resume(name)
            else:
                self._head(name)

    def _head(self, flow: str) -> None:
        first = self._flows[flow].first()
        assert first is not None  # noqa: S101  a flow without requests is dropped
        self._order.head(flow, first[0], first[1].queued)
