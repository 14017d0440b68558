# SPDX-License-Identifier: Apache-2.0
"""Arrays computed from what endpoints report, shared by the requests between two reports."""

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from epp.framework.arrays import Floats, Positions
from epp.framework.candidates import Candidates
from epp.framework.snapshot import Column, Snapshot


class BySlot(Protocol):
    """Arrays with one number for each slot, or for each of some slots."""

    def at(self, slots: Positions) -> Self:
        """Return the numbers of these slots, in this order."""


T = TypeVar("T", bound=BySlot)


class Reported(Generic[T]):
    """Arrays built from columns of a snapshot, kept until one of them is written.

    For columns that change with reports: those that change with each request, such as IN_FLIGHT, would have them built
    for each. The same function builds them at each call, from these columns and what never changes.
    """

    __slots__ = ("_arrays", "_available", "_by_slot", "_names", "_of_available")

    def __init__(self, *columns: Column) -> None:
        self._names = tuple(column.name for column in columns)
        self._arrays: tuple[Floats | None, ...] = ()
        self._by_slot: T | None = None
        self._available: Positions | None = None
        self._of_available: T | None = None

    def of(self, candidates: Candidates, build: Callable[[Snapshot], T]) -> T | None:
        """Return the arrays of the candidates.

        None where stale load is hidden from them: then the columns are not what they see.
        """
        if candidates.hides_load:
            return None
        by_slot, slots = self.by_slot(candidates.snapshot, build), candidates.slots
        if slots is self._available and self._of_available is not None:
            return self._of_available
        found = by_slot.at(slots)
        if slots is candidates.snapshot.available:  # as for most requests
            self._available, self._of_available = slots, found
        return found

    def by_slot(self, snapshot: Snapshot, build: Callable[[Snapshot], T]) -> T:
        """Return the arrays of all slots."""
        columns = snapshot.columns
        if self._by_slot is not None:
            for name, array in zip(self._names, self._arrays, strict=True):
                if columns.get(name) is not array:  # a column is replaced as a whole
                    break
            else:
                return self._by_slot
        self._arrays = tuple([columns.get(name) for name in self._names])
        self._of_available = None
        self._by_slot = build(snapshot)
        return self._by_slot
