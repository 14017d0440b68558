# SPDX-License-Identifier: Apache-2.0
"""The configuration in effect on the admin port, and the states of its plugins on the metrics port."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

import msgspec
from aiohttp import web

from epp.admin.answers import AdminError, LoopCalls, PickerView, as_json
from epp.config.describe import describe
from epp.framework.messages import described, without_credentials
from epp.framework.plugin import Plugin
from epp.framework.snapshot import Snapshot
from epp.runtime.http_server import response

PATH = "/api/config"
_STATE_PATH = "/debug/plugins/state"
_MOST_STATE_BYTES = 1024 * 1024
_UNSUPPORTED = "plugin does not support state collection"
_FOR_LOOPBACK = (
    "this page is for clients on the same machine: ask at 127.0.0.1 or localhost, through kubectl port-forward for a "
    "pod, or give the picker --metrics-token-file and send the token\n"
)
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json"}


def config_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(_request: web.Request) -> web.Response:
        now, stands = await picker.loop.call(lambda: (picker.assembly(), picker.config()))
        return as_json(
            {
                "generation": stands.generation,
                "origin": now.loaded.origin,
                "refused": stands.refused or None,
                "warnings": [str(warning) for warning in now.warnings],
                "text": without_credentials(now.loaded.text) or None,
                "graph": describe(now),
            }
        )

    return (web.get(PATH, show),)


def plugin_state_route(
    loop: LoopCalls,
    states: Callable[[web.Request], Coroutine[Any, Any, Mapping[str, object]]],
    *,
    needs_loopback: bool,
) -> web.RouteDef:
    """Return the route of a page of the metrics port.

    `states` runs on the loop, and returns the states of the plugins that the request names, or raises AdminError. With
    `needs_loopback`, only clients on this machine are answered.
    """

    async def answer(request: web.Request) -> web.Response:
        if needs_loopback and not _is_local(request):
            return response(_FOR_LOOPBACK.encode(), _TEXT, HTTPStatus.FORBIDDEN)
        try:
            found = await loop.ask(lambda: states(request))
        except AdminError as error:
            return error.response
        content = {"timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"), **found}
        return response(msgspec.json.encode(content) + b"\n", _JSON)

    return web.get(_STATE_PATH, answer)


async def plugin_states(plugins: Mapping[str, Plugin[Any]], snapshot: Callable[[], Snapshot]) -> Mapping[str, object]:
    """Return the state of each plugin, by name; one plugin in each turn of the loop that owns them."""
    states = {}
    for name, plugin in plugins.items():
        states[name] = _state_of(plugin, snapshot())
        await asyncio.sleep(0)
    return states


def _state_of(plugin: Plugin[Any], snapshot: Snapshot) -> Mapping[str, object]:
    told = {"type": plugin.plugin_type}
    try:
        state = plugin.dump_state(snapshot)
        if state is None:
            return {**told, "message": _UNSUPPORTED}
        raw = msgspec.json.encode(state)
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        return {**told, "message": f"plugin failed to tell its state: {described(error, type(plugin))}"}
    if len(raw) > _MOST_STATE_BYTES:
        return {**told, "message": f"state of {len(raw)} bytes is not shown: plugins may tell {_MOST_STATE_BYTES}"}
    return {**told, "state": msgspec.Raw(raw)}


def _is_local(request: web.Request) -> bool:
    """Return whether a client is on this machine, and no page of another site that has given itself our address."""
    try:
        peer = ip_address((request.remote or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(peer, "ipv4_mapped", None)
    if not (mapped or peer).is_loopback:
        return False
    host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    if host in ("", "localhost"):
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
