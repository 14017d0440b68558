# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, each credited to its endpoint until it ends, and requests inherited from an earlier picker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import NamedTuple

from epp.framework.snapshot import (
    FAILED,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    INHERITED,
    LAST_PICKED,
    RUNNING,
    SERVED,
    WAITING,
    Column,
)
from epp.routing.datastore.slots import ColumnTable


class Flow(NamedTuple):
    """Owner of work: fairness id and priority."""

    fairness_id: str
    priority: int


class Place(NamedTuple):
    slot: int
    epoch: int
    """Epoch of the slot; work of an earlier epoch belongs to an endpoint that has left."""
    flow: Flow


@dataclass(slots=True, eq=False)
class Work:
    place: Place
    requests: int = 0
    tokens: int = 0


NO_FLOW = Flow("", 0)


class Ledger:
    """Counts requests and uncached tokens in flight by slot, in the working columns of the datastore."""

    def __init__(self, table: ColumnTable, *, on_release: Callable[[], None]) -> None:
        self.sequence = 0
        """Number of the last pick; LAST_PICKED of its slot."""
        self.on_open: Callable[[], None] | None = None
        """Called for each credited request, if set."""
        self._table = table
        self._on_release = on_release
        self._epochs: dict[int, int] = {}
        self._by_place: dict[Place, Work] = {}
        self.on_next: Callable[[], None] | None = None
        """Called once, for the next credited request, if set."""

    @property
    def by_flow(self) -> Mapping[Place, Work]:
        """A copy of the work in flight, by slot and flow; may be called in any thread."""
        return {place: work for place, work in list(self._by_place.items()) if self._is_current(place)}

    def open(self, slot: int, tokens: int = 0, flow: Flow = NO_FLOW, legs: Sequence["Ticket"] = ()) -> "Ticket":
        """Credit one request of a flow, with this number of uncached tokens, to a slot."""
        self.picked(slot)
        if self.on_open is not None:
            self.on_open()
        return Ticket(self, self.enter(slot, flow, tokens), tokens, legs)

    def picked(self, slot: int) -> None:
        """Record that a request, possibly of another picker, was sent to a slot."""
        self.sequence += 1
        if self.on_next is not None:
            listener, self.on_next = self.on_next, None
            listener()
        self._table.put(LAST_PICKED, slot, self.sequence)

    def enter(self, slot: int, flow: Flow, tokens: int) -> Work:
        """Count one more request of a flow, with this number of tokens, at a slot; return the work there."""
        place = Place(slot, self._epochs.get(slot, 0), flow)
        work = self._by_place.get(place)
        if work is None:
            work = self._by_place[place] = Work(place)
        self.add(work, 1, tokens)
        return work

    def add(self, work: Work, requests: int, tokens: int, *ended: Column) -> None:
        """Add to the requests and tokens of `work`, and one to the columns of ended requests."""
        place = work.place
        work.requests += requests
        work.tokens += tokens
        if requests and not work.requests:
            del self._by_place[place]
        if not self._is_current(place):
            return
        if requests:
            self._table.add(IN_FLIGHT, place.slot, requests)
        if tokens:
            self._table.add(IN_FLIGHT_TOKENS, place.slot, tokens)
        for column in ended:
            self._table.add(column, place.slot, 1)
        if requests < 0 or tokens < 0:
            self._on_release()

    def forget(self, slot: int) -> None:
        """Void the tickets of a slot whose endpoint left, so that the next endpoint there starts from zero."""
        self._epochs[slot] = self._epochs.get(slot, 0) + 1

    def _is_current(self, place: Place) -> bool:
        return self._epochs.get(place.slot, 0) == place.epoch


@dataclass(slots=True, eq=False)
class Ticket:
    """Entry of one request in the ledger; each method may be called at any time and repeatedly."""

    _ledger: Ledger
    _work: Work
    _tokens: int
    _legs: Sequence["Ticket"] = ()
    """Entries at the targets of other legs, such as prefill, which close with the first token."""
    _closed: bool = False
    _failed: bool = False

    @property
    def slot(self) -> int:
        return self._work.place.slot

    def first_token(self) -> None:
        """Subtract the prompt's tokens, and close the other legs, since the endpoints have computed them."""
        tokens, self._tokens = self._tokens, 0
        if tokens:
            self._ledger.add(self._work, 0, -tokens)
        for leg in self._legs:
            leg.close()

    def move(self, slot: int) -> None:
        """Credit another slot instead, since the gateway used that endpoint."""
        if not self._closed and slot != self.slot:
            self._ledger.add(self._work, -1, -self._tokens)
            self._work = self._ledger.enter(slot, self._work.place.flow, self._tokens)

    def close(self, *, failed: bool = False) -> None:
        """Subtract the request and its tokens, and count it as served, and also as failed if it failed."""
        if self._closed:
            return
        self.first_token()
        self._closed, self._failed = True, failed
        self._ledger.add(self._work, -1, 0, SERVED, *((FAILED,) if failed else ()))

    def fail(self) -> None:
        if self._closed and not self._failed:
            self._failed = True
            self._ledger.add(self._work, 0, 0, FAILED)


_MOST = 1_000_000
"""Largest plausible number of requests of one engine."""


@dataclass(slots=True, eq=False)
class Inheritance:
    """Counts requests of an earlier picker as in flight, after this picker takes over.

    At the first report of an endpoint, all requests beyond own ones are inherited. Later reports can only reduce that
    number. Inheritance ends at a set time, because other clients, or an engine that never reports again, would keep it
    forever.
    """

    _table: ColumnTable
    _expected: set[int] = field(default_factory=set)
    """Slots whose first report is pending."""
    _heirs: set[int] = field(default_factory=set)
    _until: float = -inf

    @property
    def is_active(self) -> bool:
        """Whether some slots have inherited requests, or still may, so that reports are needed."""
        return bool(self._expected or self._heirs)

    def begin(self, slots: Iterable[int], now: float, seconds: float) -> None:
        """Take over from another picker at these slots; slots with a report inherit according to it."""
        self.end()
        self._until = now + seconds
        self._expected = set(slots)
        for slot in tuple(self._expected):
            self.reported(slot, now)

    def reported(self, slot: int, now: float) -> None:
        """Update the inherited requests of a slot from its last report."""
        if slot in self._heirs:
            most = self._table.get(INHERITED, slot)
        elif slot in self._expected:
            most = _MOST
        else:
            return
        numbers = [self._table.get(WAITING, slot), self._table.get(RUNNING, slot)]
        known = [max(0.0, number) for number in numbers if not isnan(number)]
        if not known:
            return
        self._expected.discard(slot)
        if now >= self._until:
            self._put(slot, 0)
            return
        own = self._table.get(IN_FLIGHT, slot) - self._table.get(INHERITED, slot)
        self._put(slot, min(most, max(0.0, int(min(sum(known), _MOST)) - own)))

    def forget(self, slot: int) -> None:
        """Forget a slot whose endpoint left; the next endpoint there inherits nothing."""
        self._expected.discard(slot)
        self._heirs.discard(slot)

    def sweep(self, now: float) -> bool:
        """End the inheritance if its time is over; return whether that made room."""
        if now < self._until:
            return False
        self._expected.clear()
        return self.end()

    def end(self) -> bool:
        heirs = tuple(self._heirs)
        if not heirs:
            return False
        self._table.take(INHERITED, heirs, IN_FLIGHT)
        self._heirs.clear()
        return True

    def _put(self, slot: int, count: float) -> None:
        change = count - self._table.get(INHERITED, slot)
        if change:
            self._table.add(INHERITED, slot, change)
            self._table.add(IN_FLIGHT, slot, change)
        if count:
            self._heirs.add(slot)
        else:
            self._heirs.discard(slot)
