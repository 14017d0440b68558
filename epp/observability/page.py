# SPDX-License-Identifier: Apache-2.0
"""The operator page over HTTP: `/metrics` for Prometheus, `/healthz` for probes and people."""

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from epp.observability.http_request import HttpRequest
from epp.observability.http_thread import Answer, HttpLimits, HttpThread

_METHODS = ("GET", "HEAD")
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
_JSON = {"Content-Type": "application/json"}
_GZIP_LEVEL = 1  # a thirtieth of the size; higher levels take five times as long for little gain

_log = structlog.get_logger()


class OperatorPage:
    """Served from its own thread."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], Mapping[str, object]],
        limits: HttpLimits = HttpLimits(),  # noqa: B008  frozen
    ) -> None:
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
        rendering = _Rendering(self._registry)

        async def answer(request: HttpRequest) -> Answer:
            try:
                return await self._answer(request, rendering)
            except Exception as error:  # noqa: BLE001  other requests are still answered
                _log.exception("operator page failed", path=request.path)
                return _line(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log")

        self._server = HttpThread(host, port, answer, self._limits)

    def close(self) -> None:
        """Stop serving; blocks until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, request: HttpRequest, rendering: "_Rendering") -> Answer:
        if request.path not in {"/metrics", "/healthz"}:
            return _line(HTTPStatus.NOT_FOUND, "not found: use /metrics or /healthz")
        if request.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            refusal = f"method {request.method} is not allowed: use {' or '.join(_METHODS)}"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"Allow": allowed})
        if request.path == "/metrics":
            return await rendering.page(request)
        health = self._health()
        status = HTTPStatus.OK if health.get("ready") else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, json.dumps(health).encode() + b"\n", _JSON)


class _Rendering:
    """Renders one page at a time, in a thread; concurrent requests for the same page share it.

    After each page it pauses for as long as the page took, so that rendering takes at most half of the interpreter's
    time from the event loop that routes requests, however often clients ask.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = asyncio.Lock()
        self._pause_until = 0.0
        self._rendering: dict[tuple[str, frozenset[str], bool], asyncio.Task[bytes]] = {}

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
            body = encoder(registry)
            return gzip.compress(body, _GZIP_LEVEL) if compress else body

        key = content_type, names, compress
        task = self._rendering.get(key)
        if task is None:
            task = self._rendering[key] = asyncio.create_task(self._render_next(render))
            task.add_done_callback(lambda _: self._rendering.pop(key))
        body = await asyncio.shield(task)  # other clients may wait for it if this one disconnects
        headers = {"Content-Type": content_type, **({"Content-Encoding": "gzip"} if compress else {})}
        return Answer(HTTPStatus.OK, body, headers)

    async def _render_next(self, render: Callable[[], bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._lock:
            await asyncio.sleep(self._pause_until - loop.time())
            started = loop.time()
            try:
                return await asyncio.to_thread(render)
            finally:
                self._pause_until = 2 * loop.time() - started


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{text}\n".encode(), {**_TEXT, **(headers or {})})
