"""A running picker: one configuration, one pool, and the servers that answer for it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import start_http_server

from epp.collectors import Collector
from epp.config import EndpointPickerConfig, assemble, default_config
from epp.datastore import Datastore
from epp.director import Director
from epp.extproc.habits import Habits
from epp.extproc.request_half import DEFAULT_MAX_BODY_BYTES
from epp.extproc.server import ExtProcServer, ServerSettings
from epp.extproc.session import Session
from epp.framework import ConfigurationError, SystemClock
from epp.framework.datalayer import Discovery
from epp.framework.plugins import Parameters
from epp.framework.registry import Registry
from epp.observability.metrics import Metrics

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings:
    """What the command line says, beside the configuration file."""

    server: ServerSettings
    config: EndpointPickerConfig | None = None
    """None for the built-in default."""
    discovery: Discovery[Parameters] | None = None
    """Who is in the pool; comes before what the configuration names."""
    pool_name: str = "default"
    """Label of the pool's metrics."""
    metrics_address: tuple[str, int] | None = None
    """Host and port of the metrics page; None for no page, port 0 for any free one."""
    refresh_metrics_seconds: float = 0.05
    """Time between two polls of an endpoint."""
    refresh_prometheus_seconds: float = 5.0
    """Time between two updates of the pool's gauges."""
    emit_endpoint_scores: bool = False
    use_subset: bool = True
    plain_errors: bool = False
    """Whether refusals are bare sentences for all, instead of the JSON of the API that was asked."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """The largest request body taken."""
    drain_seconds: float = 30.0
    """How long the picker serves on at most once it is told to stop."""
    drain_quiet_seconds: float = 2.0
    """How long no stream must have been open before it stops: the time in which a gateway sees that it is unready."""


class Picker:
    """Start it, wait for something else, stop it."""

    def __init__(self, settings: PickerSettings) -> None:
        self._settings = settings
        clock = SystemClock()
        self.metrics = Metrics(settings.pool_name, clock)
        assembly = assemble(settings.config or default_config(), Registry(), clock, observer=self.metrics)
        discovery = settings.discovery or assembly.discovery
        if discovery is None:
            raise ConfigurationError(
                "no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery"
            )
        self._discovery = discovery
        self.store = Datastore(clock)
        self.director = Director(
            self.store, assembly.pipeline, clock, observer=self.metrics, use_subset=settings.use_subset
        )
        self._sources = tuple(feed.source for feed in assembly.feeds)
        self._collector = Collector(
            self.store,
            assembly.feeds,
            clock=clock,
            interval_seconds=settings.refresh_metrics_seconds,
            observer=self.metrics,
        )
        self.server = ExtProcServer(self._session, settings.server)
        self.metrics_port = 0
        self._metrics_page: tuple[WSGIServer, Thread] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, find the pool, begin to collect, then be ready; raises ConfigurationError."""
        try:
            await self.server.start()
            self._open_metrics_page()
            await self._discovery.start(self.store)
        except BaseException:
            await self.stop(drain_seconds=0)
            raise
        self._in_background("discovery", self._discovery.follow(self.store))
        self._in_background("pool gauges", self._refresh_gauges())
        await self._collector.start()
        self.server.set_ready(ready=True)
        _log.info(
            "ready",
            endpoints=len(self.store.endpoints),
            grpc=self.server.port or self._settings.server.address,
            health=self.server.health_port or None,
            metrics=self.metrics_port or None,
        )

    async def stop(self, *, drain_seconds: float | None = None, enough: asyncio.Event | None = None) -> None:
        """Serve on, unready, until the gateways have turned elsewhere; then cut what is open and let go of everything.

        The drain is over when its seconds are (by default those of the settings), or when `enough` is set.
        """
        most_seconds = self._settings.drain_seconds if drain_seconds is None else drain_seconds
        if most_seconds > 0:
            _log.info("draining", most_seconds=most_seconds)
            await self.server.drain(most_seconds, self._settings.drain_quiet_seconds, enough or asyncio.Event())
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._collector.stop()
        for source in self._sources:
            await source.close()
        if self._metrics_page is not None:
            server, thread = self._metrics_page
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()
            self._metrics_page = None

    def _session(self, habits: Habits) -> Session:
        settings = self._settings
        return Session(
            self.director,
            emit_scores=settings.emit_endpoint_scores,
            plain_errors=settings.plain_errors,
            max_body_bytes=settings.max_body_bytes,
            habits=habits,
        )

    def _open_metrics_page(self) -> None:
        if self._settings.metrics_address is None:
            return
        host, port = self._settings.metrics_address
        try:
            server, thread = start_http_server(port, host, self.metrics.registry)
        except OSError as error:
            raise ConfigurationError(
                f"the metrics page cannot listen on port {port}: {error.strerror}; choose another with --metrics-port"
            ) from error
        self._metrics_page = (server, thread)
        self.metrics_port = server.server_port

    async def _refresh_gauges(self) -> None:
        while True:
            self.metrics.refresh_pool(self.store)
            await asyncio.sleep(self._settings.refresh_prometheus_seconds)

    def _in_background(self, name: str, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(_report_end)


def _report_end(task: asyncio.Task[None]) -> None:
    """Say so when a background task dies: it takes nothing with it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background task ended", task=task.get_name(), error=str(error), exc_info=error)
