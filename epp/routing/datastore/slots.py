# SPDX-License-Identifier: Apache-2.0
"""Slots of endpoints, and columns indexed by slot."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import numpy as np

from epp.framework.arrays import Floats, Positions, read_only
from epp.framework.endpoint import Endpoint, Identity
from epp.framework.snapshot import Column

_NO_IDENTITY = Identity("", "")
_FEW = 8
"""Largest number of cells of a column that are faster to write one by one."""


@dataclass(frozen=True, slots=True)
class Change:
    """Endpoints that one change added, removed or relabelled."""

    added: tuple[tuple[int, Endpoint], ...]
    removed: tuple[tuple[int, Endpoint], ...]
    updated: tuple[tuple[int, Endpoint], ...] = ()
    """Remaining endpoints with changed labels."""


class Slots:
    """Slots from 0 on; the lowest free slot is taken first."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        """Keyed by endpoint id."""
        self.endpoints: list[Endpoint | None] = []
        self.identities: list[Identity] = []
        """Identity by slot, including fields that were known before the last change of labels."""
        self._by_address: dict[str, list[int]] = {}
        self.free: list[int] = []
        """A heap."""

    def grow(self, extra: int) -> None:
        before = len(self.endpoints)
        self.endpoints.extend([None] * extra)
        self.identities.extend([_NO_IDENTITY] * extra)
        self.free.extend(range(before, before + extra))

    def slot_at(self, hostport: str) -> int | None:
        return min(self._by_address.get(hostport, ()), default=None)

    def is_kept(self, endpoint: Endpoint) -> bool:
        """Return whether the pool has the same endpoint, possibly with other labels."""
        slot = self.slots.get(endpoint.id)
        return slot is not None and not endpoint.identity.is_another_than(self.identities[slot])

    def put(self, endpoint: Endpoint) -> int:
        slot = heapq.heappop(self.free)
        self.endpoints[slot] = endpoint
        self.identities[slot] = endpoint.identity
        self.slots[endpoint.id] = slot
        self._by_address.setdefault(endpoint.hostport, []).append(slot)
        return slot

    def relabel(self, slot: int, endpoint: Endpoint) -> None:
        """Replace an endpoint with the same endpoint with other labels."""
        self.endpoints[slot] = endpoint
        self.identities[slot] = endpoint.identity.after(self.identities[slot])

    def clear(self, slot: int) -> Endpoint:
        endpoint = self.endpoints[slot]
        assert endpoint is not None  # noqa: S101  the slot is in use
        self.endpoints[slot] = None
        self.identities[slot] = _NO_IDENTITY
        del self.slots[endpoint.id]
        here = self._by_address[endpoint.hostport]
        here.remove(slot)
        if not here:
            del self._by_address[endpoint.hostport]
        heapq.heappush(self.free, slot)
        return endpoint


def by_id(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """Return the endpoints by id, in order; raises ValueError for a repeated id."""
    wanted: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if endpoint.id in wanted:
            raise ValueError(f"two endpoints are named {endpoint.id!r}: names are unique within a namespace")
        wanted[endpoint.id] = endpoint
    return wanted


class ColumnTable:
    """One array of float64 for each column, indexed by slot; only columns written since the last publish are copied."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.capacity = 0
        """Number of slots."""
        self.columns: dict[str, Column] = {}
        """Keyed by name."""
        self._working: dict[str, Floats] = {}
        self._cells: dict[str, memoryview[float]] = {}
        """Views of the same memory, which read and write single numbers at half the cost."""
        self._published: Mapping[str, Floats] = {}
        self.dirty: set[str] = set()
        """Names of columns that were written since the last publish."""
        for column in columns:
            self._add_column(column)

    def get(self, column: Column, slot: int) -> float:
        return self._cells[column.name][slot]

    def above(self, column: Column, value: float) -> list[int]:
        found: list[int] = np.flatnonzero(self._working[column.name] > value).tolist()
        return found

    def put(self, column: Column, slot: int, value: float) -> None:
        """Write one value. A new column is added, without values at other slots; an equal value changes nothing."""
        name = column.name
        if name not in self._cells:
            self._add_column(column)
        cells = self._cells[name]
        if cells[slot] != value:
            cells[slot] = value
            self.dirty.add(name)

    def put_many(self, column: Column, slots: Positions, values: Floats) -> None:
        """Write one value for each of these slots, as `put` does."""
        if column.name not in self._cells:
            self._add_column(column)
        self._working[column.name][slots] = values
        self.dirty.add(column.name)

    def add(self, column: Column, slot: int, amount: float) -> None:
        name = column.name
        self._cells[name][slot] += amount
        self.dirty.add(name)

    def take(self, source: Column, slots: Sequence[int], *others: Column) -> None:
        """Subtract the values of one column at these slots from it and from the other columns."""
        positions = np.array(slots, dtype=np.intp)
        amounts = self._working[source.name][positions]
        for column in (source, *others):
            self._working[column.name][positions] -= amounts
            self.dirty.add(column.name)

    def reset(self, slots: Sequence[int]) -> None:
        positions = np.array(slots, dtype=np.intp) if len(slots) > _FEW else None
        for name, column in self.columns.items():
            if positions is not None:
                self._working[name][positions] = column.unknown
                continue
            cells = self._cells[name]
            for slot in slots:
                cells[slot] = column.unknown
        self.dirty.update(self.columns)

    def clear(self, column: Column) -> None:
        if column.name in self._working:
            self._working[column.name].fill(column.unknown)
            self.dirty.add(column.name)

    def grow(self, capacity: int) -> None:
        """Make room, and keep all values."""
        extra = capacity - self.capacity
        for name, column in self.columns.items():
            self._set_working(name, np.concatenate([self._working[name], np.full(extra, column.unknown)]))
        self.capacity = capacity

    def publish(self) -> Mapping[str, Floats]:
        """Return read-only columns that later writes do not change."""
        if self.dirty:
            fresh = {name: read_only(self._working[name].copy()) for name in self.dirty}
            self._published = MappingProxyType({**self._published, **fresh})
            self.dirty.clear()
        return self._published

    def _add_column(self, column: Column) -> None:
        self.columns[column.name] = column
        self._set_working(column.name, np.full(self.capacity, column.unknown))

    def _set_working(self, name: str, values: Floats) -> None:
        self._working[name] = values
        self._cells[name] = cast("memoryview[float]", values.data)  # of float64
        self.dirty.add(name)
