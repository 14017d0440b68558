# SPDX-License-Identifier: Apache-2.0
"""The endpoints of the pool on the admin port: load, hardware and state of each."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from math import isfinite

import msgspec
import numpy as np
from aiohttp import web

from epp.admin.answers import AdminError, LoopCalls, as_json, read_number, read_text
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.endpoint import Endpoint
from epp.framework.messages import quoted
from epp.framework.snapshot import (
    ACCELERATOR,
    LAST_PICKED,
    LORA,
    METRICS_AT,
    MODELS,
    TOPOLOGY,
    Snapshot,
)
from epp.telemetry.endpoints import EndpointState

PATH = "/api/endpoints"
_SHOWN = 200
_MOST_SHOWN = 1000
_IN_A_ROW = 16
"""Endpoints that are written before the event loop of requests has the interpreter for itself."""
_PAUSE_SECONDS = 0.001
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """The pool that is shown; its functions are called on its event loop."""

    name: str
    snapshot: Callable[[], Snapshot]
    now: Callable[[], float]
    """Seconds of the clock of snapshots."""
    states: Callable[[], Sequence[EndpointState]]
    """What polling says of each endpoint."""
    picks: Callable[[], Mapping[str, int]]
    """How often each endpoint was picked, by `namespace/name`."""


def endpoint_routes(loop: LoopCalls, view: PoolView) -> tuple[web.RouteDef, ...]:
    """Return the routes."""
    pages = _EndpointPages(loop, view)
    return web.get(PATH, pages.all), web.get(PATH + "/{name:.+}", pages.one)


class _EndpointPages:
    def __init__(self, loop: LoopCalls, view: PoolView) -> None:
        self._loop = loop
        self._view = view

    async def all(self, request: web.Request) -> web.Response:
        """Answer with endpoints, those first that need attention: `limit` of them, from the one at `offset` on.

        With `filter`, those whose name, address or state has this text.
        """
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        offset = read_number(request, "offset", 0, least=0, most=10**6 - 1)
        wanted = read_text(request, "filter").casefold()
        snapshot, now, states, picks = await self._state()
        available = set(snapshot.available.tolist())
        first: list[int] = []
        others: list[int] = []
        for slot in snapshot.slots.tolist():
            endpoint = snapshot.endpoints.values[slot]
            state = None if endpoint is None else states.get(endpoint.id) or states.get(endpoint.name)
            if endpoint is None or (wanted and wanted not in _searched(endpoint, state)):
                continue
            broken = slot not in available or (state is not None and state.needs_attention)
            (first if broken else others).append(slot)
        slots = [*first, *others][offset : offset + limit]
        rows = await in_turns(slots, lambda slot: row_of(snapshot, slot, now, states, picks))
        return as_json(
            {
                "pool": self._view.name,
                "generation": snapshot.generation,
                "endpoints": rows,
                "total": len(snapshot.slots),
                "available": len(snapshot.available),
                "matching": len(first) + len(others),
                "needAttention": len(first),
            }
        )

    async def one(self, request: web.Request) -> web.Response:
        """Answer with one endpoint, by its name, `namespace/name` or address."""
        name = request.match_info["name"]
        snapshot, now, states, picks = await self._state()
        for slot in snapshot.slots.tolist():
            endpoint = snapshot.endpoints.values[slot]
            if endpoint is not None and name in {endpoint.name, endpoint.id, endpoint.hostport}:
                return as_json(row_of(snapshot, slot, now, states, picks))
        message = f"there is no endpoint {quoted(name)}: those of the pool are at {PATH}"
        raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", message)

    async def _state(self) -> tuple[Snapshot, float, Mapping[str, EndpointState], Mapping[str, int]]:
        view = self._view
        found = await self._loop.call(lambda: (view.snapshot(), view.now(), view.states(), view.picks()))
        snapshot, now, states, picks = found
        return snapshot, now, {each.name: each for each in states}, picks


async def in_turns(slots: Iterable[int], row: Callable[[int], object]) -> list[msgspec.Raw]:
    """Return a row for each slot, as JSON. There is a pause after a few rows, in which requests are served."""
    rows = []
    for number, slot in enumerate(slots, 1):
        rows.append(msgspec.Raw(msgspec.json.encode(row(slot))))
        if not number % _IN_A_ROW:
            await asyncio.sleep(_PAUSE_SECONDS)
    return rows


def row_of(
    snapshot: Snapshot, slot: int, now: float, states: Mapping[str, EndpointState], picks: Mapping[str, int]
) -> Mapping[str, object]:
    """Return the known facts of the endpoint in a slot."""
    endpoint = snapshot.endpoints.values[slot]
    assert endpoint is not None  # noqa: S101  of a slot in use
    tag = snapshot.records(ACCELERATOR).values[slot]
    topology = snapshot.records(TOPOLOGY).values[slot]
    lora = snapshot.records(LORA).values[slot]
    state = states.get(endpoint.id) or states.get(endpoint.name)
    return {
        **identity_of(endpoint),
        "available": bool(np.isin(slot, snapshot.available)),
        **({} if state is None else {"why": state.why, "remedy": state.remedy or None}),
        "load": _numbers(snapshot, slot),
        "picks": picks.get(endpoint.id, 0),
        "reportAgeSeconds": number(now - snapshot.column(METRICS_AT).item(slot)),
        "accelerator": accelerator_of(tag),
        "topology": {name: value for name, value in asdict(topology).items() if value},
        "models": sorted(snapshot.records(MODELS).values[slot]),
        "lora": {"running": sorted(lora.running), "waiting": sorted(lora.waiting), "max": lora.max_adapters},
    }


def identity_of(endpoint: Endpoint) -> Mapping[str, object]:
    """Return the identity of an endpoint."""
    return {
        "name": endpoint.name,
        "namespace": endpoint.namespace,
        "id": endpoint.id,
        "address": endpoint.hostport,
        "host": endpoint.host or None,
        "tls": endpoint.tls,
        "node": endpoint.node or None,
        "cluster": endpoint.cluster or None,
        "labels": dict(endpoint.labels),
    }


def accelerator_of(tag: AcceleratorTag) -> Mapping[str, object]:
    """Return the known facts of the hardware of an endpoint."""
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
        "costPerHour": None if (cost := tag.cost_per_hour()) is None else number(cost),
        "priceSource": tag.price_source() or None,
        "partition": None if not partition.profile else {"kind": partition.kind.value, "profile": partition.profile},
        "sharers": partition.sharers,
        "state": tag.state.value,
        "reason": tag.reason or None,
        "devices": [device.id for device in tag.devices],
        "provenance": dict(tag.provenance),
    }


def number(value: float) -> float | None:
    """Return a number as answers have it; None for one that is not known."""
    return round(float(value), _DIGITS) if isfinite(value) else None


def _searched(endpoint: Endpoint, state: EndpointState | None) -> str:
    return f"{endpoint.id} {endpoint.hostport} {'' if state is None else state.why}".casefold()


def _numbers(snapshot: Snapshot, slot: int) -> Mapping[str, float | None]:
    """Return all columns except internal ones."""
    left_out = {METRICS_AT.name, LAST_PICKED.name}
    return {
        _camel(name): number(values.item(slot))
        for name, values in sorted(snapshot.columns.items())
        if name not in left_out
    }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
