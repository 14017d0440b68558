# SPDX-License-Identifier: Apache-2.0
"""A metrics page on a loopback port that answers as a test tells it to."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec
import pytest
from aiohttp import web

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import DataSource, Feed
from epp.framework.endpoint import EndpointTrust
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource, MetricsSourceParameters
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.sources.probes import EndpointTls
from epp.routing.datastore import Datastore
from tests.support.ports import reserved_ports


class PageServer:
    """Answers any path; `stop` and `start` keep the port."""

    def __init__(self, port: int) -> None:
        self.status = 200
        self.page = b"vllm:num_requests_waiting 3\n"
        self.headers: dict[str, str] = {}
        self.hanging = False
        self.asked: list[web.BaseRequest] = []
        self.ports: set[int] = set()
        self.port = port
        self._stopping = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str = "127.0.0.1") -> None:
        await self.stop()
        self._stopping.clear()
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        if self._runner is not None:
            self._stopping.set()
            await self._runner.cleanup()
            self._runner = None

    def endpoint(self, name: str = "e", address: str = "127.0.0.1", **labels: str) -> Endpoint:
        return Endpoint(name, address, self.port, labels=labels)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request)
        if request.transport is not None:
            self.ports.add(request.transport.get_extra_info("peername")[1])
        if self.hanging:
            await self._stopping.wait()
        return web.Response(status=self.status, body=self.page, headers=self.headers)


@pytest.fixture
async def server() -> AsyncIterator[PageServer]:
    with reserved_ports(1) as (port,):
        running = PageServer(port)
        await running.start()
        yield running
        await running.stop()


@pytest.fixture
def store(server) -> Datastore:
    """A store with the endpoint of the server."""
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    return store


@pytest.fixture
async def metrics_feed() -> AsyncIterator[Callable[..., Feed]]:
    """Make feeds whose sources are closed in the end, after the collectors have stopped."""
    sources: list[DataSource] = []

    def make(**parameters: object) -> Feed:
        sources.append(MetricsDataSource(msgspec.convert(parameters, MetricsSourceParameters)))
        return Feed(sources[-1], (CoreMetricsExtractor(),))

    yield make
    for source in sources:
        await source.close()


@pytest.fixture
async def source() -> AsyncIterator[Callable[..., MetricsDataSource]]:
    """Make sources of metrics that are closed in the end, with the trust of a gateway if any."""
    made: list[MetricsDataSource] = []

    def make(trust: EndpointTrust | None = None, **parameters: object) -> MetricsDataSource:
        made.append(MetricsDataSource(msgspec.convert(parameters, MetricsSourceParameters)))
        made[-1].endpoint_tls = None if trust is None else EndpointTls(trust)
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that is bound, so that no server listens on it, but refuses connections."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield deaf.getsockname()[1]


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Wait for a condition, at most for as long as the test may take."""

    async def wait(condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def collecting():
    """Start collectors that are stopped in the end, and leave nothing behind."""
    started: list[Collector] = []
    sources: list[DataSource] = []

    async def start(
        store: Datastore, *feeds: Feed, interval_seconds: float = 0.01, observer=None, limits=None, shared=None
    ) -> Collector:
        sources.extend(feed.source for feed in feeds)
        started.append(
            Collector(
                store,
                feeds,
                clock=SystemClock(),
                interval_seconds=interval_seconds,
                observer=observer,
                generator=random.Random(7 + len(started)),  # each polls at other times, as pickers do
                limits=limits,
                shared=shared,
            )
        )
        await started[-1].start()
        return started[-1]

    yield start
    for one in started:
        await one.stop()
        assert one.feed_count == 0
    for source in sources:
        await source.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("collect")]
