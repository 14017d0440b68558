# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the real pipeline, datastore and director of each, and its polls of every server."""

import math
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from epp.app.running import sweep_outliers, sweep_quotas, sweep_reservations
from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.framework import ManualClock
from epp.framework.cluster import ObjectReader
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.lab.replay.engines import Page
from epp.lab.replay.fleet import Fleet, Server
from epp.lab.replay.settings import ReplayOptions
from epp.pool.collectors import Tagging
from epp.pool.collectors.engines.metrics import CoreMetricsExtractor
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, slowest_interval
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.routing.datastore import Datastore
from epp.routing.director import Director, Runtime
from epp.routing.director.incoming_request import Seeds

_LOAD = (RUNNING, WAITING, KV_USAGE)


class Watch:
    """The polls of one server by one picker."""

    def __init__(self, replica: "Replica", server: Server, clock: ManualClock, interval: float) -> None:
        self._store = replica.store
        self._server = server
        self._clock = clock
        endpoint = server.endpoint
        self._poll = Poll(
            self._store,
            replica.metrics,
            Reachability(self._store, endpoint),
            clock=clock,
            interval_seconds=interval,
            observer=CollectorObserver(),
        )
        self._cadence = Cadence(interval, slowest_interval(interval, math.inf), clock.now())
        self._load: tuple[int, int, float] | None = None
        """As of the last page, once pages have been read."""
        self._report = Report()

    def take(self, page: Page) -> float:
        """Report a page; return the seconds until the next poll is due.

        The first page is read as text. Later ones differ only in the load, unless they have adapters: text that the
        reader of pages would find the same numbers in is not written.
        """
        now, endpoint, changed = self._clock.now(), self._server.endpoint, True
        if self._load is None or self._server.profile.lora_adapters:
            wait = self._poll.settle(endpoint, page.text)
            changed = self._poll.changed
        else:
            wait = 0.0
            changed = self._load != page.load
            if changed:
                columns = {column: float(value) for column, value in zip(_LOAD, page.load, strict=True)}
                self._report = Report(columns)
            self._store.report(endpoint, self._report)
        self._load = page.load
        if changed or self._store.in_flight(endpoint.id):
            self._cadence.event(now)
        return max(wait, self._cadence.interval(now))


class Replica:
    """One picker."""

    def __init__(
        self, config: LoadedConfig, fleet: Fleet, clock: ManualClock, seed: bytes, options: ReplayOptions
    ) -> None:
        """Start it; raises InvalidConfigError for a configuration that cannot be assembled."""
        registry = Registry(modules=options.plugin_modules)
        self.assembly = assemble(config, Builder(registry, clock, experimental=options.experimental))
        _read_objects(self.assembly, fleet.objects)
        self.store = Datastore(clock)
        self.director = Director(Runtime(self.store, clock), self.assembly.pipeline, seeds=Seeds(seed))
        Tagging(self.store, self.assembly.taggers)
        self.store.update(fleet.endpoints)
        self.metrics = next(
            feed
            for feed in self.assembly.feeds
            if any(isinstance(extractor, CoreMetricsExtractor) for extractor in feed.extractors)
        )
        self.watches = [Watch(self, server, clock, options.poll_seconds) for server in fleet.servers]
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


def _read_objects(assembly: Assembly, objects: str) -> None:
    """Have the plugins read objects of the cluster, as with `--objects`."""
    if not objects:
        return
    with tempfile.TemporaryDirectory(prefix="epp-replay-") as directory:
        path = Path(directory) / "objects.yaml"
        path.write_text(objects)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader):
                plugin.read_files([str(path)])
