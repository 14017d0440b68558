# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the real pipeline, datastore and director of each, and its polls of every server."""

import math
from collections.abc import Coroutine, Sequence
from typing import Any

from epp.app.running import sweep_outliers, sweep_quotas, sweep_reservations
from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.framework.clock import Clock
from epp.framework.cluster import ObjectReader
from epp.framework.datalayer import Feed, Follower, FollowingTagger, Report, Shareable
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.hardware.tagger import AcceleratorTagger
from epp.hardware.topology import TopologyExtractor
from epp.lab.replay.engines import Page
from epp.lab.replay.fleet import Fleet, Server
from epp.lab.replay.settings import ReplayOptions
from epp.lab.replay.virtual_time import VirtualClock
from epp.pool.collectors import Tagging
from epp.pool.collectors.engines.metrics import CoreMetricsExtractor
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, slowest_interval
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.pool.tokens.producer import TokenProducer
from epp.routing.datastore import Datastore, SharedWork
from epp.routing.director import Director, Runtime
from epp.routing.director.incoming_request import Seeds
from epp.routing.policies import PolicyFiles
from epp.sharing.exchange import Exchange


class Watch:
    """The polls of one server by one picker."""

    def __init__(self, store: Datastore, metrics: Feed, server: Server, clock: Clock, interval: float) -> None:
        self._store = store
        self._server = server
        self._clock = clock
        endpoint = server.endpoint
        self._poll = Poll(
            self._store,
            metrics,
            Reachability(self._store, endpoint),
            clock=clock,
            interval_seconds=interval,
            observer=CollectorObserver(),
        )
        self._cadence = Cadence(interval, slowest_interval(interval, math.inf), clock.now())
        self._page: Page | None = None
        """The last one, once pages have been read."""
        self._report = Report()

    def take(self, page: Page) -> float:
        """Report a page; return the seconds until the next poll is due.

        The first page is read as text. Later ones differ only in the load, unless they have adapters: text that the
        reader of pages would find the same numbers in is not written.
        """
        now, endpoint, before = self._clock.now(), self._server.endpoint, self._page
        self._page, wait = page, 0.0
        if before is None or page.profile.lora_adapters:
            wait = self._poll.settle(endpoint, page.text)
            changed = self._poll.changed
        else:
            changed = page is not before and page.load != before.load
            if changed or not self._report.columns:
                running, waiting, kv_usage = page.load
                self._report = Report({RUNNING: float(running), WAITING: float(waiting), KV_USAGE: float(kv_usage)})
            self._store.report(endpoint, self._report)
        if changed or self._store.in_flight(endpoint.id):
            self._cadence.event(now)
        return max(wait, self._cadence.interval(now))


class Replica:
    """One picker."""

    def __init__(self, config: LoadedConfig, fleet: Fleet, clock: Clock, seed: bytes, options: ReplayOptions) -> None:
        """Start it; raises InvalidConfigError for a configuration that cannot be assembled."""
        self.assembly = _assemble(config, clock, options)
        self.store = Datastore(clock)
        self.director = Director(Runtime(self.store, clock), self.assembly.pipeline, seeds=Seeds(seed))
        Tagging(self.store, self.assembly.taggers)
        self.store.update(fleet.endpoints)
        if options.objects:
            self.director.use_policies(PolicyFiles(options.objects, clock).policies)
        metrics = next(filter(_reads_load, self.assembly.feeds), None)
        self.watches = [
            None if metrics is None else Watch(self.store, metrics, server, clock, options.poll_seconds)
            for server in fleet.servers
        ]
        """Of each server; None if the configuration reads no load."""
        quotas, work = self.director.quotas.share(seed.decode()), SharedWork(self.store)
        shareables = (work, quotas, *(plugin for plugin in self.assembly.plugins if isinstance(plugin, Shareable)))
        self.exchange = Exchange(seed.decode(), lambda: shareables, self.store.snapshot, clock, salt=options.seed)
        self.shared_at = -math.inf
        """When its last batch left."""
        self.kv_event_readers = tuple(
            plugin for plugin in self.assembly.plugins if isinstance(plugin, PrecisePrefixCacheProducer)
        )

    def sweeps(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the background work of a picker that routing depends on."""
        director = self.director
        return (
            sweep_reservations(director.reservations, self.store),
            sweep_quotas(director.quotas),
            sweep_outliers(director.outliers),
        )


def check_config(config: LoadedConfig, options: ReplayOptions) -> list[str]:
    """Return what of a configuration has no effect in a replay; raises InvalidConfigError if it cannot be assembled."""
    assembly = _assemble(config, VirtualClock(0.0), options)
    found = [
        f"{feed.source.name}: its pages are not simulated, and their data is unknown"
        for feed in assembly.feeds
        if not _reads_load(feed)
    ]
    found += [
        f"{plugin.name}: files or services that it follows are read at the start only"
        for plugin in assembly.plugins
        if isinstance(plugin, Follower | FollowingTagger)
        and not isinstance(plugin, AcceleratorTagger | TopologyExtractor | TokenProducer | PrecisePrefixCacheProducer)
    ]
    return found


def _assemble(config: LoadedConfig, clock: Clock, options: ReplayOptions) -> Assembly:
    registry = Registry(modules=options.plugin_modules)
    assembly = assemble(config, Builder(registry, clock, experimental=options.experimental))
    for plugin in assembly.plugins if options.objects else ():
        if isinstance(plugin, ObjectReader):
            plugin.read_files(options.objects)
    return assembly


def _reads_load(feed: Feed) -> bool:
    return any(isinstance(extractor, CoreMetricsExtractor) for extractor in feed.extractors)
