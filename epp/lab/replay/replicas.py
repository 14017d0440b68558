# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the real pipeline, datastore and director of each, and its polls of every server."""

import math
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.app.running import sweep_outliers, sweep_quotas, sweep_reservations
from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.framework import Endpoint, ManualClock
from epp.framework.cluster import ObjectReader
from epp.framework.registry import Registry
from epp.lab.replay.fleet import Fleet
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


@dataclass
class Watch:
    """The polls of one server by one picker."""

    poll: Poll
    cadence: Cadence
    store: Datastore


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
        self.watches = [self._watch(endpoint, clock, options.poll_seconds) for endpoint in fleet.endpoints]
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

    def _watch(self, endpoint: Endpoint, clock: ManualClock, interval: float) -> Watch:
        feed = next(
            feed
            for feed in self.assembly.feeds
            if any(isinstance(extractor, CoreMetricsExtractor) for extractor in feed.extractors)
        )
        poll = Poll(
            self.store,
            feed,
            Reachability(self.store, endpoint),
            clock=clock,
            interval_seconds=interval,
            observer=CollectorObserver(),
        )
        cadence = Cadence(interval, slowest_interval(interval, math.inf), clock.now())
        return Watch(poll, cadence, self.store)


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
