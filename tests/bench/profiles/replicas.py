# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the real pipeline, datastore and director of each, and its polls of every server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from epp.collectors import Tagging
from epp.collectors.polling.cadence import Cadence, slowest_interval
from epp.collectors.polling.poll import CollectorObserver, Poll
from epp.collectors.polling.reachability import Reachability
from epp.config import Builder, LoadedConfig, assemble
from epp.datastore import Datastore
from epp.director import Director
from epp.director.seeds import Seeds
from epp.framework import Endpoint, ManualClock
from epp.framework.registry import Registry

POLL_SECONDS = 0.05


@dataclass
class Watch:
    """The polls of one server by one picker."""

    poll: Poll
    cadence: Cadence
    store: Datastore


class Replica:
    """One picker."""

    def __init__(self, config: LoadedConfig, endpoints: Sequence[Endpoint], clock: ManualClock, seed: bytes) -> None:
        self.assembly = assemble(config, Builder(Registry(), clock))
        self.store = Datastore(clock)
        self.director = Director(self.store, self.assembly.pipeline, clock, seeds=Seeds(seed))
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
