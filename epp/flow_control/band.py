# SPDX-License-Identifier: Apache-2.0
"""The requests that wait at one priority: a queue for each flow, and an order of the flows."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from epp.flow_control.entrant import Entrant
from epp.flow_control.settings import BandSettings
from epp.flow_control.shares import Shares
from epp.framework.flow_control import Queued
from epp.framework.heap import Heap


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
    place in the limits and its patience, and is in nobody's way.
    """

    __slots__ = ("_arrivals", "_aside", "_flows", "_order", "_shares", "settings", "size_bytes")

    def __init__(self, settings: BandSettings) -> None:
        self.settings = settings
        self.size_bytes = 0
        """Of the bodies that wait."""
        self._arrivals: OrderedDict[int, Waiting] = OrderedDict()
        """All that wait, by number, oldest first."""
        self._aside: OrderedDict[int, Waiting] = OrderedDict()
        """Those of them that are set aside, in the order in which they were tried."""
        self._flows: dict[str, Heap[Waiting]] = {}
        """All others, by flow."""
        self._order = settings.fairness.order()
        self._shares: Shares[Waiting] | None = None if settings.fairness.in_order_of_arrival else Shares()
        """Where flows have a right to their share."""

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._arrivals)

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
        if not self._flows:
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
        if waiting.is_aside:
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

    def aside(self, most: int) -> list[Waiting]:
        """Return some of the requests that are set aside, those first that were tried longest ago."""
        return list(islice(self._aside.values(), most))

    def ahead_of(self, flow: str) -> int:
        """Return how many of these go before a request that comes to a flow, at the least."""
        if not self.settings.ordering.in_order_of_arrival:
            return 0
        queued = len(self._arrivals) - len(self._aside)
        if self.settings.fairness.in_order_of_arrival:
            return queued
        return len(self._flows[flow]) if flow in self._flows else 0

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
        flow.push(self.settings.ordering.key(waiting.queued), waiting.number, waiting)
        first = flow.first()
        if first is not None and first[1] is waiting:
            self._order.head(waiting.flow, first[0], waiting.queued)

    def _dequeue(self, waiting: Waiting, *, in_turn: bool) -> None:
        if in_turn:
            self._order.dispatched(waiting.flow)
        flow = self._flows[waiting.flow]
        was = flow.first()
        flow.discard(waiting.number)
        first = flow.first()
        if first is None:
            del self._flows[waiting.flow]
            self._order.empty(waiting.flow)
        elif was is not None and was[1] is waiting:
            self._order.head(waiting.flow, first[0], first[1].queued)
