# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the real pipeline, datastore and director of each, and its polls of every server."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.framework import Endpoint, ManualClock
from epp.framework.cluster import ObjectReader
from epp.framework.registry import Registry
from epp.pool.collectors import Tagging
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, slowest_interval
from epp.routing.datastore import Datastore
from epp.routing.director import Director, Runtime
from epp.routing.director.incoming_request import Seeds

POLL_SECONDS = 0.05


@dataclass
class Watch:
    """The polls of one server by one picker."""

    poll: Poll
    cadence: Cadence
    store: Datastore


class Replica:
    """One picker."""

    def __init__(
        self, config: LoadedConfig, endpoints: Sequence[Endpoint], clock: ManualClock, seed: bytes, *, objects: str = ""
    ) -> None:
        """Start it; `objects` of the cluster are in YAML."""
        self.assembly = assemble(config, Builder(Registry(), clock))
        _read_objects(self.assembly, objects)
        self.store = Datastore(clock)
        self.director = Director(Runtime(self.store, clock), self.assembly.pipeline, seeds=Seeds(seed))
        Tagging(self.store, self.assembly.taggers)
        self.store.update(endpoints)
        self.watches = [self._watch(endpoint, clock) for endpoint in endpoints]

    def _watch(self, endpoint: Endpoint, clock: ManualClock) -> Watch:
        (feed,) = self.assembly.feeds
        poll = Poll(
            self.store,
            feed,
            Reachability(self.store, endpoint),
            clock=clock,
            interval_seconds=POLL_SECONDS,
            observer=CollectorObserver(),
        )
        cadence = Cadence(POLL_SECONDS, slowest_interval(POLL_SECONDS, math.inf), clock.now())
        return Watch(poll, cadence, self.store)


def _read_objects(assembly: Assembly, objects: str) -> None:
    """Have the plugins read objects of the cluster, as with `--objects`."""
    if not objects:
        return
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as directory:
        path = Path(directory) / "objects.yaml"
        path.write_text(objects)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader):
                plugin.read_files([str(path)])
