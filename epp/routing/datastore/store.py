# SPDX-License-Identifier: Apache-2.0
"""The datastore of endpoints and their data, which is written in the background and read as snapshots."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from epp.framework.arrays import Floats, Mask, Positions, read_only
from epp.framework.clock import Clock
from epp.framework.datalayer import Report
from epp.framework.endpoint import Endpoint, Identity
from epp.framework.plugin import Datum
from epp.framework.records import Records
from epp.framework.snapshot import (
    ANSWERS,
    AVOIDED,
    CORE_ATTRIBUTES,
    CORE_COLUMNS,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    LAST_PICKED,
    LOAD_AT,
    METRICS_AT,
    PEER_REQUESTS,
    PEER_TOKENS,
    REACHABLE,
    REFUSES,
    Attribute,
    Column,
    Snapshot,
)
from epp.routing.datastore.ledger import Inheritance, Ledger
from epp.routing.datastore.slots import Change, ColumnTable, Slots, by_id

T = TypeVar("T")

_FIRST_CAPACITY = 8
_CORE_COLUMNS = frozenset(CORE_COLUMNS)
_OF_AVAILABLE = (REACHABLE.name, AVOIDED.name)


class Datastore:
    """Endpoints and their data; for one event loop. Later writes do not change a snapshot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table = ColumnTable(CORE_COLUMNS)
        self._places = Slots()
        self._reports: list[Report | None] = []
        """Last report by slot; None if other values were written after it."""
        self._has_core = bytearray()
        """Whether the last report has a core column, by slot."""
        self._attributes: dict[str, tuple[Attribute[Any], list[object]]] = {}
        self._listeners: list[Callable[[Change], None]] = []
        self._on_release: Callable[[], None] | None = None
        self._pool_changed = True
        self._attributes_changed: set[str] = set()
        self.latest = Snapshot()
        """The last snapshot; may be read in any thread."""
        for attribute in CORE_ATTRIBUTES:
            self._add_attribute(attribute)
        self.ledger = Ledger(self._table, on_release=self._notify_release)
        self._inheritance = Inheritance(self._table)

    @property
    def count(self) -> int:
        return len(self._places.slots)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(e for e in self._places.endpoints if e is not None)

    @property
    def columns(self) -> Mapping[str, Column]:
        """Core columns, and all columns that were ever written, by name."""
        return self._table.columns

    @property
    def attributes(self) -> Mapping[str, Attribute[Any]]:
        """Core attributes, and all attributes that were ever written, by name."""
        return {name: attribute for name, (attribute, _) in self._attributes.items()}

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        self._listeners.append(listener)

    def call_on_release(self, listener: Callable[[], None]) -> None:
        """Call `listener` once, after the next change that may free capacity: a report, a new pool, ended work."""
        self._on_release = listener

    def replace(self, endpoints: Iterable[Endpoint]) -> Change:
        """Replace the pool with these endpoints.

        An endpoint whose identity is in the pool keeps its slot and data, and gets the new labels; any other endpoint
        is new. Raises ValueError for a repeated id.
        """
        wanted = by_id(endpoints)
        return self._apply(wanted, self._places.slots.keys() - wanted.keys())

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> Change:
        """Remove the endpoints with the ids `removed`, then add or replace the endpoints in `changed`.

        An endpoint whose id is in both starts without data. Raises ValueError for a repeated id in `changed`.
        """
        return self._apply(by_id(changed), removed)

    def _apply(self, wanted: Mapping[str, Endpoint], unwanted: Iterable[str]) -> Change:
        places = self._places
        leaving = {places.slots[identity] for identity in unwanted if identity in places.slots}
        leaving.update(
            slot
            for endpoint in wanted.values()
            if (slot := places.slots.get(endpoint.id)) is not None and not places.is_kept(endpoint)
        )
        removed = [(slot, self._vacate(slot)) for slot in sorted(leaving)]
        if removed:
            self._table.reset(list(leaving))
        added: list[tuple[int, Endpoint]] = []
        updated: list[tuple[int, Endpoint]] = []
        for endpoint in wanted.values():
            kept = places.slots.get(endpoint.id)
            if kept is None:
                if not places.free:
                    self._grow()
                added.append((places.put(endpoint), endpoint))
            elif places.endpoints[kept] != endpoint:
                places.relabel(kept, endpoint)
                updated.append((kept, endpoint))
        change = Change(tuple(added), tuple(removed), tuple(updated))
        if added or removed or updated:
            self._publish(change)
        return change

    def _publish(self, change: Change) -> None:
        self._pool_changed = True
        for listener in self._listeners:
            listener(change)
        self._notify_release()

    def report(self, endpoint: Endpoint, report: Report) -> None:
        """Write the report of an endpoint; ignored if the endpoint has left.

        METRICS_AT is set to now if the report has a core column, since other reports must not make old numbers of the
        engine look fresh. LOAD_AT is set too, unless the report is the same object as the last one.
        """
        slot = self.slot_of(endpoint)
        if slot is None:
            return
        changed = self._reports[slot] is not report
        if changed:
            self._write(slot, report)
            self._reports[slot] = report
            self._has_core[slot] = not _CORE_COLUMNS.isdisjoint(report.columns)
        if self._has_core[slot]:
            now = self._clock.now()
            self._table.put(METRICS_AT, slot, now)
            if changed:
                self._table.put(LOAD_AT, slot, now)
            self._inheritance.reported(slot, now)
        self._notify_release()

    def copy_columns(self, columns: Iterable[tuple[Column, Positions, Floats]]) -> None:
        """Write numbers that another process collected: columns, slots, and a value for each slot."""
        for column, slots, values in columns:
            self._table.put_many(column, slots, values)
            if column == METRICS_AT and self._inheritance.is_active:
                for slot in slots.tolist():
                    self._inheritance.reported(slot, self._clock.now())
        self._notify_release()

    def copy_records(self, attribute: Attribute[T], records: Iterable[tuple[int, T]]) -> None:
        """Write records that another process collected, by slot."""
        for slot, record in records:
            self._write(slot, Report({}, {attribute: record}))

    def inherit(self, seconds: float) -> None:
        """Count running requests of an earlier picker as in flight, for at most `seconds`.

        Endpoints that join later inherit nothing.
        """
        self._inheritance.begin(self._places.slots.values(), self._clock.now(), seconds)
        self._notify_release()

    def sweep_inherited(self) -> None:
        if self._inheritance.sweep(self._clock.now()):
            self._notify_release()

    def count_peers(self, slot: int, requests: int, tokens: int) -> None:
        """Set the work of other pickers that counts as in flight at a slot."""
        released = False
        for part, whole, value in ((PEER_REQUESTS, IN_FLIGHT, requests), (PEER_TOKENS, IN_FLIGHT_TOKENS, tokens)):
            change = value - self._table.get(part, slot)
            if change:
                self._table.put(part, slot, value)
                self._table.add(whole, slot, change)
                released = released or change < 0
        if released:
            self._notify_release()

    def tag(self, endpoint: Endpoint, report: Report) -> None:
        """Write a tagger's report on the endpoint, except METRICS_AT; ignored if the endpoint has left.

        An endpoint with a new pod, or on a restarted node, starts without data.
        """
        slot = self.slot_of(self._identified(endpoint, report))
        if slot is not None:
            self._write(slot, report)

    def _identified(self, endpoint: Endpoint, report: Report) -> Endpoint:
        """Record the pod UID and boot id of an endpoint; return the endpoint, or its replacement."""
        slot = self.slot_of(endpoint)
        if slot is None or not (report.uid or report.boot_id):
            return endpoint
        known = self._places.identities[slot]
        reported = endpoint.identity.after(Identity(endpoint.id, endpoint.hostport, report.uid, report.boot_id))
        if reported.is_another_than(known):
            endpoint = replace(endpoint)
            self.update([endpoint], [endpoint.id])
            slot = self._places.slots[endpoint.id]
        self._places.identities[slot] = reported.after(known)
        return endpoint

    def forget(self, data: Iterable[Datum], endpoint: Endpoint | None = None) -> None:
        """Reset columns and attributes that are no longer reported to unknown, for one endpoint or for all."""
        if endpoint is None:
            self._reports = [None] * len(self._reports)
            for datum in data:
                if isinstance(datum, Column):
                    self._table.clear(datum)
                elif isinstance(datum, Attribute):
                    self._add_attribute(datum)
            return
        slot = self.slot_of(endpoint)
        if slot is not None:
            gone = tuple(data)
            columns = {datum: datum.unknown for datum in gone if isinstance(datum, Column)}
            self._write(slot, Report(columns, {datum: datum.unknown for datum in gone if isinstance(datum, Attribute)}))

    def mark(self, endpoint: Endpoint, reachable: float) -> None:
        """Write whether an endpoint can be reached (ANSWERS, SILENT or REFUSES); ignored if it has left."""
        slot = self.slot_of(endpoint)
        if slot is not None and self._table.get(REACHABLE, slot) != reachable:
            self._table.put(REACHABLE, slot, reachable)
            self._notify_release()

    def avoid(self, slot: int, *, avoided: bool) -> None:
        """Write whether requests avoid the endpoint of a slot, if other endpoints are available."""
        if self._table.get(AVOIDED, slot) != avoided:
            self._table.put(AVOIDED, slot, avoided)
            self._notify_release()

    def snapshot(self) -> Snapshot:
        """Return the current snapshot; the same object until the next write."""
        if not (self._pool_changed or self._attributes_changed or self._table.dirty):
            return self.latest
        last = self.latest
        membership_changed = self._pool_changed or not self._table.dirty.isdisjoint(_OF_AVAILABLE)
        slots, endpoints, available = last.slots, last.endpoints, last.available
        if self._pool_changed:
            endpoints = Records(tuple(self._places.endpoints), last.endpoints)
            used = self._places.slots
            slots = read_only(np.sort(np.fromiter(used.values(), dtype=np.intp, count=len(used))))
        columns, attributes = self._table.publish(), last.attributes
        if membership_changed:
            available = read_only(available_of(slots, columns[REACHABLE.name][slots], columns[AVOIDED.name][slots]))
        if self._attributes_changed:
            changed = {
                name: Records(tuple(self._attributes[name][1]), attributes.get(name))
                for name in self._attributes_changed
            }
            attributes = MappingProxyType({**attributes, **changed})
            self._attributes_changed.clear()
        self._pool_changed = False
        self.latest = Snapshot(
            generation=last.generation + 1,
            slots=slots,
            available=available,
            endpoints=endpoints,
            columns=columns,
            attributes=attributes,
        )
        return self.latest

    def endpoint(self, identity: str) -> Endpoint | None:
        slot = self.slot_named(identity)
        return None if slot is None else self._places.endpoints[slot]

    def slot_named(self, identity: str) -> int | None:
        return self._places.slots.get(identity)

    def slot_of(self, endpoint: Endpoint) -> int | None:
        """Return the slot of an endpoint; None if it has left."""
        places = self._places
        slot = places.slots.get(endpoint.id)
        if slot is None or places.endpoints[slot] is endpoint:
            return slot
        return None if endpoint.identity.is_another_than(places.identities[slot]) else slot

    def in_flight(self, identity: str) -> float:
        """Return the number of requests that the picker has in flight at the endpoint with this id."""
        slot = self.slot_named(identity)
        return 0.0 if slot is None else self._table.get(IN_FLIGHT, slot)

    def picked_since(self, sequence: int) -> list[Endpoint]:
        """Return the endpoints that were sent a request after the pick with this number; see `Ledger.sequence`."""
        slots = self._table.above(LAST_PICKED, sequence)
        return [endpoint for slot in slots if (endpoint := self._places.endpoints[slot]) is not None]

    def slot_at(self, hostport: str) -> int | None:
        return self._places.slot_at(hostport)

    def find(self, hostport: str) -> tuple[int, Endpoint] | None:
        slot = self._places.slot_at(hostport)
        endpoint = None if slot is None else self._places.endpoints[slot]
        return None if slot is None or endpoint is None else (slot, endpoint)

    def _notify_release(self) -> None:
        if self._on_release is not None:
            listener, self._on_release = self._on_release, None
            listener()

    def _write(self, slot: int, report: Report) -> None:
        self._reports[slot] = None
        for column, value in report.columns.items():
            self._table.put(column, slot, value)
        for attribute, record in report.attributes.items():
            values = self._attributes.get(attribute.name)
            records = self._add_attribute(attribute) if values is None else values[1]
            if records[slot] != record:
                records[slot] = record
                self._attributes_changed.add(attribute.name)

    def _vacate(self, slot: int) -> Endpoint:
        endpoint = self._places.clear(slot)
        self._reports[slot] = None
        self.ledger.forget(slot)
        self._inheritance.forget(slot)
        for name, (attribute, records) in self._attributes.items():
            if records[slot] != attribute.unknown:
                records[slot] = attribute.unknown
                self._attributes_changed.add(name)
        return endpoint

    def _grow(self) -> None:
        before = self._table.capacity
        after = max(_FIRST_CAPACITY, before * 2)
        self._table.grow(after)
        self._places.grow(after - before)
        self._reports.extend([None] * (after - before))
        self._has_core.extend(bytes(after - before))
        for name, (attribute, records) in self._attributes.items():
            records.extend([attribute.unknown] * (after - before))
            self._attributes_changed.add(name)
        self._pool_changed = True

    def _add_attribute(self, attribute: Attribute[Any]) -> list[object]:
        records: list[object] = [attribute.unknown] * self._table.capacity
        self._attributes[attribute.name] = (attribute, records)
        self._attributes_changed.add(attribute.name)
        return records


def available_of(slots: Positions, reachable: Floats, avoided: Floats) -> Positions:
    """Return the slots that receive requests, by their REACHABLE and AVOIDED."""
    answers: Mask = reachable == ANSWERS
    for mask in (answers & (avoided == 0), answers):
        if mask.any():
            return slots[mask]
    return slots[reachable > REFUSES]
