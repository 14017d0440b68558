# SPDX-License-Identifier: Apache-2.0
"""A pool with its configuration in effect, which another configuration can replace."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from epp.admission.quotas import Quotas
from epp.app.settings import PoolSettings
from epp.app.source_pool import SourcePool
from epp.config import Assembly
from epp.config.model import POOL_SOURCE
from epp.framework.clock import Clock
from epp.framework.cluster_objects import ObjectNotifications, ObjectReader, Reading
from epp.framework.datalayer import (
    AffectedEndpoints,
    DataSource,
    Discovery,
    EndpointSource,
    Feed,
    Follower,
    Tagger,
    TrustsMetrics,
)
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Plugin, roles_of
from epp.framework.quotas import QuotaSource
from epp.framework.snapshot import INHERITED
from epp.kube.readers import ClusterReaders
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.tagging import Tagging
from epp.pool.discovery import PoolDiscovery, SeveralSources
from epp.pool.discovery.several import SourceState
from epp.routing.datastore import Datastore
from epp.routing.director import Director, DirectorObserver, Observers, Runtime
from epp.routing.director.open_requests import SWEEP_SECONDS, Reservations
from epp.routing.outliers.outlier_detector import OutlierDetector
from epp.routing.outliers.record import ProbeRequest, Verdict
from epp.runtime.supervisor import Supervisor
from epp.telemetry.endpoints import EndpointReport, EndpointState, PriceWatch
from epp.telemetry.metrics import Metrics

_FAILING_SHOWN = 20
_CHECKS = 150
"""Checks for the first reports, in 3 s: a silent endpoint fails after one second, a large pool takes longer."""
_CHECK_SECONDS = 0.02
_TAGGING_SECONDS = 1.0
"""Usual time until endpoints are tagged after the start."""

_log = structlog.get_logger()


class RunningConfig:
    """Owns the datastore, the director and the background tasks of a pool."""

    def __init__(
        self,
        assembly: Assembly,
        clock: Clock,
        metrics: Metrics,
        settings: PoolSettings = PoolSettings(),  # noqa: B008  frozen
        *,
        discovery: Discovery[Any] | None = None,
        readers: ClusterReaders | None = None,
        observers: tuple[DirectorObserver, ...] = (),
        ask: ProbeRequest | None = None,
    ) -> None:
        """`discovery` takes precedence over that of the assembly; raises ConfigurationError if both are missing.

        Without `readers`, plugins get no objects of the cluster. With `ask`, another process polls and tags the
        endpoints; `ask` requests urgent polls from it.
        """
        self._collects = ask is None
        self._clock = clock
        self._metrics = metrics
        self._gauge_seconds = settings.refresh_prometheus_seconds
        self._given_discovery = discovery
        self._readers = readers
        self._discovery = self.discovery_of(assembly)
        self.assembly = assembly
        self.store = Datastore(clock)
        self._source_pool = SourcePool(self.store, clock)
        observer = Observers(metrics, *observers) if observers else metrics
        self.director = Director(
            Runtime(self.store, clock, observer),
            assembly.pipeline,
            use_subset=settings.use_subset,
            reservation_seconds=settings.reservation_seconds,
            outliers=settings.outliers,
        )
        self.director.is_closed = True
        self._supervisor = Supervisor(observer=metrics)
        self._tagging = Tagging(self.store, self._taggers(assembly), observer=metrics)
        self._collector = Collector(
            self.store,
            self._feeds(assembly),
            clock=clock,
            interval_seconds=settings.refresh_metrics_seconds,
            observer=metrics,
            supervisor=self._supervisor,
            trust=settings.endpoint_trust,
            limits=settings.page_limits,
            shared=settings.pages,
        )
        self._collector.trust_for(_trusted_seconds(assembly))
        self.limit_tls = self._collector.limit_tls
        self.director.outliers.ask = ask or self._collector.ask
        self._collector.call_on_connection_end(self.director.outliers.suspect)
        self.awaited = ""
        """Step that the start waits for, as text; thread-safe."""
        self._report = EndpointReport(
            self._collector.conditions,
            lambda: self._discovery.unresolved,
            settings.terminal,
            outliers=self.director.outliers,
        )
        self._following: tuple[asyncio.Task[None], ...] = ()
        self._plugin_tasks: dict[Follower[Any], asyncio.Task[None]] = {}

    @property
    def failing_tasks(self) -> Mapping[str, str]:
        """Errors of background tasks that are being restarted, by task; at most 20."""
        return dict(list(self._supervisor.failing.items())[:_FAILING_SHOWN])

    @property
    def endpoint_states(self) -> Sequence[EndpointState]:
        """States of all endpoints; thread-safe."""
        return self._report.states

    @property
    def source_states(self) -> Sequence[SourceState]:
        """States of the sources of endpoints; empty for a single source without failure. Thread-safe."""
        found = self._discovery
        return found.states if isinstance(found, SeveralSources) and found.is_reported else ()

    def source_of(self, identity: str) -> str:
        """Return the name of the source of an endpoint, given its id; empty for a single source."""
        return self._discovery.source_of(identity) if isinstance(self._discovery, SeveralSources) else ""

    @property
    def inherited(self) -> int:
        """Number of inherited requests that are still in flight; thread-safe."""
        return int(self.store.latest.column(INHERITED).sum())

    @property
    def has_tls_endpoints(self) -> bool:
        """Whether an endpoint uses HTTPS, including unresolved endpoints."""
        in_pool = any(endpoint.tls for endpoint in self.store.endpoints)
        return in_pool or any(one.tls for one in self._discovery.unresolved)

    @property
    def tenants(self) -> Iterator[str]:
        """Tenants with a quota of their own in the configuration or in objects."""
        for source in self.assembly.instances.of(QuotaSource):
            yield from source.named_quotas

    async def ask(self, identity: str) -> Verdict:
        """Poll the endpoint of this id urgently; return the verdict."""
        endpoint = self.store.endpoint(identity)
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        if endpoint is None:
            return Verdict.SILENT
        self._collector.ask(endpoint, lambda found: None if verdict.done() else verdict.set_result(found))
        return await verdict

    def discovery_of(self, assembly: Assembly) -> Discovery[Any]:
        """Return the source of endpoints for a configuration; raises ConfigurationError if there is none."""
        given, sources = self._given_discovery, assembly.sources
        if given is not None and not self._collects:
            return given
        if any(isinstance(source.plugin, PoolDiscovery) for source in sources):
            if given is None:
                raise ConfigurationError(
                    f"{POOL_SOURCE} needs a flag for endpoints: set --pool-name, --endpoint-selector, --endpoints or "
                    f"--objects, or remove {POOL_SOURCE} from dataLayer.discovery"
                )
            sources = tuple(
                each._replace(plugin=given) if isinstance(each.plugin, PoolDiscovery) else each for each in sources
            )
        elif given is not None:
            sources = (EndpointSource(given, given.name),)
        if not sources:
            raise ConfigurationError(
                "no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery"
            )
        if given is None and len(sources) == 1:
            return sources[0].plugin
        return SeveralSources(sources, clock=self._clock)

    async def start(self) -> None:
        """Fill the pool and start the background tasks; raises ConfigurationError."""
        await self._discovery.start(self._source_pool)
        await self._connect_readers(self.assembly)
        if self._collects:
            await self._collector.start()
        await self._source_pool.open()
        self._supervisor.start("tagging", self._tagging.follow)
        self._follow_discovery()
        self._sync_tasks()
        self._supervisor.start("pool gauges", self._refresh_gauges)
        if self._collects:
            self._supervisor.start("endpoint report", self._report.follow)
            self._supervisor.start("prices", self._watch_prices)
        self._supervisor.start("reservations", partial(sweep_reservations, self.director.reservations, self.store))
        self._supervisor.start("quotas", partial(sweep_quotas, self.director.quotas))
        self._supervisor.start("outliers", partial(sweep_outliers, self.director.outliers))
        await self._await_first_reports()
        self.director.is_closed = False

    def take_over(self, seconds: float) -> None:
        """Count the requests that endpoints report now as inherited, for at most `seconds`."""
        self.store.inherit(seconds)
        self.store.snapshot()  # for readers of `latest`

    async def switch(self, assembly: Assembly) -> None:
        """Put another configuration into effect; raises ConfigurationError and keeps the current one on failure."""
        discovery = self.discovery_of(assembly)
        self._collector.checked(self._feeds(assembly))
        try:
            await self._connect_readers(assembly)
            merged = self._discovery if isinstance(self._discovery, SeveralSources) else None
            others = discovery.sources if isinstance(discovery, SeveralSources) else ()
            if discovery is not self._discovery and not (merged and others):
                source_pool = SourcePool(self.store, self._clock)
                await discovery.start(source_pool)
                await self._tagging.change_over(self._taggers(assembly), lambda: source_pool.withheld)
                # no await from here to `use`: the earlier filters do not know the new pool
                source_pool.opened()
                self._source_pool.close()
                self._discovery, self._source_pool = discovery, source_pool
                self._follow_discovery()
            else:
                await self._tagging.change_over(self._taggers(assembly))
            self.director.use(assembly.pipeline)
            if merged and others and others != merged.sources:
                merged.use(others)
            before, self.assembly = self.assembly, assembly
        finally:
            if self._readers is not None:  # only the plugins of the configuration in effect read objects
                self._readers.keep(self._readings(self.assembly))
                await self._readers.hubs.close_unused()
        self._sync_tasks()
        await asyncio.sleep(0)  # serves requests between two long steps
        self._collector.trust_for(_trusted_seconds(assembly))
        await self._collector.replace(self._feeds(assembly))
        await _close(feed for feed in before.feeds if all(feed.source is not kept.source for kept in assembly.feeds))

    async def stop(self) -> None:
        await self._collector.stop()
        await self._supervisor.stop()
        await _close(self.assembly.feeds)

    async def _await_first_reports(self) -> None:
        """Wait until each endpoint was polled once, successfully or not, at most about three seconds."""
        untried = self._collector.untried
        for _ in range(_CHECKS):  # not a timeout: the event loop may be busy during the start
            if not untried:
                break
            self.awaited = f"first reports of endpoints: {untried} missing"
            await asyncio.sleep(_CHECK_SECONDS)
            untried = self._collector.untried
        self.awaited = ""
        if untried:
            _log.warning("starting before all endpoints have reported: the load of some is unknown", endpoints=untried)

    async def _refresh_gauges(self) -> None:
        while True:
            snapshot = self.store.snapshot()  # one snapshot for all gauges
            self._metrics.refresh_pool(snapshot, self.director.flow)
            self._metrics.refresh_quotas(self.director.quotas, self.tenants)
            await asyncio.sleep(self._gauge_seconds)

    async def _watch_prices(self) -> None:
        """Log endpoints without a price, after they are tagged and after changes."""
        watch = PriceWatch()
        await asyncio.sleep(_TAGGING_SECONDS)
        while True:
            watch.check(self.store.snapshot(), self.assembly.plugins)
            await asyncio.sleep(self._gauge_seconds)

    async def _connect_readers(self, assembly: Assembly) -> None:
        """Connect new plugins to objects of the cluster, before endpoints are tagged."""
        if self._readers is not None:
            await self._readers.connect(self._readings(assembly), self._retag)
            if self._readers.cluster is not None:
                return
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectNotifications):
                _log.warning(
                    "plugin has no effect: it reads objects of a cluster, and the endpoints are not pods of a cluster",
                    plugin=plugin.name,
                    remedy="start with --pool-name or --endpoint-selector, or remove it from the configuration",
                )

    def _retag(self, plugin: Plugin[Any], concerns: AffectedEndpoints) -> None:
        if self._collects and isinstance(plugin, Tagger):
            self._tagging.retag(plugin, concerns)

    def _follow_discovery(self) -> None:
        for task in self._following:
            task.cancel()
        self._following = (
            self._supervisor.start("discovery", partial(self._discovery.follow, self._source_pool)),
            self._supervisor.start("discovery", self._source_pool.follow, name="endpoints that join"),
        )

    def _feeds(self, assembly: Assembly) -> Sequence[Feed]:
        return assembly.feeds if self._collects else ()

    def _taggers(self, assembly: Assembly) -> Sequence[Tagger[Any]]:
        return assembly.taggers if self._collects else ()

    def _readings(self, assembly: Assembly) -> Sequence[Reading]:
        """Return the readings of plugins. A worker omits plugins that only tag, because the main process sends tags."""
        return [each for each in assembly.readings if self._collects or not _only_tags(each.reader)]

    def _sync_tasks(self) -> None:
        """Run exactly one task for each follower in use; a worker omits taggers, because the main process tags."""
        followers = self.assembly.instances.of(Follower)
        wanted = {each for each in followers if self._collects or not isinstance(each, Tagger)}
        for follower in self._plugin_tasks.keys() - wanted:
            self._plugin_tasks.pop(follower).cancel()
        for follower in wanted - self._plugin_tasks.keys():
            kind = "tagger" if isinstance(follower, Tagger) else "follower"
            follow = partial(follower.follow, partial(self._retag, follower))
            self._plugin_tasks[follower] = self._supervisor.start(kind, follow, name=f"{kind} {follower.name}")


def _only_tags(plugin: Plugin[Any]) -> bool:
    """Return whether the plugin only tags endpoints; workers get the tags from the main process."""
    roles = set(roles_of(type(plugin)))
    return Tagger in roles and roles <= {Tagger, ObjectReader, Follower, DataSource}


def _trusted_seconds(assembly: Assembly) -> float:
    """Return the shortest age at which a plugin or profile ignores metrics; infinite if none does."""
    plugins = (plugin.oldest_metrics_seconds for plugin in assembly.plugins if isinstance(plugin, TrustsMetrics))
    profiles = (profile.trusted_seconds for profile in assembly.pipeline.scheduler.profiles.values())
    return min((*plugins, *profiles), default=math.inf)


async def _close(feeds: Iterable[Feed]) -> None:
    for feed in feeds:
        await feed.source.close()


QUOTA_SECONDS = 3.0
"""Time between two updates of quotas."""
_OUTLIER_SECONDS = 0.2


async def sweep_quotas(quotas: Quotas) -> None:
    """Charge quotas for the time of long requests, a part of them in each round."""
    while True:
        await asyncio.sleep(QUOTA_SECONDS)
        quotas.sweep()


async def sweep_reservations(reservations: Reservations, store: Datastore) -> None:
    """Expire reservations of unanswered requests and inherited requests."""
    while True:
        await asyncio.sleep(min(SWEEP_SECONDS, reservations.seconds))
        store.sweep_inherited()
        expired = 0
        for some in reservations.sweep():
            expired += some
            await asyncio.sleep(0)
        if expired:
            _log.warning(
                "requests no longer count as load: no response has begun, and their streams are still open",
                requests=expired,
                seconds=reservations.seconds,
                remedy="set a timeout in the gateway's routes, or a longer --reservation-ttl for long responses",
            )


async def sweep_outliers(outliers: OutlierDetector) -> None:
    """End suspicions and ejections that have expired; sleep while there are none."""
    changed = asyncio.Event()
    outliers.subscribe(changed.set)
    while True:
        await changed.wait()
        changed.clear()
        while not outliers.is_clean:
            await asyncio.sleep(_OUTLIER_SECONDS)
            outliers.sweep()
