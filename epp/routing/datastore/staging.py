# SPDX-License-Identifier: Apache-2.0
"""Changes of very many endpoints at once, prepared in steps and applied as a whole."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from epp.framework.datalayer import Report
from epp.framework.endpoint import Endpoint
from epp.framework.records import ENDPOINTS, Derivation, Records
from epp.framework.snapshot import Attribute, Column, Snapshot
from epp.routing.datastore.slots import Change, Slots

_STEP = 32
"""Endpoints that are looked at in one step: a tenth of a millisecond."""

_first = itemgetter(0)

Tagged: TypeAlias = tuple[Endpoint, Iterable[Report]]
"""An endpoint and the reports of its taggers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Staging:
    """The next content of the datastore; requests see the present content until all of it is replaced.

    Valid only while the pool is the one of its beginning, if it replaces the pool.
    """

    version: int
    snapshot: Snapshot
    places: Slots
    attributes: dict[str, tuple[Attribute[Any], list[Any]]]
    """All next records by slot; copies of the present ones at first."""
    writes: Mapping[str, int]
    """Number of writes of each attribute so far."""
    tagged: Mapping[str, Tagged]
    wanted: Mapping[str, Endpoint] | None
    derivations: Mapping[str, Iterable[Derivation]]
    change: Change = field(default_factory=lambda: Change((), ()))
    tags: dict[str, tuple[Attribute[Any], list[int], list[Endpoint], list[Any]]] = field(default_factory=dict)
    """By attribute: slots, their endpoints and their records."""
    cells: list[tuple[int, Endpoint, Column, float]] = field(default_factory=list)
    records: dict[str, Records[Any]] = field(default_factory=dict)
    """The next records, with values derived from them."""

    def steps(self) -> Iterator[None]:
        """Prepare it, in steps of a fraction of a millisecond; a plugin's build from all records is one step."""
        if self.wanted is not None:
            yield from self._fill(self.places, self.wanted)
        yield from self._tag()
        if self.wanted is not None:
            yield from self._derive(ENDPOINTS, self.places.endpoints, self.snapshot.endpoints)
        for name in self.tags:
            yield from self._derive(name, self.attributes[name][1], self.snapshot.attributes.get(name))

    def _fill(self, before: Slots, wanted: Mapping[str, Endpoint]) -> Iterator[None]:
        """Find the slot of each endpoint: its present one, or the lowest free one."""
        places = self.places = Slots(len(before.endpoints))
        removed: list[tuple[int, Endpoint]] = []
        updated: list[tuple[int, Endpoint]] = []
        for number, (identity, slot) in enumerate(tuple(before.slots.items())):
            current, endpoint = before.endpoints[slot], wanted.get(identity)
            if current is None:
                return  # it has left since: this is outdated
            if endpoint is None or not before.is_kept(endpoint):
                removed.append((slot, current))
            elif endpoint == current:
                places.put_at(slot, current, before.identities[slot])
            else:
                places.put_at(slot, endpoint, endpoint.identity.after(before.identities[slot]))
                updated.append((slot, endpoint))
            if number % _STEP == 0:
                yield
        added: list[tuple[int, Endpoint]] = []
        yield from self._join(places, wanted, added)
        removed.sort(key=_first)
        self.change = Change(tuple(added), tuple(removed), tuple(updated))
        for attribute, records in self.attributes.values():
            for slot, _ in removed:
                records[slot] = attribute.unknown
            yield

    def _join(self, places: Slots, wanted: Mapping[str, Endpoint], added: list[tuple[int, Endpoint]]) -> Iterator[None]:
        places.count_free()
        for number, endpoint in enumerate(wanted.values()):
            if endpoint.id not in places.slots:
                added.append((places.put(endpoint), endpoint))
            if number % _STEP == 0:
                yield

    def _tag(self) -> Iterator[None]:
        for number, (identity, (tagged, reports)) in enumerate(self.tagged.items()):
            slot = self.places.slots.get(identity)
            endpoint = None if slot is None else self.places.endpoints[slot]
            if slot is None or endpoint is None or (self.wanted is None and endpoint is not tagged):
                continue  # it has left
            for report in reports:
                self.cells += [(slot, endpoint, column, value) for column, value in report.columns.items()]
                for attribute, record in report.attributes.items():
                    self._put(attribute, slot, endpoint, record)
            if number % _STEP == 0:
                yield

    def _put(self, attribute: Attribute[Any], slot: int, endpoint: Endpoint, record: object) -> None:
        name = attribute.name
        if name not in self.attributes:
            self.attributes[name] = attribute, [attribute.unknown] * len(self.places.endpoints)
        records = self.attributes[name][1]
        if records[slot] != record:
            records[slot] = record
        if name not in self.tags:
            self.tags[name] = attribute, [], [], []
        _, slots, endpoints, tags = self.tags[name]
        slots.append(slot)
        endpoints.append(endpoint)
        tags.append(records[slot])

    def _derive(self, name: str, values: Iterable[Any], former: Records[Any] | None) -> Iterator[None]:
        records = self.records[name] = Records(tuple(values), former)
        usual = () if former is None else former.derivations
        for derivation in dict.fromkeys((*usual, *self.derivations.get(name, ()))):
            yield from records.derive_ahead(derivation)
