# SPDX-License-Identifier: Apache-2.0
"""A hypothetical pool: a snapshot with changed load or labels of some endpoints."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from epp.framework.arrays import read_only
from epp.framework.datalayer import Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.limits import NonNegative, Share
from epp.framework.messages import hint_at, quoted
from epp.framework.plugin import Parameters
from epp.framework.records import Records
from epp.framework.snapshot import (
    ANSWERS,
    AVOIDED,
    IN_FLIGHT,
    KV_USAGE,
    LOAD_AT,
    METRICS_AT,
    REACHABLE,
    REFUSES,
    RUNNING,
    WAITING,
    Column,
    Snapshot,
)
from epp.routing.datastore.store import available_of

MOST_CHANGES = 256
"""Endpoints that may be changed at once: changed labels are tagged again."""


class EndpointChange(Parameters, frozen=True, kw_only=True):
    """Changed values of an endpoint; null means unknown, and omitted values do not change."""

    waiting: NonNegative | UnsetType | None = UNSET
    """Requests in the engine's queue."""
    running: NonNegative | UnsetType | None = UNSET
    """Requests in the engine's batch."""
    kv_usage: Share | UnsetType | None = UNSET
    """Share of the KV cache in use."""
    in_flight: NonNegative | UnsetType = UNSET
    """Requests of this picker in flight."""
    available: bool | UnsetType = UNSET
    """Whether it can be reached and is not excluded."""
    labels: dict[str, str | None] | UnsetType = UNSET
    """Labels to set; null removes a label."""

    @property
    def numbers(self) -> Mapping[Column, float]:
        """Changed columns."""
        given = {WAITING: self.waiting, RUNNING: self.running, KV_USAGE: self.kv_usage, IN_FLIGHT: self.in_flight}
        found = {
            column: column.unknown if value is None else float(value)
            for column, value in given.items()
            if not isinstance(value, UnsetType)
        }
        if not isinstance(self.available, UnsetType):
            found |= {REACHABLE: ANSWERS if self.available else REFUSES, AVOIDED: 0.0}
        return found


class UnknownEndpointError(ValueError):
    """A changed endpoint is not in the pool, or its name is ambiguous."""


def made_up(
    snapshot: Snapshot, changes: Mapping[str, EndpointChange], taggers: Sequence[Tagger[Any]], *, now: float
) -> Snapshot:
    """Return a snapshot with changes by name, `namespace/name` or address of an endpoint; raises UnknownEndpointError.

    The metrics of a changed endpoint are dated `now`. Taggers read the changed labels.
    """
    if not changes:
        return snapshot
    endpoints = list(snapshot.endpoints.values)
    slots = _slots_by_name(endpoints)
    columns = {name: values.copy() for name, values in snapshot.columns.items() if name in _CHANGEABLE}
    attributes: dict[str, list[object]] = {}
    for name, change in changes.items():
        found = slots.get(name, [])
        if len(found) != 1:
            raise UnknownEndpointError(_not_one(name, slots, found, endpoints))
        (slot,) = found
        for column, value in change.numbers.items():
            columns[column.name][slot] = value
        if change.numbers.keys() & {WAITING, RUNNING, KV_USAGE}:
            columns[METRICS_AT.name][slot] = columns[LOAD_AT.name][slot] = now
        endpoint = endpoints[slot]
        if isinstance(change.labels, UnsetType) or endpoint is None:
            continue
        merged = {**endpoint.labels, **change.labels}
        labels = {key: value for key, value in merged.items() if value is not None}
        endpoints[slot] = changed = dataclasses.replace(endpoint, labels=labels)
        for tagger in taggers:
            for attribute, record in tagger.tag_made_up(changed).attributes.items():
                records = attributes.setdefault(attribute.name, list(snapshot.records(attribute).values))
                records[slot] = record
    relabels = any(not isinstance(change.labels, UnsetType) for change in changes.values())
    at = snapshot.slots
    return msgspec.structs.replace(
        snapshot,
        available=read_only(available_of(at, columns[REACHABLE.name][at], columns[AVOIDED.name][at])),
        endpoints=Records(tuple(endpoints)) if attributes or relabels else snapshot.endpoints,
        columns={**snapshot.columns, **{name: read_only(values) for name, values in columns.items()}},
        attributes={**snapshot.attributes, **{name: Records(tuple(values)) for name, values in attributes.items()}},
    )


_CHANGEABLE = {
    column.name for column in (WAITING, RUNNING, KV_USAGE, IN_FLIGHT, METRICS_AT, LOAD_AT, REACHABLE, AVOIDED)
}


def _slots_by_name(endpoints: Sequence[Endpoint | None]) -> Mapping[str, list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            for name in {endpoint.name, endpoint.id, endpoint.hostport}:
                slots.setdefault(name, []).append(slot)
    return slots


def _not_one(
    name: str, slots: Mapping[str, list[int]], found: Sequence[int], endpoints: Sequence[Endpoint | None]
) -> str:
    if found:
        ids = [endpoint.id for slot in found[:2] if (endpoint := endpoints[slot]) is not None]
        return f"{len(found)} endpoints are named {quoted(name)}: write namespace/name, such as {ids[0]}"
    known = list(dict.fromkeys(endpoint.name for endpoint in endpoints if endpoint is not None))
    return f"there is no endpoint {quoted(name)}: {hint_at(name, slots, otherwise=_some(known))}"


def _some(names: Sequence[str], most: int = 5) -> str:
    if not names:
        return "the pool is empty"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"there are {', '.join(names[:most])}{more}"
