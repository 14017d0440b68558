# SPDX-License-Identifier: Apache-2.0
"""Requests under way at the start: those of the picker before this one, taken over as engines report them."""

from collections.abc import Iterable
from math import inf, isnan

from epp.framework.snapshot import IN_FLIGHT, INHERITED, RUNNING, WAITING
from epp.routing.datastore.table import ColumnTable

_MOST = 1_000_000
"""Requests of one engine that are believed; no engine has as many."""


class Inheritance:
    """Counts, as requests in flight, what engines report beyond own requests when this picker takes over.

    At the first report of an endpoint, all that is not own is inherited. Own requests come and go with each report, so
    later ones only show how much of it can still be there: it never grows. What others send all the time, or an engine
    that does not report again, would keep it for ever: it ends at a set time.
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
        """Look at the load that is known of a slot since its last report."""
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
        """Note that the endpoints of slots left, with their numbers; others there inherit nothing."""
        self._expected.difference_update(slots)
        self._heirs.difference_update(slots)

    def sweep(self, now: float) -> bool:
        """End it if it is time; return whether that made room."""
        if now < self._until:
            return False
        self._expected.clear()
        return self.end()

    def end(self) -> bool:
        """Count nothing as inherited any more; return whether anything was."""
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
