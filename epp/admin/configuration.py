# SPDX-License-Identifier: Apache-2.0
"""The configuration in effect on the admin port, and the states of its plugins on the metrics port."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from epp.admin.answers import AdminError, LoopCalls, PickerView, as_json
from epp.admin.port import is_loopback
from epp.config.describe import describe
from epp.framework.messages import described, without_credentials
from epp.framework.plugin import Plugin
from epp.framework.snapshot import Snapshot
from epp.runtime.addresses import is_ip
from epp.runtime.http_server import response

PATH = "/api/config"
_STATE_PATH = "/debug/plugins/state"
_MOST_STATE_BYTES = 1024 * 1024
_UNSUPPORTED = "plugin does not support state collection"
_FOR_LOOPBACK = (
    "this page is only for clients on the same machine: connect to 127.0.0.1 or localhost (for a pod, through kubectl "
    "port-forward), or start the picker with --metrics-token-file and send the token\n"
)
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json"}


def config_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(_request: web.Request) -> web.Response:
        assembly, state = await picker.loop.call(lambda: (picker.assembly(), picker.config()))
        return as_json(
            {
                "generation": state.generation,
                "origin": assembly.loaded.origin,
                "refused": state.refused or None,
                "warnings": [str(warning) for warning in assembly.warnings],
                "text": without_credentials(assembly.loaded.text) or None,
                "graph": describe(assembly),
            }
        )

    return (web.get(PATH, show),)


def plugin_state_route(
    loop: LoopCalls, states: Callable[[web.Request], Coroutine[Any, Any, Mapping[str, object]]], *, needs_loopback: bool
) -> web.RouteDef:
    """Return the route of the plugin states on the metrics port.

    `states` runs on the loop; it returns the states of the plugins that the request names, or raises AdminError. With
    `needs_loopback`, clients on other machines are refused.
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
    """Return the state of each plugin by name, and yield to the event loop after each plugin."""
    states = {}
    for name, plugin in plugins.items():
        states[name] = _state_of(plugin, snapshot())
        await asyncio.sleep(0)
    return states


def _state_of(plugin: Plugin[Any], snapshot: Snapshot) -> Mapping[str, object]:
    kind = {"type": plugin.plugin_type}
    try:
        state = plugin.dump_state(snapshot)
        if state is None:
            return {**kind, "message": _UNSUPPORTED}
        raw = msgspec.json.encode(state)
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        return {**kind, "message": f"plugin failed to report its state: {described(error, type(plugin))}"}
    if len(raw) > _MOST_STATE_BYTES:
        return {**kind, "message": f"the state is not shown: it has {len(raw)} bytes, the limit is {_MOST_STATE_BYTES}"}
    return {**kind, "state": msgspec.Raw(raw)}


def _is_local(request: web.Request) -> bool:
    """Return whether the client is on this machine, and is not a page of another site whose name has our address."""
    peer = (request.remote or "").partition("%")[0].removeprefix("::ffff:")
    given = request.headers.get("host", "")
    host = given.rpartition(":")[0] or given
    return is_loopback(peer) and (host in ("", "localhost") or is_ip(host.strip("[]")))
