# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, each credited to its endpoint until it ends; and those inherited from an earlier picker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isnan
from typing import NamedTuple

from epp.framework.snapshot import FAILED, IN_FLIGHT, IN_FLIGHT_TOKENS, INHERITED, LAST_PICKED, RUNNING, SERVED, WAITING
from epp.routing.datastore.slots import ColumnTable


class Flow(NamedTuple):
    """Owner of work: fairness id and priority."""

    fairness_id: str
    priority: int


class Place(NamedTuple):
    """Slot and flow of running work."""

    slot: int
    epoch: int
    """Epoch of the slot; work of an earlier epoch belongs to an endpoint that has left."""
    flow: Flow


class Work:
    """Work of a flow at an endpoint."""

    __slots__ = ("place", "requests", "tokens")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.requests = 0
        self.tokens = 0
        """Uncached tokens of prompts."""


NO_FLOW = Flow("", 0)


class Ledger:
    """Counts requests and uncached tokens under way by slot, in the datastore's working columns."""

    __slots__ = ("_by_place", "_epochs", "_on_next", "_on_release", "_sequence", "_table")

    def __init__(self, table: ColumnTable, *, on_release: Callable[[], None]) -> None:
        self._table = table
        self._on_release = on_release
        self._epochs: dict[int, int] = {}
        self._by_place: dict[Place, Work] = {}
        self._sequence = 0
        self._on_next: Callable[[], None] | None = None

    @property
    def sequence(self) -> int:
        """Number of the last request that was credited; LAST_PICKED of its slot."""
        return self._sequence

    @property
    def by_flow(self) -> Mapping[Place, Work]:
        """A copy of the running work, by slot and flow; may be called in any thread."""
        return {
            place: work
            for place, work in list(self._by_place.items())
            if place.epoch == self._epochs.get(place.slot, 0)
        }

    def call_on_next(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` once, with the next credited request; None removes it."""
        self._on_next = listener

    def open(self, slot: int, tokens: int = 0, flow: Flow = NO_FLOW) -> "Ticket":
        """Credit one request of a flow, with so many uncached tokens, to a slot."""
        self._sequence += 1
        if self._on_next is not None:
            listener, self._on_next = self._on_next, None
            listener()
        self._table.put(LAST_PICKED, slot, self._sequence)
        self._table.add(IN_FLIGHT, slot, 1)
        if tokens:
            self._table.add(IN_FLIGHT_TOKENS, slot, tokens)
        epoch = self._epochs.get(slot, 0)
        return Ticket(self, slot, epoch, tokens, self.add_work(Place(slot, epoch, flow), tokens))

    def add_work(self, place: Place, tokens: int) -> Work:
        """Count one more request with so many tokens at a place; return the work there."""
        work = self._by_place.get(place)
        if work is None:
            work = self._by_place[place] = Work(place)
        work.requests += 1
        work.tokens += tokens
        return work

    def take_work(self, work: Work, tokens: int) -> None:
        """Subtract one request with so many tokens."""
        work.requests -= 1
        work.tokens -= tokens
        if not work.requests:
            del self._by_place[work.place]

    def forget(self, *slots: int) -> None:
        """Void the tickets of slots whose endpoints left: the next endpoints there start from zero."""
        for slot in slots:
            self._epochs[slot] = self._epochs.get(slot, 0) + 1

    def release_tokens(self, slot: int, epoch: int, tokens: int) -> None:
        """Subtract tokens."""
        if self._epochs.get(slot, 0) == epoch:
            self._table.add(IN_FLIGHT_TOKENS, slot, -tokens)
            self._on_release()

    def release_request(self, slot: int, epoch: int, *, failed: bool) -> None:
        """Subtract one request and count it as served, and as failed if it failed."""
        if self._epochs.get(slot, 0) == epoch:
            self._table.add(IN_FLIGHT, slot, -1)
            self._table.add(SERVED, slot, 1)
            if failed:
                self._table.add(FAILED, slot, 1)
            self._on_release()

    def count_failed(self, slot: int, epoch: int) -> None:
        """Count a subtracted request as failed."""
        if self._epochs.get(slot, 0) == epoch:
            self._table.add(FAILED, slot, 1)

    def transfer(self, slot: int, epoch: int, tokens: int, to_slot: int) -> int:
        """Move one request's credit to another slot; return that slot's epoch."""
        if self._epochs.get(slot, 0) == epoch:
            self._table.add(IN_FLIGHT, slot, -1)
            self._table.add(IN_FLIGHT_TOKENS, slot, -tokens)
        self._table.add(IN_FLIGHT, to_slot, 1)
        self._table.add(IN_FLIGHT_TOKENS, to_slot, tokens)
        self._on_release()
        return self._epochs.get(to_slot, 0)


class Ticket:
    """One request's entry in the ledger; every verb may be called at any time, any number of times."""

    __slots__ = ("_closed", "_epoch", "_failed", "_ledger", "_slot", "_tokens", "_work")

    def __init__(self, ledger: Ledger, slot: int, epoch: int, tokens: int, work: Work) -> None:
        self._ledger = ledger
        self._slot = slot
        self._epoch = epoch
        self._tokens = tokens
        self._work = work
        self._closed = False
        self._failed = False

    @property
    def slot(self) -> int:
        """The slot that is credited."""
        return self._slot

    def first_token(self) -> None:
        """Subtract the prompt's tokens: the endpoint has computed them."""
        tokens, self._tokens = self._tokens, 0
        if tokens:
            self._work.tokens -= tokens
            self._ledger.release_tokens(self._slot, self._epoch, tokens)

    def move(self, slot: int) -> None:
        """Credit another slot instead: the gateway used that endpoint."""
        if not self._closed and slot != self._slot:
            self._ledger.take_work(self._work, self._tokens)
            self._epoch = self._ledger.transfer(self._slot, self._epoch, self._tokens, slot)
            self._work = self._ledger.add_work(Place(slot, self._epoch, self._work.place.flow), self._tokens)
            self._slot = slot

    def close(self, *, failed: bool = False) -> None:
        """Subtract everything: the response ended."""
        if self._closed:
            return
        self._closed = True
        self._failed = failed
        self.first_token()
        self._ledger.take_work(self._work, 0)
        self._ledger.release_request(self._slot, self._epoch, failed=failed)

    def fail(self) -> None:
        """Count a closed request as failed."""
        if self._closed and not self._failed:
            self._failed = True
            self._ledger.count_failed(self._slot, self._epoch)


class Credit:
    """The ledger entries of one request: that of its target, and those of the targets of other legs."""

    __slots__ = ("_legs", "_target")

    def __init__(self, target: Ticket, legs: Sequence[Ticket] = ()) -> None:
        self._target = target
        self._legs = legs

    @property
    def slot(self) -> int:
        """The slot that the target's work is credited to."""
        return self._target.slot

    def first_token(self) -> None:
        """Release the prompt, and the work of all other legs: the first token shows that they are done."""
        self._target.first_token()
        self._close_legs()

    def move(self, slot: int) -> None:
        """Credit another slot than the target's: the gateway used that endpoint."""
        self._target.move(slot)

    def close(self, *, failed: bool) -> None:
        """Release everything: the response ended."""
        self._target.close(failed=failed)
        self._close_legs()

    def fail(self) -> None:
        """Count the request as failed at its target, after it was released."""
        self._target.fail()

    def _close_legs(self) -> None:
        for leg in self._legs:
            leg.close()


_MOST = 1_000_000
"""Largest plausible number of requests of one engine."""


class Inheritance:
    """Counts, as requests in flight, what engines report beyond own requests when this picker takes over.

    At the first report of an endpoint, all requests beyond own ones are inherited. Later reports can only reduce that
    number. It ends at a set time, because other clients, or an engine that never reports again, would keep it for
    ever.
    """

    __slots__ = ("_expected", "_heirs", "_table", "_until")

    def __init__(self, table: ColumnTable) -> None:
        self._table = table
        self._expected: set[int] = set()
        """Slots whose first report is to come."""
        self._heirs: set[int] = set()
        """Slots with inherited requests."""
        self._until = -inf

    def begin(self, slots: Iterable[int], now: float, seconds: float) -> None:
        """Take over from another picker at these slots; slots with a report inherit by their last report."""
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

    def forget(self, *slots: int) -> None:
        """Forget slots whose endpoints left; the next endpoints there inherit nothing."""
        self._expected.difference_update(slots)
        self._heirs.difference_update(slots)

    def sweep(self, now: float) -> bool:
        """End the inheritance if it is time; return whether that made room."""
        if now < self._until:
            return False
        self._expected.clear()
        return self.end()

    def end(self) -> bool:
        """End all inheritance; return whether there was any."""
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
