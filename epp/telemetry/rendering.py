# SPDX-License-Identifier: Apache-2.0
"""Rendering of metrics pages in a thread, with pauses for the event loop; the metrics of several pools as one page."""

import asyncio
import gc
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar, cast

from aiohttp import web
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry, RestrictedRegistry
from prometheus_client.samples import Sample

from epp.runtime.http_server import response
from epp.telemetry.families import Samples

_WORK_SECONDS = 0.0005
"""Work between two pauses: the longest that the event loop waits for the interpreter."""
_PAUSE = 2.0
"""Length of a pause, as a multiple of the work before it."""
_SAMPLES = 16
"""Samples between two checks of the clock."""
_END = b"# EOF\n"
_GZIP_LEVEL = 1  # a thirtieth of the size; higher levels take five times as long for little gain
_GZIP_FORMAT = 31
_MOST_WAITING: Final = 8
"""Most selections of metrics that wait to be rendered. The whole page may wait beside them."""

Encoder: TypeAlias = Callable[[Any], bytes]
"""Encodes the metrics of a collector in the format that prometheus_client chooses."""

T = TypeVar("T")
LABEL = "inference_pool"
"""Label of the pool, as in the flow-control metrics of llm-d-router."""


class BusyError(Exception):
    """Too many selections of metrics wait to be rendered."""


class Rendering:
    """Renders one page at a time, in a thread. Concurrent requests for the same page share it.

    Rendering pauses regularly, and after each page for as long as the page took. The event loop that routes requests
    loses at most a sixth of the interpreter's time, however many requests for pages arrive.
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
        """Call `render` in a thread and return its result; concurrent calls with the same key share it.

        Raises BusyError for a selection that the client has `chosen` if too many wait.
        """
        task = self._rendering.get(key)
        if task is None:
            if chosen and len(self._rendering) >= _MOST_WAITING:
                raise BusyError
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


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection, which thousands of samples would trigger and which stops the event loop."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Pace:
    """Limits a thread to a third of the time."""

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
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
    registry: Collector, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Metric]:
    """Yield the metrics of a registry with pauses, so that the thread works for at most a third of the time."""
    metrics = registry.collect()  # before `Pace`: it may wait for other processes, which is not work
    rest = Pace(clock=clock, sleep=sleep).rest

    def rested(samples: Iterable[Sample]) -> Iterator[Sample]:
        remaining = iter(samples)
        while some := tuple(islice(remaining, _SAMPLES)):
            yield from some
            rest()

    for metric in metrics:
        rest()
        slow = copy(metric)  # the collector may keep the original
        slow.samples = Samples(partial(rested, metric.samples))
        yield slow


def rendered(encoder: Encoder, metrics: Collector, *, compress: bool) -> bytes:
    """Return the page of a collector, compressed by gzip if wanted; pauses in between."""
    pieces = _pieces(encoder, metrics)
    if not compress:
        return b"".join(pieces)
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
    return b"".join([*(compressor.compress(piece) for piece in pieces), compressor.flush()])


def _pieces(encoder: Encoder, metrics: Collector) -> Iterator[bytes]:
    end = b""
    for metric in paced(metrics):
        piece = encoder(SimpleNamespace(collect=partial(iter, (metric,))))
        if piece.endswith(_END):  # OpenMetrics: the encoder ends each piece like a page
            piece, end = piece[: -len(_END)], _END
        yield piece
    yield end


class MetricsOfPools(CollectorRegistry):
    """The metrics of the process, and those of each pool with the label `inference_pool`."""

    def __init__(self, own: CollectorRegistry, pools: Callable[[], Mapping[str, CollectorRegistry]]) -> None:
        """Prepare; `pools` returns the metrics of the pools by name and is called in any thread."""
        super().__init__()
        self._own = own
        self._pools = pools

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        return cast("RestrictedRegistry", SimpleNamespace(collect=partial(self.collect, frozenset(names))))

    def collect(self, names: frozenset[str] = frozenset()) -> Iterator[Metric]:
        """Yield all metrics, or those with samples of these names."""

        def chosen(registry: CollectorRegistry) -> Collector:
            return registry.restricted_registry(names) if names else registry

        yield from chosen(self._own).collect()
        found: dict[str, dict[str, Metric]] = {}
        for pool, registry in self._pools().items():
            for metric in chosen(registry).collect():
                found.setdefault(metric.name, {})[pool] = metric
        for name, of_pools in found.items():
            first = next(iter(of_pools.values()))
            together = Metric(name, first.documentation, first.type)
            together.samples = Samples(partial(_labelled, of_pools))
            yield together


def _labelled(metrics: Mapping[str, Metric]) -> Iterator[Sample]:
    for pool, metric in metrics.items():
        for sample in metric.samples:
            yield sample._replace(labels={**sample.labels, LABEL: pool})
