# SPDX-License-Identifier: Apache-2.0
"""Idle accelerators on the admin port: nodes without an endpoint of the pool, and the price of their free devices."""

import asyncio

import msgspec
from aiohttp import web

from epp.admin.answers import PickerView, as_json, read_number
from epp.hardware.reports import IdleNode
from epp.hardware.tagger import AcceleratorTagger

PATH = "/api/idle-nodes"
_SHOWN = 200
_MOST_SHOWN = 1000


def idle_node_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    """Return the route."""

    async def show(request: web.Request) -> web.Response:
        """Answer with `limit` nodes, the most expensive first, and the sums of all nodes."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        assembly = await picker.call(picker.assembly)
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

    return (web.get(PATH, show),)
