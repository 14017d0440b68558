# SPDX-License-Identifier: Apache-2.0
"""The configuration in effect on the admin port, and the states of its plugins on the metrics port."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

import msgspec
from aiohttp import web

from epp.admin.answers import AdminError, LoopCalls, PickerView, as_json
from epp.config.describe import describe
from epp.framework.messages import described
from epp.framework.plugin import Plugin
from epp.framework.snapshot import Snapshot
from epp.runtime.http_server import response

PATH = "/api/config"
_MOST_STATE_BYTES = 1024 * 1024
_UNSUPPORTED = "plugin does not support state collection"
_FOR_LOOPBACK = (
    "this page is for clients on the same machine: ask at 127.0.0.1 or localhost, through kubectl port-forward for a "
    "pod, or give the picker --metrics-token-file and send the token\n"
)
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json"}


def config_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    """Return the route."""

    async def show(_request: web.Request) -> web.Response:
        """Answer with the configuration."""
        now, stands = await picker.call(lambda: (picker.assembly(), picker.config()))
        return as_json(
            {
                "generation": stands.generation,
                "origin": now.loaded.origin,
                "refused": stands.refused or None,
                "warnings": [str(warning) for warning in now.warnings],
                "text": now.loaded.text or None,
                "graph": describe(now),
            }
        )

    return (web.get(PATH, show),)


class PluginStates:
    """Answers in any thread."""

    path = "/debug/plugins/state"

    def __init__(
        self, loop: LoopCalls, plugins: Callable[[], Mapping[str, Plugin[Any]]], snapshot: Callable[[], Snapshot]
    ) -> None:
        """`plugins` and `snapshot` are called on the loop."""
        self._loop = loop
        self._plugins = plugins
        self._snapshot = snapshot

    async def answer(self, request: web.Request, *, authorized: bool) -> web.Response:
        """Answer an authorized client, or one on this machine."""
        if not authorized and not _is_local(request):
            return response(_FOR_LOOPBACK.encode(), _TEXT, HTTPStatus.FORBIDDEN)
        try:
            return await self._state()
        except AdminError as error:
            return error.response

    async def _state(self) -> web.Response:
        """Answer with the state of each plugin, or why there is none; one plugin in each turn of the loop."""
        plugins = await self._loop.call(lambda: dict(self._plugins()))
        states = {name: await self._state_of(plugin) for name, plugin in plugins.items()}
        content = {"timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"), "plugins": states}
        return response(msgspec.json.encode(content) + b"\n", _JSON)

    async def _state_of(self, plugin: Plugin[Any]) -> Mapping[str, object]:
        told = {"type": plugin.plugin_type}
        try:
            state = await self._loop.call(lambda: plugin.dump_state(self._snapshot()))
            if state is None:
                return {**told, "message": _UNSUPPORTED}
            raw = msgspec.json.encode(state)
        except AdminError:
            raise
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
