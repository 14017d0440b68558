# SPDX-License-Identifier: Apache-2.0
"""The pool of the main process, copied to a worker: differences of snapshots, and their application."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from epp.framework.arrays import Mask, Positions
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import REQUEST_COLUMNS, Attribute, Column, Snapshot
from epp.routing.datastore import Datastore

_MOST_ENDPOINTS = 32
"""Endpoints that join or leave in one difference: more would hold up the requests of the worker."""


Numbers: TypeAlias = tuple[str, bytes, bytes]
"""Name of a column, slots, and a value for each slot, as bytes of arrays: they pickle in a tenth of the time."""


class Difference(NamedTuple):
    """What changed in the pool; slots are those of the main process."""

    endpoints: Sequence[tuple[int, Endpoint | None, bool]]
    """Slot, endpoint (None if it left), and whether that starts without data."""
    named: Sequence[Column]
    """Columns of which there were no numbers before."""
    columns: Sequence[Numbers]
    records: Sequence[tuple[Attribute[Any], Sequence[int], Sequence[object]]]
    """Attribute, slots, and a record for each of these."""


class PoolSource:
    """Compares the pool of the main process with what some workers have of it."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self.told = Snapshot(generation=-1)
        """The snapshot that the workers have."""
        self._named: set[str] = set()

    def differences(self, after: Snapshot | None = None) -> Iterator[Difference]:
        """Yield what changed since this was last called, in parts: until now, or until the snapshot `after`."""
        before, after = self.told, after or self._store.snapshot()
        if after.generation == before.generation:
            return
        self.told = after
        named = [self._store.columns[name] for name in after.columns if name not in self._named]
        self._named.update(column.name for column in named)
        if named:
            yield Difference((), named, (), ())
        moved = _moved(
            before.endpoints.values, after.endpoints.values, after.endpoints.changed_since(before.endpoints.values)
        )
        is_known = np.zeros(after.capacity, dtype=np.bool_)
        is_known[after.slots] = True
        for start in range(0, len(moved), _MOST_ENDPOINTS):
            part = moved[start : start + _MOST_ENDPOINTS]
            slots = [slot for slot, _, is_new in part if is_new]
            is_known[slots] = False
            yield Difference(part, (), *self._whole(after, np.array(slots, dtype=np.intp)))
        columns = self._changed_columns(before, after, is_known)
        records = self._changed_records(before, after, is_known)
        if columns or records:
            yield Difference((), (), columns, records)

    def _whole(self, after: Snapshot, slots: Positions) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return all numbers and records of these slots."""
        columns = [
            (name, slots.tobytes(), values[slots].tobytes())
            for name, values in after.columns.items()
            if len(slots) and self._store.columns[name] not in REQUEST_COLUMNS
        ]
        attributes = self._store.attributes
        records = [
            (attributes[name], slots.tolist(), [found.values[slot] for slot in slots])
            for name, found in after.attributes.items()
            if len(slots)
        ]
        return columns, records

    def _changed_columns(self, before: Snapshot, after: Snapshot, is_known: Mask) -> Sequence[Numbers]:
        found = []
        for name, values in after.columns.items():
            column, old = self._store.columns[name], before.columns.get(name)
            if old is values or column in REQUEST_COLUMNS:
                continue
            told = old
            if told is None or len(told) < len(values):
                told = np.full(len(values), column.unknown)
                if old is not None:
                    told[: len(old)] = old
            slots = np.flatnonzero(is_known & (values != told) & ~(np.isnan(values) & np.isnan(told)))
            if len(slots):
                found.append((name, slots.tobytes(), values[slots].tobytes()))
        return found

    def _changed_records(
        self, before: Snapshot, after: Snapshot, is_known: Mask
    ) -> Sequence[tuple[Attribute[Any], Sequence[int], Sequence[object]]]:
        found = []
        for name, records in after.attributes.items():
            old = before.attributes.get(name)
            if old is records:
                continue
            attribute = self._store.attributes[name]
            told = () if old is None else old.values
            slots = [slot for slot in records.changed_since(told) if is_known[slot]]
            if slots:
                found.append((attribute, slots, [records.values[slot] for slot in slots]))
        return found


def _moved(
    before: Sequence[Endpoint | None], after: Sequence[Endpoint | None], changed: Sequence[int]
) -> Sequence[tuple[int, Endpoint | None, bool]]:
    """Return the endpoints for `Difference`: first the endpoints that leave or move to another slot."""
    slots = {endpoint.id: slot for slot in changed if (endpoint := after[slot]) is not None}
    known = {slot: endpoint for slot in changed if slot < len(before) and (endpoint := before[slot]) is not None}
    left = {slot for slot, endpoint in known.items() if after[slot] is None or slots.get(endpoint.id, slot) != slot}
    joined = ((slot, endpoint) for slot in changed if (endpoint := after[slot]) is not None)
    return [
        *((slot, None, False) for slot in sorted(left)),
        *((slot, endpoint, _is_another(known.get(slot), endpoint)) for slot, endpoint in joined),
    ]


def _is_another(before: Endpoint | None, after: Endpoint) -> bool:
    """Return whether the endpoint starts without data: a changed one keeps them, an equal one was put in its place."""
    return before is None or before == after or after.identity.is_another_than(before.identity)


class PoolMirror:
    """Applies differences to the datastore of a worker, whose slots are others."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._columns: dict[str, Column] = {}
        self._ids: dict[int, str] = {}
        """By slot of the main process."""
        self._slots = np.zeros(0, dtype=np.intp)
        """Slots of this process by slot of the main process; unused where that has no endpoint."""

    def apply(self, difference: Difference) -> None:
        """Make the datastore equal to that of the main process."""
        gone, joined = set(), []
        for slot, endpoint, is_new in difference.endpoints:
            if (endpoint is None or is_new) and slot in self._ids:
                gone.add(self._ids.pop(slot))
            if endpoint is not None:
                self._ids[slot] = endpoint.id
                joined.append(endpoint)
        if difference.endpoints:
            self._store.update(joined, gone)
            self._find_slots()
        self._columns.update((column.name, column) for column in difference.named)
        self._store.copy_columns(
            [
                (self._columns[name], self._slots[np.frombuffer(slots, dtype=np.intp)], np.frombuffer(values))
                for name, slots, values in difference.columns
            ]
        )
        for attribute, slots, records in difference.records:
            self._store.copy_records(attribute, zip(self._slots[slots].tolist(), records, strict=True))

    def _find_slots(self) -> None:
        most = max(self._ids, default=-1) + 1
        self._slots = np.zeros(most, dtype=np.intp)
        for slot, identity in self._ids.items():
            found = self._store.slot_named(identity)
            if found is not None:
                self._slots[slot] = found
