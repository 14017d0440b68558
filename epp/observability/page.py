"""The operator's page over HTTP: `/metrics` for Prometheus, `/healthz` for probes and people."""

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from epp.observability.http_thread import Answer, HttpLimits, HttpThread

_METHODS = ("GET", "HEAD")
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
_JSON = {"Content-Type": "application/json"}
_GZIP_LEVEL = 1  # metrics shrink to a thirtieth with it; more takes five times as long for a little less

_log = structlog.get_logger()


class OperatorPage:
    """Served from a thread of its own; ask for `port` once it is open."""

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
        """Begin to answer; raises OSError."""
        rendering = _Rendering(self._registry)

        async def answer(request: web.BaseRequest) -> Answer:
            try:
                return await self._answer(request, rendering)
            except Exception as error:  # noqa: BLE001  the others are answered all the same
                _log.exception("operator page failed", path=request.path)
                return _line(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log")

        self._server = HttpThread(host, port, answer, self._limits)

    def close(self) -> None:
        """End; blocks until the thread has."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, request: web.BaseRequest, rendering: "_Rendering") -> Answer:
        if request.path not in {"/metrics", "/healthz"}:
            return _line(HTTPStatus.NOT_FOUND, "no such path here: ask for /metrics or /healthz")
        if request.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            refusal = f"method {request.method} is not allowed here: use {' or '.join(_METHODS)}"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"Allow": allowed})
        if request.path == "/metrics":
            return await rendering.page(request)
        health = self._health()
        status = HTTPStatus.OK if health.get("ready") else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, json.dumps(health).encode() + b"\n", _JSON)


class _Rendering:
    """Renders one page at a time, in a thread; a request for one that is under way shares it.

    Between two pages it rests for as long as the last one took: however often clients ask, the event loop that routes
    requests has the interpreter to itself for half of the time.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._turn = asyncio.Lock()
        self._rested_at = 0.0
        self._under_way: dict[tuple[str, frozenset[str], bool], asyncio.Task[bytes]] = {}

    async def page(self, request: web.BaseRequest) -> Answer:
        """Return the metrics in the format that the client accepts; of those that `name[]` lists, if it does."""
        try:
            encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is none
            encoder, content_type = choose_encoder("")
        names = frozenset(request.query.getall("name[]", ()))
        compress = gzip_accepted(request.headers.get("Accept-Encoding", ""))

        def render() -> bytes:
            registry = self._registry.restricted_registry(names) if names else self._registry
            body = encoder(registry)
            return gzip.compress(body, _GZIP_LEVEL) if compress else body

        key = content_type, names, compress
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._in_turn(render))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        body = await asyncio.shield(task)  # others may wait for it when this client leaves
        headers = {"Content-Type": content_type, **({"Content-Encoding": "gzip"} if compress else {})}
        return Answer(HTTPStatus.OK, body, headers)

    async def _in_turn(self, render: Callable[[], bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._rested_at - loop.time())
            started = loop.time()
            try:
                return await asyncio.to_thread(render)
            finally:
                self._rested_at = 2 * loop.time() - started


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{text}\n".encode(), {**_TEXT, **(headers or {})})
