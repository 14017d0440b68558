# SPDX-License-Identifier: Apache-2.0
"""Working columns that a writer mutates, and the read-only copies that readers get."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np

from epp.framework.arrays import Floats, read_only
from epp.framework.snapshot import Column

_FEW = 8
"""Cells of a column that are written one by one in less time than all together."""


class ColumnTable:
    """One array of float64 for each column, indexed by slot; only columns written since the last publish are copied."""

    __slots__ = ("_capacity", "_cells", "_columns", "_dirty", "_published", "_working")

    def __init__(self, columns: Iterable[Column]) -> None:
        self._capacity = 0
        self._columns: dict[str, Column] = {}
        self._working: dict[str, Floats] = {}
        self._cells: dict[str, memoryview[float]] = {}
        """The same memory: a single number is read and written there at half the cost."""
        self._published: Mapping[str, Floats] = {}
        self._dirty: set[str] = set()
        for column in columns:
            self._add_column(column)

    @property
    def capacity(self) -> int:
        """Slots that there is room for."""
        return self._capacity

    @property
    def dirty(self) -> bool:
        """Whether anything was written since the last publish."""
        return bool(self._dirty)

    def wrote(self, column: Column) -> bool:
        """Whether this column was written since the last publish."""
        return column.name in self._dirty

    def get(self, column: Column, slot: int) -> float:
        """Return the working value."""
        return self._cells[column.name][slot]

    def above(self, column: Column, value: float) -> list[int]:
        """Return the slots with a working value above this one."""
        found: list[int] = np.flatnonzero(self._working[column.name] > value).tolist()
        return found

    def put(self, column: Column, slot: int, value: float) -> None:
        """Write one value; a column not seen before is added, unknown elsewhere. The same value changes nothing."""
        name = column.name
        if name not in self._cells:
            self._add_column(column)
        cells = self._cells[name]
        if cells[slot] != value:
            cells[slot] = value
            self._dirty.add(name)

    def add(self, column: Column, slot: int, amount: float) -> None:
        """Add to one value."""
        name = column.name
        self._cells[name][slot] += amount
        self._dirty.add(name)

    def take(self, source: Column, slots: Sequence[int], *others: Column) -> None:
        """Take from these slots all that is in one column, and as much from the others."""
        positions = np.array(slots, dtype=np.intp)
        amounts = self._working[source.name][positions]
        for column in (source, *others):
            self._working[column.name][positions] -= amounts
            self._dirty.add(column.name)

    def reset(self, slots: Sequence[int]) -> None:
        """Make everything about some slots unknown."""
        positions = np.array(slots, dtype=np.intp) if len(slots) > _FEW else None
        for name, column in self._columns.items():
            if positions is not None:
                self._working[name][positions] = column.unknown
                continue
            cells = self._cells[name]
            for slot in slots:
                cells[slot] = column.unknown
        self._dirty.update(self._columns)

    def clear(self, column: Column) -> None:
        """Make a column unknown in all slots."""
        if column.name in self._working:
            self._working[column.name].fill(column.unknown)
            self._dirty.add(column.name)

    def grow(self, capacity: int) -> None:
        """Make room; what is there stays."""
        extra = capacity - self._capacity
        for name, column in self._columns.items():
            self._set_working(name, np.concatenate([self._working[name], np.full(extra, column.unknown)]))
        self._capacity = capacity

    def publish(self) -> Mapping[str, Floats]:
        """Return read-only columns that later writes do not touch."""
        if self._dirty:
            fresh = dict(self._published)
            for name in self._dirty:
                fresh[name] = read_only(self._working[name].copy())
            self._published = MappingProxyType(fresh)
            self._dirty.clear()
        return self._published

    def _add_column(self, column: Column) -> None:
        self._columns[column.name] = column
        self._set_working(column.name, np.full(self._capacity, column.unknown))

    def _set_working(self, name: str, values: Floats) -> None:
        self._working[name] = values
        self._cells[name] = cast("memoryview[float]", values.data)  # of float64
        self._dirty.add(name)
