# SPDX-License-Identifier: Apache-2.0
"""Hardware on the admin port: devices, the endpoints that have them, and the amounts that requests hold."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from epp.admin.answers import PickerView, as_json, read_number
from epp.admin.endpoints import accelerator_of, in_turns, number
from epp.admin.held_requests import HeldRequests
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, IN_FLIGHT_TOKENS, INHERITED, Snapshot

PATH = "/api/allocation"
_SHOWN = 200
_MOST_SHOWN = 1000
_MOST_TENANTS = 20
"""Of one endpoint, those with most."""


def allocation_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    """Return the route."""

    async def show(request: web.Request) -> web.Response:
        """Answer with `limit` endpoints, from the one at `offset` on, and the devices that they have."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        offset = read_number(request, "offset", 0, least=0, most=10**6 - 1)
        held = await picker.loop.ask(picker.held)
        snapshot = await picker.call(picker.snapshot)
        slots = snapshot.slots[offset : offset + limit].tolist()
        devices = _Devices(snapshot, slots)
        rows = await in_turns(slots, lambda slot: _row(snapshot, slot, held))
        ids = [_id(snapshot, slot) for slot in slots]
        return as_json(
            {
                "gpuStore": devices.by_id,
                "nodeWorkerStore": devices.by_node,
                "allocation": dict(zip(ids, rows, strict=True)),
                "gpuToWorkerMap": devices.workers,
                "total": len(snapshot.slots),
                "unanswered": held.unanswered,
                **({"silentWorkers": held.silent} if held.silent else {}),
            }
        )

    return (web.get(PATH, show),)


def _id(snapshot: Snapshot, slot: int) -> str:
    endpoint = snapshot.endpoints.values[slot]
    return "" if endpoint is None else endpoint.id


def _row(snapshot: Snapshot, slot: int, held: HeldRequests) -> Mapping[str, object]:
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


class _Devices:
    """The devices of some endpoints."""

    def __init__(self, snapshot: Snapshot, slots: Iterable[int]) -> None:
        self.by_id: dict[str, dict[str, Any]] = {}
        self.by_node: dict[str, list[str]] = {}
        self.workers: dict[str, list[str]] = {}
        """Endpoints by device; those of a slice are of the divided device too."""
        tags = snapshot.records(ACCELERATOR).values
        for slot in slots:
            self._add(_id(snapshot, slot), tags[slot])

    def _add(self, worker: str, tag: AcceleratorTag) -> None:
        if tag.node:
            self.by_node.setdefault(tag.node, []).append(worker)
        for device in tag.devices:
            self.by_id.setdefault(
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
                self.workers.setdefault(one, []).append(worker)
