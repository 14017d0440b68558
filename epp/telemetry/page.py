# SPDX-License-Identifier: Apache-2.0
"""The operator page over HTTP: `/metrics`, `/healthz`, scores for a hub, and how placements chose their clusters."""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Protocol, TypeAlias

import msgspec
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from epp.telemetry.cluster_scores import LOCAL_CLUSTER, SCORES_PATH
from epp.telemetry.connection_series import ConnectionCounts, Cut
from epp.telemetry.http_connections import Contexts
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer, HttpLimits, HttpThread
from epp.telemetry.rendering import rendered

_METHODS = ("GET", "HEAD")
_HEALTH_PATH = "/healthz"
PLACEMENTS_PATH = "/debug/placements"
"""Where the hub's own debugger is, too; `/<namespace>/<name>` of one placement may follow."""
_LONGEST_NAME = 253
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
_JSON = {"Content-Type": "application/json"}
_MOST_WAITING = 8
"""Pages of a client's own choice that wait to be rendered, or are: those that all ask for do not wait for more."""
_READY, _UNREADY = b"+", b"-"

Access: TypeAlias = Callable[[HttpRequest], Awaitable[Answer | None]]

_log = structlog.get_logger()


class DebugAnswers(Protocol):
    """A page for operators on the same machine."""

    @property
    def path(self) -> str:
        """Path of the page."""

    async def answer(self, request: HttpRequest, *, authorized: bool) -> Answer:
        """Answer a request; `authorized` is whether the client has shown that it may ask."""


class _BusyError(Exception):
    """Too many pages wait to be rendered."""


class OperatorPage:
    """Served from its own thread."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], Mapping[str, object]],
        limits: HttpLimits = HttpLimits(),  # noqa: B008  frozen
        *,
        scores: Callable[[str], Mapping[str, object]] | None = None,
        explanations: Callable[[], Mapping[str, object]] | None = None,
        access: Access | None = None,
        counts: ConnectionCounts | None = None,
        tls: Contexts | None = None,
        debug: Callable[[], DebugAnswers] | None = None,
    ) -> None:
        """Prepare; all are called in any thread.

        `scores` returns those of all clusters, given the name of the local one; `explanations`, those of placements by
        `namespace/name`; `access`, why a request is refused. Without it, anyone may ask, but for pages of `debug`:
        that is called as the page is opened, on the event loop of what they show.
        """
        self._access = access
        self._make_debug = debug
        self._debug: DebugAnswers | None = None
        self._counts = counts or ConnectionCounts()
        self._tls = tls
        self._scores = scores
        self._explanations = explanations
        self._paths = (
            "/metrics",
            _HEALTH_PATH,
            *(() if scores is None else (SCORES_PATH,)),
            *(() if explanations is None else (PLACEMENTS_PATH,)),
        )
        self._registry = registry
        self._health = health
        self._limits = limits
        self._server: HttpThread | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._server is None else self._server.port

    def open(self, host: str, port: int) -> None:
        """Listen and serve; raises OSError."""
        if self._make_debug is not None:
            self._debug = self._make_debug()
            self._paths = (*self._paths, self._debug.path)
        rendering, health = _Rendering(self._registry), _Rendering(self._registry)

        async def answer(request: HttpRequest) -> Answer:
            try:
                return await self._answer_if_allowed(request, rendering, health)
            except _BusyError:
                self._counts.cut(Cut.BUSY)
                text = "busy: too many selections of metrics are asked for at once; ask again, or for the whole page"
                return _line(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "1"})
            except Exception as error:  # noqa: BLE001  other requests are still answered
                _log.exception("operator page failed", path=request.path)
                return _line(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log")

        self._server = HttpThread(
            host, port, answer, self._limits, name="operator page", counts=self._counts, tls=self._tls
        )

    def close(self) -> None:
        """Stop serving; blocks until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer_if_allowed(self, request: HttpRequest, rendering: "_Rendering", health: "_Rendering") -> Answer:
        refusal = None if self._access is None else await self._access(request)
        if refusal is None:
            return await self._answer(request, rendering, health)
        if request.path == _HEALTH_PATH and request.method in _METHODS:  # of probes, which have no token
            known = await self._answer(request, rendering, health)
            ready = known.status is HTTPStatus.OK
            return Answer(known.status, json.dumps({"ready": ready}).encode() + b"\n", _JSON)
        self._counts.cut(Cut.UNAUTHORIZED)
        return refusal

    async def _answer(self, request: HttpRequest, rendering: "_Rendering", health: "_Rendering") -> Answer:
        of_placement = self._explanations is not None and request.path.startswith(f"{PLACEMENTS_PATH}/")
        is_for_debug = self._debug is not None and request.path == self._debug.path
        if request.path not in self._paths and not of_placement and not is_for_debug:
            return _line(HTTPStatus.NOT_FOUND, f"not found: use {' or '.join(self._paths)}")
        if request.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            refusal = f"method {request.method} is not allowed: use {' or '.join(_METHODS)}"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"Allow": allowed})
        return await self._found(request, rendering, health, is_for_debug=is_for_debug)

    async def _found(
        self, request: HttpRequest, rendering: "_Rendering", health: "_Rendering", *, is_for_debug: bool
    ) -> Answer:
        if self._debug is not None and is_for_debug:
            return await self._debug.answer(request, authorized=self._access is not None)
        if request.path == "/metrics":
            return await rendering.page(request)
        if request.path == SCORES_PATH and self._scores is not None:
            return await _cluster_scores(request, rendering, self._scores)
        if self._explanations is not None and request.path.startswith(PLACEMENTS_PATH):
            return await _placements(request, rendering, self._explanations)
        state = await health.shared(request.path, self._state)
        status = HTTPStatus.OK if state.startswith(_READY) else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, state[1:], _JSON)

    def _state(self) -> bytes:
        """Return the state of health after a byte for whether it is a good one."""
        state = self._health()
        return (_READY if state.get("ready") else _UNREADY) + json.dumps(state).encode() + b"\n"


class _Rendering:
    """Renders one page at a time, in a thread; concurrent requests for the same page share it.

    A page is rendered with pauses in between, and after it comes one that is as long as all of it: rendering takes a
    sixth of the interpreter's time from the event loop that routes requests, however often clients ask.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = asyncio.Lock()
        self._pause_until = 0.0
        self._rendering: dict[Hashable, asyncio.Task[bytes]] = {}

    async def page(self, request: HttpRequest) -> Answer:
        """Return the metrics in a format that the client accepts; only those in `name[]`, if given."""
        try:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # an invalid version
            encoder, content_type = choose_encoder("")
        names = frozenset(request.parameters("name[]"))
        compress = gzip_accepted(request.headers.get("accept-encoding", ""))

        def render() -> bytes:
            registry = self._registry.restricted_registry(names) if names else self._registry
            with _no_collection():
                return rendered(encoder, registry, compress=compress)

        body = await self.shared((content_type, names, compress), render, chosen=bool(names))
        headers = {"Content-Type": content_type, **({"Content-Encoding": "gzip"} if compress else {})}
        return Answer(HTTPStatus.OK, body, headers)

    async def shared(self, key: Hashable, render: Callable[[], bytes], *, chosen: bool = False) -> bytes:
        """Return what `render` returns in a thread, or did for another request with the same key that waits for it.

        Raises _BusyError for a page that the client has `chosen`, where very many are.
        """
        task = self._rendering.get(key)
        if task is None:
            if chosen and len(self._rendering) >= _MOST_WAITING:
                raise _BusyError
            task = self._rendering[key] = asyncio.create_task(self._render_next(render))
            task.add_done_callback(lambda _: self._rendering.pop(key))
        return await asyncio.shield(task)  # other clients may wait for it if this one disconnects

    async def _render_next(self, render: Callable[[], bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._lock:
            await asyncio.sleep(self._pause_until - loop.time())
            started = loop.time()
            try:
                return await asyncio.to_thread(render)
            finally:
                self._pause_until = 2 * loop.time() - started


async def _cluster_scores(
    request: HttpRequest, rendering: _Rendering, scores: Callable[[str], Mapping[str, object]]
) -> Answer:
    """Return the scores of all clusters; `?cluster=NAME` names the local one."""
    local = (*request.parameters("cluster"), LOCAL_CLUSTER)[0]
    if not 0 < len(local) <= _LONGEST_NAME:
        return _line(
            HTTPStatus.BAD_REQUEST, f"cluster has {len(local)} characters: write a name of 1 to {_LONGEST_NAME}"
        )
    body = await rendering.shared((SCORES_PATH, local), lambda: json.dumps(scores(local)).encode() + b"\n", chosen=True)
    return Answer(HTTPStatus.OK, body, _JSON)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let no garbage be looked for, as thousands of samples would make Python do: it would stop the event loop."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _placements(
    request: HttpRequest, rendering: _Rendering, explanations: Callable[[], Mapping[str, object]]
) -> Answer:
    """Return the explanation of one placement, or of all by name."""
    name = request.path.removeprefix(PLACEMENTS_PATH).strip("/")
    found = explanations()
    if name and name not in found:
        return _line(HTTPStatus.NOT_FOUND, f"no such placement is evaluated here: see {PLACEMENTS_PATH} for all")
    shown = found[name] if name else found
    body = await rendering.shared((PLACEMENTS_PATH, name), lambda: msgspec.json.encode(shown) + b"\n", chosen=True)
    return Answer(HTTPStatus.OK, body, _JSON)


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{text}\n".encode(), {**_TEXT, **(headers or {})})
