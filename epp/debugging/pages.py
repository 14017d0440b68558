# SPDX-License-Identifier: Apache-2.0
"""The pages below `/debug/pprof/` and `/debug/plugins/state`, at the paths of llm-d-router."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address
from threading import Event
from typing import Any

import msgspec
import structlog

from epp.admin import LoopCalls
from epp.admin.answers import AdminError
from epp.debugging import stacks
from epp.debugging.cpu import cpu_profile
from epp.debugging.heap import heap_profile
from epp.debugging.pprof import encoded
from epp.debugging.stack import Profile
from epp.framework.faults import described
from epp.framework.plugin import Plugin
from epp.framework.snapshot import Snapshot
from epp.observability.http_request import HttpRequest
from epp.observability.http_thread import Answer

STATE_PATH = "/debug/plugins/state"
PPROF_PATH = "/debug/pprof"
_PROFILES: Mapping[str, str] = {
    "profile": "CPU time of threads, over ?seconds= (30): go tool pprof http://.../debug/pprof/profile",
    "heap": "memory that was allocated over ?seconds= (5) and is still held; requests take longer meanwhile",
    "goroutine": "stacks of threads and tasks; ?debug=1 groups them, ?debug=2 names each",
}
_SECONDS = {"profile": 30.0, "heap": 5.0}
_MOST_SECONDS = 120.0
_MOST_STATE_BYTES = 1024 * 1024
_UNSUPPORTED = "plugin does not support state collection"
_FOR_LOOPBACK = (
    "this page is for clients on the same machine: ask at 127.0.0.1 or localhost, through kubectl port-forward for a "
    "pod, or give the picker --metrics-token-file and send the token"
)
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json"}

_log = structlog.get_logger()


class DebugPages:
    """Answers in any thread. One profile is taken at a time."""

    def __init__(
        self,
        loop: LoopCalls,
        plugins: Callable[[], Mapping[str, Plugin[Any]]],
        snapshot: Callable[[], Snapshot],
        *,
        profiles: bool,
    ) -> None:
        """`plugins` and `snapshot` are called on the loop; `profiles` is whether there are pages of pprof."""
        self._loop = loop
        self._plugins = plugins
        self._snapshot = snapshot
        self._profiles = profiles
        self._is_busy = False

    @property
    def paths(self) -> Sequence[str]:
        """Paths that are answered."""
        return (*((f"{PPROF_PATH}/",) if self._profiles else ()), STATE_PATH)

    def has(self, path: str) -> bool:
        """Return whether this answers a path."""
        return path == STATE_PATH or (self._profiles and path.startswith(f"{PPROF_PATH}/"))

    async def answer(self, request: HttpRequest, *, authorized: bool) -> Answer:
        """Answer a client that has shown that it may ask, or one on this machine."""
        if not authorized and not _is_local(request):
            return _line(HTTPStatus.FORBIDDEN, _FOR_LOOPBACK)
        try:
            if request.path == STATE_PATH:
                return await self._state()
            return await self._pprof(request)
        except AdminError as error:
            return error.answer

    async def _pprof(self, request: HttpRequest) -> Answer:
        name = request.path.removeprefix(f"{PPROF_PATH}/")
        if not name:
            lines = "".join(f"{PPROF_PATH}/{each}: {text}\n" for each, text in _PROFILES.items())
            return Answer(HTTPStatus.OK, lines.encode(), _TEXT)
        if name not in _PROFILES:
            return _line(HTTPStatus.NOT_FOUND, f"no such profile: use {', '.join(_PROFILES)}")
        level = (*request.parameters("debug"), "0")[0]
        if name == "goroutine":
            return await self._stacks(level)
        seconds = _seconds(request, _SECONDS[name])
        if seconds is None:
            return _line(HTTPStatus.BAD_REQUEST, f"seconds: write a number from 0.1 to {_MOST_SECONDS:g}")
        if self._is_busy:
            text = "another profile is being taken: ask again when it is done"
            return _line(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "10"})
        _log.info("profile begins", profile=name, seconds=seconds)
        return _shown(await self._taken(cpu_profile if name == "profile" else heap_profile, seconds), level)

    async def _taken(self, take: Callable[[float, Event], Profile], seconds: float) -> Profile:
        """Return a profile; it ends where the client leaves."""
        stop = Event()
        self._is_busy = True
        taking = asyncio.ensure_future(asyncio.to_thread(take, seconds, stop))
        taking.add_done_callback(self._done)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            stop.set()
            raise

    def _done(self, taking: asyncio.Future[Profile]) -> None:
        self._is_busy = False
        if not taking.cancelled():
            taking.exception()  # else asyncio says that nobody asked for it, where the client left

    async def _stacks(self, level: str) -> Answer:
        found = [*stacks.threads()]
        of_tasks = await self._loop.call(stacks.tasks)
        while (some := await self._loop.call(lambda: next(of_tasks, None))) is not None:
            found += some
        if level == "0":
            return _shown(stacks.as_profile(found), level)
        text = stacks.as_text(found) if level == "2" else stacks.as_groups(found)
        return Answer(HTTPStatus.OK, text.encode("utf-8", "backslashreplace"), _TEXT)

    async def _state(self) -> Answer:
        """Answer with the state of each plugin, or why there is none; one plugin in each turn of the loop."""
        plugins = await self._loop.call(lambda: dict(self._plugins()))
        states = {name: await self._state_of(plugin) for name, plugin in plugins.items()}
        content = {"timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"), "plugins": states}
        return Answer(HTTPStatus.OK, msgspec.json.encode(content) + b"\n", _JSON)

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


def _is_local(request: HttpRequest) -> bool:
    """Return whether a client is on this machine, and no page of another site that has given itself our address."""
    try:
        peer = ip_address(request.peer.partition("%")[0])
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


def _seconds(request: HttpRequest, default: float) -> float | None:
    values = request.parameters("seconds")
    if not values:
        return default
    try:
        seconds = float(values[0])
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0.1 <= seconds <= _MOST_SECONDS else None  # noqa: PLR2004  as said


def _shown(profile: Profile, level: str) -> Answer:
    if level != "0":
        return Answer(HTTPStatus.OK, profile.as_text().encode("utf-8", "backslashreplace"), _TEXT)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": 'attachment; filename="profile.pb.gz"',
    }
    return Answer(HTTPStatus.OK, encoded(profile), headers)


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{text}\n".encode(), {**_TEXT, **(headers or {})})
