"""A running picker: one configuration, one pool, and the servers that answer for it."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from epp.collectors import Collector, Tagging
from epp.config import (
    Assembly,
    Builder,
    ConfigFollower,
    ConfigState,
    LoadedConfig,
    assemble,
    default_config,
)
from epp.datastore import Datastore
from epp.director import Director
from epp.extproc.habits import Habits
from epp.extproc.request_half import DEFAULT_MAX_BODY_BYTES
from epp.extproc.server import ExtProcServer, ServerSettings
from epp.extproc.session import Session
from epp.framework import ConfigurationError, SystemClock
from epp.framework.datalayer import Discovery, FollowingTagger
from epp.framework.plugins import Parameters, Plugin
from epp.framework.registry import Registry
from epp.observability.inputs import InputMetrics
from epp.observability.metrics import Metrics
from epp.observability.page import OperatorPage

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings:
    """What the command line says, beside the configuration file."""

    server: ServerSettings
    config: LoadedConfig | None = None
    """None for the built-in default."""
    watch_config: Path | None = None
    """The file that `config` was read from, to take new versions of it over; None to stay with what it said."""
    experimental: bool = False
    """Whether plugins of stability Alpha may be used."""
    plugin_modules: tuple[str, ...] = ()
    """Python modules whose classes a configuration may name as `module:Class`."""
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
        self._clock = SystemClock()
        self._registry = Registry(modules=settings.plugin_modules)
        self.metrics = Metrics(settings.pool_name, self._clock)
        loaded = settings.config or default_config()
        self._assembly = self._build(loaded, {})
        self._discovery = self._discovery_of(self._assembly)
        self.store = Datastore(self._clock)
        self.director = Director(
            self.store, self._assembly.pipeline, self._clock, observer=self.metrics, use_subset=settings.use_subset
        )
        self._tagging = Tagging(self.store, self._assembly.taggers, observer=self.metrics)
        self._collector = Collector(
            self.store,
            self._assembly.feeds,
            clock=self._clock,
            interval_seconds=settings.refresh_metrics_seconds,
            observer=self.metrics,
        )
        self._follower: ConfigFollower | None = None
        if settings.watch_config is not None:
            self._follower = ConfigFollower(
                settings.watch_config, loaded, build=self._rebuild, take=self._take, observer=self.metrics
            )
        self.server = ExtProcServer(self._session, settings.server)
        self.metrics.registry.register(InputMetrics(lambda: self._assembly.plugins))
        self._page = OperatorPage(self.metrics.registry, self._health)
        self._ready = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._keeping_up: dict[FollowingTagger[Any], asyncio.Task[None]] = {}

    @property
    def metrics_port(self) -> int:
        """The port of the metrics page; 0 where there is none."""
        return self._page.port

    @property
    def metadata_namespaces(self) -> frozenset[str]:
        """Where the configuration's plugins put dynamic metadata, for gateways that have to be told."""
        return self._assembly.pipeline.metadata_namespaces

    @property
    def config(self) -> ConfigState:
        """Which configuration is in effect."""
        return ConfigState() if self._follower is None else self._follower.state

    async def start(self) -> None:
        """Listen, find the pool, begin to collect, then be ready; raises ConfigurationError."""
        for warning in self._assembly.warnings:
            _log.warning("configuration", warning=str(warning))
        try:
            await self.server.start()
            self._open_page()
            await self._discovery.start(self.store)
        except BaseException:
            await self.stop(drain_seconds=0)
            raise
        self._following = self._in_background("discovery", self._discovery.follow(self.store))
        self._keep_up()
        self._in_background("pool gauges", self._refresh_gauges())
        if self._follower is not None:
            self._in_background("configuration", self._follower.follow())
        await self._collector.start()
        self._ready = True
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
        self._ready = False
        if most_seconds > 0:
            _log.info("draining", most_seconds=most_seconds)
            await self.server.drain(most_seconds, self._settings.drain_quiet_seconds, enough or asyncio.Event())
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._collector.stop()
        for feed in self._assembly.feeds:
            await feed.source.close()
        await asyncio.to_thread(self._page.close)

    def _rebuild(self, loaded: LoadedConfig) -> Assembly:
        """Make the plugins of a new configuration; those that the present one has too are taken over, state and all."""
        return self._build(loaded, self._assembly.instances.by_name)

    def _build(self, loaded: LoadedConfig, previous: Mapping[str, Plugin[Any]]) -> Assembly:
        builder = Builder(self._registry, self._clock, experimental=self._settings.experimental, previous=previous)
        assembly = assemble(loaded, builder, observer=self.metrics)
        self._discovery_of(assembly)
        return assembly

    async def _take(self, assembly: Assembly) -> None:
        """Put another configuration into effect; raises ConfigurationError, with nothing changed, where it cannot."""
        discovery = self._discovery_of(assembly)
        self._collector.checked(assembly.feeds)
        if discovery is not self._discovery:
            await discovery.start(self.store)
            if self._following is not None:
                self._following.cancel()
            self._discovery = discovery
            self._following = self._in_background("discovery", discovery.follow(self.store))
            self._tagging.replace(assembly.taggers)  # at once: the filters before know nothing of the pool there is now
        else:
            await self._tagging.change_over(assembly.taggers)
        self.director.use(assembly.pipeline)
        before, self._assembly = self._assembly, assembly
        self._keep_up()
        await self._collector.replace(assembly.feeds)
        for feed in before.feeds:
            if all(feed.source is not kept.source for kept in assembly.feeds):
                await feed.source.close()

    def _keep_up(self) -> None:
        """Let every tagger that is in use follow its source, and no other."""
        wanted = {tagger for tagger in self._assembly.taggers if isinstance(tagger, FollowingTagger)}
        for tagger in self._keeping_up.keys() - wanted:
            self._keeping_up.pop(tagger).cancel()
        for tagger in wanted - self._keeping_up.keys():
            self._keeping_up[tagger] = self._in_background(tagger.name, tagger.follow(self._tagging.refresh))

    def _discovery_of(self, assembly: Assembly) -> Discovery[Any]:
        discovery = self._settings.discovery or assembly.discovery
        if discovery is None:
            raise ConfigurationError(
                "no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery"
            )
        return discovery

    def _health(self) -> dict[str, object]:
        config = self.config
        return {
            "ready": self._ready,
            "endpoints": len(self.store.endpoints),
            "config": {"generation": config.generation, "refused": config.refused or None},
            "not_in_effect": [
                {"plugin": plugin.name, **asdict(problem)}
                for plugin in self._assembly.plugins
                for problem in plugin.inputs.problems
            ],
        }

    def _session(self, habits: Habits) -> Session:
        settings = self._settings
        return Session(
            self.director,
            emit_scores=settings.emit_endpoint_scores,
            plain_errors=settings.plain_errors,
            max_body_bytes=settings.max_body_bytes,
            habits=habits,
        )

    def _open_page(self) -> None:
        if self._settings.metrics_address is None:
            return
        host, port = self._settings.metrics_address
        try:
            self._page.open(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"the metrics page cannot listen on port {port}: {error.strerror}; choose another with --metrics-port"
            ) from error

    async def _refresh_gauges(self) -> None:
        while True:
            self.metrics.refresh_pool(self.store)
            await asyncio.sleep(self._settings.refresh_prometheus_seconds)

    def _in_background(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_end)
        return task


def _report_end(task: asyncio.Task[None]) -> None:
    """Say so when a background task dies: it takes nothing with it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background task ended", task=task.get_name(), error=str(error), exc_info=error)
