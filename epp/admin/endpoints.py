# SPDX-License-Identifier: Apache-2.0
"""Endpoints on the admin port: load, hardware, devices, state and requests of each; idle nodes and their price."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from aiohttp import web

from epp.admin.answers import Counts, HeldRequests, NotFoundError, PickerView, as_json, read_number, read_text
from epp.explain.runs import cost_of, number
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.endpoint import Endpoint
from epp.framework.messages import quoted
from epp.framework.snapshot import (
    ACCELERATOR,
    FAILED,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    INHERITED,
    LAST_PICKED,
    LOAD_AT,
    LORA,
    METRICS_AT,
    MODELS,
    SERVED,
    TOPOLOGY,
    Snapshot,
)
from epp.hardware.node_devices import IdleNode
from epp.hardware.tagger import AcceleratorTagger
from epp.telemetry.endpoints import EndpointState

PATH = "/api/endpoints"
_SHOWN = 200
_MOST_SHOWN = 1000
_INTERNAL = frozenset({METRICS_AT.name, LOAD_AT.name, LAST_PICKED.name})
_IN_A_ROW = 16
"""Rows between two pauses, in which the event loop that routes requests gets the interpreter."""
_PAUSE_SECONDS = 0.001


def endpoint_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    return web.get(PATH, partial(_all, picker)), web.get(PATH + "/{name:.+}", partial(_one, picker))


async def _all(picker: PickerView, request: web.Request) -> web.Response:
    """Return `limit` endpoints from `offset` on; endpoints that need attention come first.

    With `filter`, return only endpoints with this text in their name, address or state.
    """
    limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
    offset = read_number(request, "offset", 0, least=0, most=10**6 - 1)
    wanted = read_text(request, "filter").casefold()
    pool = await _pool(picker)
    snapshot = pool.snapshot
    available = set(snapshot.available.tolist())
    first: list[int] = []
    others: list[int] = []
    for slot in snapshot.slots.tolist():
        endpoint = snapshot.endpoints.values[slot]
        if endpoint is None:
            continue
        state = pool.state_of(endpoint)
        shown = f"{endpoint.id} {endpoint.hostport} {'' if state is None else state.why}"
        if wanted and wanted not in shown.casefold():
            continue
        broken = slot not in available or (state is not None and state.needs_attention)
        (first if broken else others).append(slot)
    slots = [*first, *others][offset : offset + limit]
    rows = await in_turns(slots, lambda slot: _row(pool, slot))
    return as_json(
        {
            "pool": picker.pool,
            "generation": snapshot.generation,
            "endpoints": rows,
            "total": len(snapshot.slots),
            "available": len(snapshot.available),
            "matching": len(first) + len(others),
            "needAttention": len(first),
        }
    )


async def _one(picker: PickerView, request: web.Request) -> web.Response:
    """Return one endpoint, by its name, `namespace/name` or address."""
    name = request.match_info["name"]
    pool = await _pool(picker)
    for slot in pool.snapshot.slots.tolist():
        endpoint = pool.snapshot.endpoints.values[slot]
        if endpoint is not None and name in {endpoint.name, endpoint.id, endpoint.hostport}:
            return as_json(_row(pool, slot))
    raise NotFoundError(f"there is no endpoint {quoted(name)}: the endpoints of the pool are at {PATH}")


class _Pool(NamedTuple):
    snapshot: Snapshot
    now: float
    states: Mapping[str, EndpointState]
    """Keyed by name."""
    counts: Counts
    source_of: Callable[[str], str]

    def state_of(self, endpoint: Endpoint) -> EndpointState | None:
        return self.states.get(endpoint.id) or self.states.get(endpoint.name)


async def _pool(picker: PickerView) -> _Pool:
    counts = await picker.loop.ask(picker.counts)
    snapshot, now, states = await picker.loop.call(lambda: (picker.snapshot(), picker.clock.now(), picker.states()))
    return _Pool(snapshot, now, {each.name: each for each in states}, counts, picker.source_of)


async def in_turns(slots: Iterable[int], row: Callable[[int], object]) -> list[msgspec.Raw]:
    """Return a row for each slot, as JSON, with pauses in which requests are served."""
    rows = []
    for count, slot in enumerate(slots, 1):
        rows.append(msgspec.Raw(msgspec.json.encode(row(slot))))
        if not count % _IN_A_ROW:
            await asyncio.sleep(_PAUSE_SECONDS)
    return rows


def _row(pool: _Pool, slot: int) -> Mapping[str, object]:
    snapshot = pool.snapshot
    endpoint = snapshot.endpoints.values[slot]
    assert endpoint is not None  # noqa: S101  the slot is in use
    tag = snapshot.records(ACCELERATOR).values[slot]
    topology = snapshot.records(TOPOLOGY).values[slot]
    lora = snapshot.records(LORA).values[slot]
    state = pool.state_of(endpoint)
    counts = pool.counts.get(endpoint.id, Counter())
    load = {name: values.item(slot) for name, values in snapshot.columns.items() if name not in _INTERNAL}
    load |= {SERVED.name: counts["served"], FAILED.name: counts["failed"]}
    return {
        "name": endpoint.name,
        "namespace": endpoint.namespace,
        "id": endpoint.id,
        "address": endpoint.hostport,
        "host": endpoint.host or None,
        "tls": endpoint.tls,
        "node": endpoint.node or None,
        "cluster": endpoint.cluster or None,
        "source": pool.source_of(endpoint.id) or None,
        "labels": dict(endpoint.labels),
        "available": bool(np.isin(slot, snapshot.available)),
        **({} if state is None else {"why": state.why, "remedy": state.remedy or None}),
        "load": {_camel(name): number(value) for name, value in sorted(load.items())},
        "picks": counts["picks"],
        "reportAgeSeconds": number(pool.now - snapshot.column(METRICS_AT).item(slot)),
        "accelerator": accelerator_of(tag),
        "topology": {name: value for name, value in asdict(topology).items() if value},
        "models": sorted(snapshot.records(MODELS).values[slot]),
        "lora": {"running": sorted(lora.running), "waiting": sorted(lora.waiting), "max": lora.max_adapters},
    }


def accelerator_of(tag: AcceleratorTag) -> Mapping[str, object]:
    partition = tag.partition
    return {
        "class": tag.primary_class or None,
        "classes": tag.classes,
        "kind": tag.kind.value,
        "vendor": tag.vendor or None,
        "family": tag.family or None,
        "model": tag.model or None,
        "count": tag.count,
        "memoryBytes": tag.memory_bytes,
        "tflops": number(tag.tflops()) or None,
        "costPerHour": cost_of(tag),
        "priceSource": tag.price_source() or None,
        "partition": None if not partition.profile else {"kind": partition.kind.value, "profile": partition.profile},
        "sharers": partition.sharers,
        "state": tag.state.value,
        "reason": tag.reason or None,
        "devices": [device.id for device in tag.devices],
        "provenance": dict(tag.provenance),
    }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


_MOST_TENANTS = 20
"""Most tenants listed for one endpoint; those with the most requests are shown."""


def allocation_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(request: web.Request) -> web.Response:
        """Return `limit` endpoints from `offset` on, and their devices."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        offset = read_number(request, "offset", 0, least=0, most=10**6 - 1)
        held = await picker.loop.ask(picker.held)
        snapshot = await picker.loop.call(picker.snapshot)
        slots = snapshot.slots[offset : offset + limit].tolist()
        by_id, by_node, workers = _devices(snapshot, slots)
        rows = await in_turns(slots, lambda slot: _allocated(snapshot, slot, held))
        ids = [_id(snapshot, slot) for slot in slots]
        return as_json(
            {
                "gpuStore": by_id,
                "nodeWorkerStore": by_node,
                "allocation": dict(zip(ids, rows, strict=True)),
                "gpuToWorkerMap": workers,
                "total": len(snapshot.slots),
                "unanswered": held.unanswered,
                **({"silentWorkers": held.silent} if held.silent else {}),
            }
        )

    return (web.get("/api/allocation", show),)


def _id(snapshot: Snapshot, slot: int) -> str:
    endpoint = snapshot.endpoints.values[slot]
    return "" if endpoint is None else endpoint.id


def _allocated(snapshot: Snapshot, slot: int, held: HeldRequests) -> Mapping[str, object]:
    name = _id(snapshot, slot)
    tag = snapshot.records(ACCELERATOR).values[slot]
    return {
        "tag": accelerator_of(tag),
        "node": tag.node or None,
        "reservations": {
            "inFlight": int(snapshot.column(IN_FLIGHT).item(slot)),
            "inherited": int(snapshot.column(INHERITED).item(slot)),
            "inFlightTokens": number(snapshot.column(IN_FLIGHT_TOKENS).item(slot)),
            "assumed": dict(held.assumed.get(name, Counter()).most_common(_MOST_TENANTS)),
            "byTenant": dict(held.by_tenant.get(name, Counter()).most_common(_MOST_TENANTS)),
        },
    }


def _devices(
    snapshot: Snapshot, slots: Iterable[int]
) -> tuple[Mapping[str, object], Mapping[str, list[str]], Mapping[str, list[str]]]:
    """Return devices by id, endpoints by node, and endpoints by device; those of a slice also count for its GPU."""
    by_id: dict[str, Mapping[str, object]] = {}
    by_node: defaultdict[str, list[str]] = defaultdict(list)
    workers: defaultdict[str, list[str]] = defaultdict(list)
    for slot in slots:
        worker, tag = _id(snapshot, slot), snapshot.records(ACCELERATOR).values[slot]
        if tag.node:
            by_node[tag.node].append(worker)
        for device in tag.devices:
            by_id.setdefault(
                device.id,
                {
                    "model": tag.model or None,
                    "node": device.node or tag.node or None,
                    "parent": device.parent_id or None,
                    "index": device.index,
                    "numa": device.numa,
                    "health": device.health or None,
                    "profile": tag.partition.profile or None,
                    "fraction": device.fraction,
                },
            )
            for one in dict.fromkeys(filter(None, (device.id, device.parent_id))):
                workers[one].append(worker)
    return by_id, by_node, workers


def idle_node_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(request: web.Request) -> web.Response:
        """Return `limit` nodes, the most expensive first, and the totals of all nodes."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        assembly = await picker.loop.call(picker.assembly)
        taggers = [each for each in assembly.taggers if isinstance(each, AcceleratorTagger)]
        nodes: list[IdleNode] = []
        for tagger in taggers:
            nodes += await asyncio.to_thread(tagger.idle_nodes)
        free = [each for each in nodes if each.free]
        return as_json(
            {
                "nodes": msgspec.to_builtins(nodes[:limit]),
                "total": len(nodes),
                "freeDevices": sum(each.free for each in free),
                "dollarsPerHour": round(sum(each.dollars_per_hour or 0.0 for each in free), 4),
                "withoutPrice": sum(each.dollars_per_hour is None for each in free),
                "readsNodes": bool(taggers),
                "unseenPods": "; ".join(dict.fromkeys(filter(None, (each.unseen_pods for each in taggers)))),
            }
        )

    return (web.get("/api/idle-nodes", show),)
