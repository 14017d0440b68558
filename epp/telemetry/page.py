# SPDX-License-Identifier: Apache-2.0
"""The metrics port: `/metrics`, `/healthz`, scores for a hub, and how placements chose their clusters."""

import asyncio
import gc
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from http import HTTPStatus
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.runtime.http_connections import ConnectionCounts, Contexts, Cut
from epp.runtime.http_server import Handler, HttpLimits, HttpServer, response
from epp.telemetry.cluster_scores import LOCAL_CLUSTER, SCORES_PATH
from epp.telemetry.families import Samples

_HEALTH_PATH: Final = "/healthz"
PLACEMENTS_PATH: Final = "/debug/placements"
"""The path that the hub's own debugger has; `/<namespace>/<name>` of one placement may follow."""
_LONGEST_NAME: Final = 253
_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_JSON: Final = {"Content-Type": "application/json"}
_MOST_WAITING: Final = 8
"""Selections of metrics that may wait to be rendered. The whole page waits for no more than these."""

Access: TypeAlias = Callable[[web.Request], Awaitable[web.Response | None]]
"""Returns the refusal of a request; None for a request that may be answered."""

_log = structlog.get_logger()

T = TypeVar("T")


class _BusyError(Exception):
    """Too many selections of metrics wait to be rendered."""


class OperatorPage:
    """Served in its own thread."""

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
        debug: Callable[[], web.RouteDef] | None = None,
    ) -> None:
        """Prepare. The callables are called in any thread.

        `scores` returns the scores of all clusters, given the name of the local one; `explanations`, those of
        placements by `namespace/name`. `access` returns the refusal of a request; without it, any client may ask for
        any page. `debug` is called as the port is opened, on the event loop that owns the plugins, and returns the
        route of a page of its own.
        """
        self._access = access
        self._make_debug = debug
        self._counts = counts or ConnectionCounts()
        self._tls = tls
        self._scores = scores
        self._explanations = explanations
        self._registry = registry
        self._health = health
        self._limits = limits
        self._server: HttpServer | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._server is None else self._server.port

    def open(self, host: str, port: int) -> None:
        """Listen and serve; raises OSError."""
        app = web.Application(middlewares=[self._answer_failures, self._check_access])
        app.add_routes(self._routes())
        self._server = HttpServer(
            host, port, app, self._limits, name="metrics port", counts=self._counts, tls=self._tls
        )

    def close(self) -> None:
        """Stop serving; block until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _routes(self) -> list[web.RouteDef]:
        rendering, health = _Rendering(self._registry), _Rendering(self._registry)

        async def healthz(_request: web.Request) -> web.Response:
            ready, state = await health.shared(_HEALTH_PATH, self._state)
            return response(state, _JSON, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

        routes = [web.get("/metrics", rendering.page), web.get(_HEALTH_PATH, healthz)]
        if self._scores is not None:
            routes.append(web.get(SCORES_PATH, partial(_cluster_scores, rendering, self._scores)))
        if self._explanations is not None:
            placements = partial(_placements, rendering, self._explanations)
            routes += [web.get(PLACEMENTS_PATH, placements), web.get(PLACEMENTS_PATH + "/{name:.*}", placements)]
        if self._make_debug is not None:
            routes.append(self._make_debug())
        return routes

    @web.middleware
    async def _answer_failures(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            known = dict.fromkeys(each.canonical for each in request.app.router.resources())
            paths = " or ".join(path for path in known if "{" not in path)
            return _line(HTTPStatus.NOT_FOUND, f"not found: use {paths}")
        except web.HTTPMethodNotAllowed:
            refusal = f"method {request.method} is not allowed: use GET or HEAD"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"Allow": "GET, HEAD"})
        except _BusyError:
            self._counts.cut(Cut.BUSY)
            text = "busy: too many selections of metrics are asked for at once; ask again, or for the whole page"
            return _line(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "1"})
        except Exception as error:  # noqa: BLE001  other requests are still answered
            _log.exception("metrics port failed", path=request.path)
            return _line(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log")

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = None if self._access is None else await self._access(request)
        if refusal is None:
            return await handler(request)
        if request.path == _HEALTH_PATH and request.method in {"GET", "HEAD"}:  # probes have no token
            status = HTTPStatus((await handler(request)).status)
            return response(json.dumps({"ready": status is HTTPStatus.OK}).encode() + b"\n", _JSON, status)
        self._counts.cut(Cut.UNAUTHORIZED)
        return refusal

    def _state(self) -> tuple[bool, bytes]:
        """Return whether the picker is ready, and its state of health as JSON."""
        state = self._health()
        return bool(state.get("ready")), json.dumps(state).encode() + b"\n"


class _Rendering:
    """Renders one page at a time, in a thread. Concurrent requests for the same page share it.

    Rendering pauses now and then, and after each page for as long as it took: it takes at most a sixth of the
    interpreter's time from the event loop that routes requests, however often clients ask.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = asyncio.Lock()
        self._pause_until = 0.0
        self._rendering: dict[Hashable, asyncio.Task[object]] = {}

    async def page(self, request: web.Request) -> web.Response:
        """Return the metrics in a format that the client accepts; only those in `name[]`, if given."""
        try:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # an invalid version
            encoder, content_type = choose_encoder("")
        names = frozenset(request.query.getall("name[]", ()))
        compress = gzip_accepted(request.headers.get("accept-encoding", ""))

        def render() -> bytes:
            registry = self._registry.restricted_registry(names) if names else self._registry
            with no_collection():
                return rendered(encoder, registry, compress=compress)

        body = await self.shared((content_type, names, compress), render, chosen=bool(names))
        return response(body, {"Content-Type": content_type, **({"Content-Encoding": "gzip"} if compress else {})})

    async def shared(self, key: Hashable, render: Callable[[], T], *, chosen: bool = False) -> T:
        """Return what `render` returns in a thread; requests with the same key that wait for it share one call.

        Raises _BusyError for a selection that the client has `chosen`, where too many wait.
        """
        task = self._rendering.get(key)
        if task is None:
            if chosen and len(self._rendering) >= _MOST_WAITING:
                raise _BusyError
            task = self._rendering[key] = asyncio.create_task(self._render_next(render))
            task.add_done_callback(lambda _: self._rendering.pop(key))
        return cast("T", await asyncio.shield(task))  # other clients may wait for it if this one disconnects

    async def _render_next(self, render: Callable[[], object]) -> object:
        loop = asyncio.get_running_loop()
        async with self._lock:
            await asyncio.sleep(self._pause_until - loop.time())
            started = loop.time()
            try:
                return await asyncio.to_thread(render)
            finally:
                self._pause_until = 2 * loop.time() - started


async def _cluster_scores(
    rendering: _Rendering, scores: Callable[[str], Mapping[str, object]], request: web.Request
) -> web.Response:
    """Return the scores of all clusters; `?cluster=NAME` names the local one."""
    local = request.query.get("cluster", LOCAL_CLUSTER)
    if not 0 < len(local) <= _LONGEST_NAME:
        return _line(
            HTTPStatus.BAD_REQUEST, f"cluster has {len(local)} characters: write a name of 1 to {_LONGEST_NAME}"
        )
    body = await rendering.shared((SCORES_PATH, local), lambda: json.dumps(scores(local)).encode() + b"\n", chosen=True)
    return response(body, _JSON)


@contextmanager
def no_collection() -> Iterator[None]:
    """Do not collect garbage: thousands of samples would make Python do it, which stops the event loop."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _placements(
    rendering: _Rendering, explanations: Callable[[], Mapping[str, object]], request: web.Request
) -> web.Response:
    """Return the explanation of one placement, or of all by name."""
    name = request.match_info.get("name", "").strip("/")
    found = explanations()
    if name and name not in found:
        return _line(HTTPStatus.NOT_FOUND, f"no such placement is evaluated here: see {PLACEMENTS_PATH} for all")
    shown = found[name] if name else found
    body = await rendering.shared((PLACEMENTS_PATH, name), lambda: msgspec.json.encode(shown) + b"\n", chosen=True)
    return response(body, _JSON)


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return response(f"{text}\n".encode(), {**_TEXT, **(headers or {})}, status)


_WORK_SECONDS = 0.0005
"""Time after which there is a pause: what a request waits for at most, each time it wants the interpreter back."""
_PAUSE = 2.0
"""Length of a pause, as a multiple of the work before it."""
_SAMPLES = 16
"""Samples between two looks at the clock."""


class Pace:
    """Gives a thread a third of the time at most."""

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Prepare; the work begins now."""
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def rest(self) -> None:
        """Pause if there was enough work since the last pause."""
        worked = self._clock() - self._began
        if worked >= _WORK_SECONDS:
            self._sleep(_PAUSE * worked)
            self._began = self._clock()


def paced(
    registry: Collector,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Metric]:
    """Yield the metrics of a registry; what renders them runs in a thread, and takes a third of the time at most."""
    metrics = registry.collect()  # a collector that asks others first waits for them, which is no work
    rest = Pace(clock=clock, sleep=sleep).rest

    def rested(samples: Iterable[Sample]) -> Iterator[Sample]:
        remaining = iter(samples)
        while some := tuple(islice(remaining, _SAMPLES)):
            yield from some
            rest()

    for metric in metrics:
        rest()
        slow = copy(metric)  # a collector may keep its own
        slow.samples = Samples(partial(rested, metric.samples))
        yield slow


Encoder: TypeAlias = Callable[[Any], bytes]
"""Writes the metrics of a collector in one format, as prometheus_client chooses it."""

_END = b"# EOF\n"
_GZIP_LEVEL = 1  # a thirtieth of the size; higher levels take five times as long for little gain
_GZIP_FORMAT = 31


def rendered(encoder: Encoder, metrics: Collector, *, compress: bool) -> bytes:
    """Return the page of a collector, with pauses in between; gzipped with `compress`."""
    pieces = _pieces(encoder, metrics)
    if not compress:
        return b"".join(pieces)
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
    return b"".join([*(compressor.compress(piece) for piece in pieces), compressor.flush()])


def _pieces(encoder: Encoder, metrics: Collector) -> Iterator[bytes]:
    end = b""
    for metric in paced(metrics):
        piece = encoder(SimpleNamespace(collect=partial(iter, (metric,))))
        if piece.endswith(_END):  # of every page in the format of OpenMetrics
            piece, end = piece[: -len(_END)], _END
        yield piece
    yield end
