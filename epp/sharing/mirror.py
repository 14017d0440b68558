# SPDX-License-Identifier: Apache-2.0
"""The pool in a worker: differences between two snapshots, and their transfer."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import structlog

from epp.framework.arrays import Mask, Positions
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import REQUEST_COLUMNS, Attribute, Column, Snapshot
from epp.routing.datastore import Datastore
from epp.sharing.channel import Channel, packed

_MOST_ENDPOINTS = 32
"""Endpoints that join or leave in one difference: more would delay the requests of the worker."""
Numbers: TypeAlias = tuple[str, bytes, bytes]
"""Name of a column, slots, and a value for each slot, as bytes of arrays: they pickle in a tenth of the time."""
_COPY_SECONDS = 0.02
"""Time between two copies of changes of the pool."""
_log = structlog.get_logger()


class Difference(NamedTuple):
    """Changes of the pool, by slots of the main process."""

    endpoints: Sequence[tuple[int, Endpoint | None, bool]]
    """Slot, endpoint (None if it left), and whether it starts without data."""
    named: Sequence[Column]
    """Columns that occur for the first time."""
    columns: Sequence[Numbers]
    records: Sequence[tuple[Attribute[Any], Sequence[int], Sequence[object]]]
    """Attribute, slots, and a record for each slot."""


class PoolSource:
    """Compares the pool of the main process with the copy that some workers have."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self.sent = Snapshot(generation=-1)
        """Snapshot that the workers have."""
        self._named: set[str] = set()

    def differences(self, after: Snapshot | None = None) -> Iterator[Difference]:
        """Yield the changes since the last call, in parts: up to now, or up to the snapshot `after`."""
        before, after = self.sent, after or self._store.snapshot()
        if after.generation == before.generation:
            return
        self.sent = after
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
            sent = old
            if sent is None or len(sent) < len(values):
                sent = np.full(len(values), column.unknown)
                if old is not None:
                    sent[: len(old)] = old
            slots = np.flatnonzero(is_known & (values != sent) & ~(np.isnan(values) & np.isnan(sent)))
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
            slots = [slot for slot in records.changed_since(() if old is None else old.values) if is_known[slot]]
            if slots:
                found.append((self._store.attributes[name], slots, [records.values[slot] for slot in slots]))
        return found


def _moved(
    before: Sequence[Endpoint | None], after: Sequence[Endpoint | None], changed: Sequence[int]
) -> Sequence[tuple[int, Endpoint | None, bool]]:
    """Return the endpoints for `Difference`, beginning with those that leave or move to another slot."""
    slots = {endpoint.id: slot for slot in changed if (endpoint := after[slot]) is not None}
    known = {slot: endpoint for slot in changed if slot < len(before) and (endpoint := before[slot]) is not None}
    left = {slot for slot, endpoint in known.items() if after[slot] is None or slots.get(endpoint.id, slot) != slot}
    joined = ((slot, endpoint) for slot in changed if (endpoint := after[slot]) is not None)
    return [
        *((slot, None, False) for slot in sorted(left)),
        *((slot, endpoint, _is_another(known.get(slot), endpoint)) for slot, endpoint in joined),
    ]


def _is_another(before: Endpoint | None, after: Endpoint) -> bool:
    """Return whether the endpoint starts without data: a changed endpoint keeps its data, an equal one replaced it."""
    return before is None or before == after or after.identity.is_another_than(before.identity)


class PoolMirror:
    """Applies differences to the datastore of a worker, which has its own slots."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._columns: dict[str, Column] = {}
        self._ids: dict[int, str] = {}
        """Endpoint id by slot of the main process."""
        self._slots = np.zeros(0, dtype=np.intp)
        """Slots of this process by slot of the main process."""

    def apply(self, difference: Difference) -> None:
        gone, joined = set(), []
        for slot, endpoint, is_new in difference.endpoints:
            if (endpoint is None or is_new) and slot in self._ids:
                gone.add(self._ids.pop(slot))
            if endpoint is not None:
                self._ids[slot] = endpoint.id
                joined.append(endpoint)
        if difference.endpoints:
            self._store.update(joined, gone)
            self._slots = np.zeros(max(self._ids, default=-1) + 1, dtype=np.intp)
            for slot, identity in self._ids.items():
                found = self._store.slot_named(identity)
                if found is not None:
                    self._slots[slot] = found
        self._columns.update((column.name, column) for column in difference.named)
        self._store.copy_columns(
            [
                (self._columns[name], self._slots[np.frombuffer(slots, dtype=np.intp)], np.frombuffer(values))
                for name, slots, values in difference.columns
            ]
        )
        for attribute, slots, records in difference.records:
            self._store.copy_records(attribute, zip(self._slots[slots].tolist(), records, strict=True))


class PoolCopies:
    """Compares the pool and packs its changes once for all workers."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._source = PoolSource(store)
        """Compares the pool with the copies of the filled workers."""
        self._filled: set[Channel] = set()
        self._filling: set[Channel] = set()
        self._is_copying = False
        """Whether the filled workers have only a part of the newest changes."""

    async def give(self, channel: Channel, filled: Callable[[], None]) -> None:
        """Send the pool up to the state of the other workers, call `filled`, and send changes until cancelled."""
        source = PoolSource(self._store)
        self._filling.add(channel)
        try:
            while self._is_copying or source.sent.generation != self._source.sent.generation:
                if not channel.is_open:
                    return
                for part in source.differences(self._source.sent):
                    channel.send("pool", part)
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
            self._filled.add(channel)
            filled()
            await asyncio.Event().wait()
        finally:
            self._filling.discard(channel)
            self._filled.discard(channel)

    async def run(self) -> None:
        """Send changes until cancelled.

        If the pool cannot be compared, the copies of the workers are unknown: their channels are closed, so that each
        worker is replaced and gets the whole pool.
        """
        while True:
            self._is_copying = True
            try:
                for part in self._source.differences():
                    data = packed("pool", part)
                    for channel in tuple(self._filled):
                        channel.send_packed(data)
                    await asyncio.sleep(0)
            except Exception:  # noqa: BLE001  the workers are replaced
                _log.exception("the pool cannot be copied to the workers")
                for channel in tuple(self._filling):
                    channel.close()
                self._filled.clear()
                self._source = PoolSource(self._store)
            self._is_copying = False
            await asyncio.sleep(_COPY_SECONDS)
