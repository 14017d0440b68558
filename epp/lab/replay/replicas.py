# SPDX-License-Identifier: Apache-2.0
"""Pickers in virtual time: the event loop, and for each picker its pipeline, polls and KV events."""

import asyncio
import gc
import math
import selectors
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from epp.app.running_config import sweep_outliers, sweep_quotas, sweep_reservations
from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.framework import Endpoint
from epp.framework.clock import Clock, ManualClock
from epp.framework.datalayer import Feed, Follower, Report
from epp.framework.registry import Registry
from epp.framework.sharing import Shareable
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.hardware.tagger import AcceleratorTagger
from epp.hardware.topology import TopologyExtractor
from epp.lab.replay.fleet import Fleet, Page, ReplayOptions, Server
from epp.lab.sim.work import KVChanges, SimRequest
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, slowest_interval
from epp.pool.collectors.tagging import Tagging
from epp.pool.kv_events.events import BlockRemoved, BlockStored, Event
from epp.pool.kv_events.index import Message
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.pool.tokens.producer import TokenProducer
from epp.routing.datastore import Datastore, SharedWork
from epp.routing.director import Director, Runtime
from epp.routing.director.incoming_request import Seeds
from epp.routing.policies import policies_in_files
from epp.sharing.exchange import Exchange

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_YOUNG_OBJECTS = 50_000
"""Number of new objects that triggers a garbage collection."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock: code that uses asyncio runs in virtual time without changes.

    Events of `at` and timers of asyncio run in order of time; events cost a fraction of a timer.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Selector(self))
        self.clock = clock
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.has_callbacks = False
        """Whether callbacks or timers were added since the last event."""
        self._numbers = count()

    def time(self) -> float:
        return self.clock.time

    def at(self, due: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` at `due`; an exception ends the loop."""
        heappush(self.events, (due, next(self._numbers), action, arguments))

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        heappush(self.events, (self.clock.time + seconds, next(self._numbers), action, arguments))

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.has_callbacks = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.has_callbacks = True
        return super().call_at(when, callback, *args, context=context)


class _Selector(selectors.SelectSelector):
    """Runs events and advances the clock instead of waiting; sockets are never ready."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Run the events of the next `timeout` seconds; raises RuntimeError if the loop would wait forever."""
        loop, events, clock = self._loop, self._loop.events, self._loop.clock
        until = math.inf if timeout is None else clock.time + timeout
        loop.has_callbacks = False
        while events and events[0][0] <= until:
            due, _, action, arguments = heappop(events)
            if due > clock.time:  # noqa: PLR1730  faster than max, for the most frequent line of a replay
                clock.time = due
            action(*arguments)
            if loop.has_callbacks:
                return []
        if timeout is None:
            raise RuntimeError("no event or timer is left in virtual time")
        clock.time = until
        return []


def run_virtual(main: Coroutine[Any, Any, T], clock: ManualClock) -> T:
    """Run a coroutine in virtual time and return its result; other tasks are cancelled at its end.

    Garbage is collected rarely meanwhile, because requests leave few reference cycles.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(_YOUNG_OBJECTS, thresholds[0]), *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*thresholds)


PUBLISH_SECONDS = 0.005
"""Delay of KV events from the end of an engine's step to the index of the picker."""


class Watch:
    """The polls of one server by one picker."""

    def __init__(self, store: Datastore, metrics: Feed, server: Server, clock: Clock, interval: float) -> None:
        self._store, self._clock, self._endpoint = store, clock, server.endpoint
        reachability = Reachability(store, server.endpoint)
        observer = CollectorObserver()
        self._poll = Poll(store, metrics, reachability, clock=clock, interval_seconds=interval, observer=observer)
        self._cadence = Cadence(interval, slowest_interval(interval, math.inf), clock.now())
        self._page: Page | None = None
        """Last page; None before the first poll."""
        self._report = Report()

    def take(self, page: Page) -> float:
        """Report a page; return the seconds until the next poll is due.

        The first page is parsed as text. Later pages differ only in the load, unless they have adapters; their numbers
        are reported without formatting and parsing a page.
        """
        now, endpoint, before = self._clock.now(), self._endpoint, self._page
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
        """Assemble the configuration; raises InvalidConfigError."""
        self.assembly = _assemble(config, clock, options)
        self.store = Datastore(clock)
        self.director = Director(Runtime(self.store, clock), self.assembly.pipeline, seeds=Seeds(seed))
        Tagging(self.store, self.assembly.taggers)
        self.store.update(fleet.endpoints)
        if options.objects:
            self.director.use_policies(policies_in_files(options.objects, clock).policies)
        metrics = next(filter(_reads_load, self.assembly.feeds), None)
        self.watches = [
            None if metrics is None else Watch(self.store, metrics, server, clock, options.poll_seconds)
            for server in fleet.servers
        ]
        """Metrics polls of each server; None if the configuration does not read the load."""
        quotas, work = self.director.quotas.share(seed.decode()), SharedWork(self.store)
        shareables = (work, quotas, *(plugin for plugin in self.assembly.plugins if isinstance(plugin, Shareable)))
        self.exchange = Exchange(seed.decode(), lambda: shareables, self.store.snapshot, clock, salt=options.seed)
        self.shared_at = -math.inf
        """Time of its last batch."""
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

    def deliver(self, endpoint: Endpoint, events: Sequence[Event]) -> None:
        """Write KV events of an endpoint to its indexes."""
        for producer in self.kv_event_readers:
            lane = producer._lanes.get(endpoint.identity)  # noqa: SLF001
            if lane is None:  # it uses the matches of another producer
                continue
            left = [Message(lane, "", (event,)) for event in events]
            while left:
                applied = producer._index.apply(left, int(producer.clock.now()) + 1)  # noqa: SLF001
                left = left[applied:]
            producer._forget_expected()  # noqa: SLF001


class Publisher:
    """Builds the KV events of one engine from the changes of its cache."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._submitted: dict[int, tuple[SimRequest, Sequence[int], str]] = {}
        """Requests with the token ids of prompt and answer, and the model."""

    def learn(self, request: SimRequest, token_ids: Sequence[int], model: str) -> None:
        self._submitted[request.request_id] = request, token_ids, model

    def forget(self, request_id: int) -> None:
        self._submitted.pop(request_id, None)

    def events(self, changes: KVChanges) -> Sequence[Event]:
        """Return the events of changes; parents are stored before their children.

        An event for a lower tier contains only the hash, as in vLLM: the index knows the block from the tier above.
        """
        moves = (
            BlockStored(sorted(changes.offloaded), None, [], 0, medium="CPU"),
            BlockStored(sorted(changes.written), None, [], 0, medium="DISK"),
            BlockRemoved(sorted(changes.evicted)),
            BlockRemoved(sorted(changes.dropped), medium="CPU"),
            BlockRemoved(sorted(changes.deleted), medium="DISK"),
        )
        found: list[Event] = [event for event in moves if event.block_hashes]
        size = self._block_size
        places = sorted((place, block, owner) for block, (owner, place) in changes.stored.items())
        for place, block, owner in places:
            request, ids, model = self._submitted[owner]
            parent = request.block_hashes[place - 1] if place else None
            own = list(ids[place * size : (place + 1) * size])
            # the model is sent as the adapter: hashes of the simulated engine do not depend on the model
            found.append(BlockStored([block], parent, own, size, lora_name=model))
        return found


def check_config(config: LoadedConfig, options: ReplayOptions) -> list[str]:
    """Return the plugins without effect in a replay, with reasons; raises InvalidConfigError."""
    assembly = _assemble(config, ManualClock(0.0), options)
    found = [
        f"{feed.source.name}: its pages are not simulated, and their data is unknown"
        for feed in assembly.feeds
        if not _reads_load(feed)
    ]
    found += [
        f"{plugin.name}: files or services that it follows are read at the start only"
        for plugin in assembly.plugins
        if isinstance(plugin, Follower)
        and not isinstance(plugin, AcceleratorTagger | TopologyExtractor | TokenProducer | PrecisePrefixCacheProducer)
    ]
    return found


def _assemble(config: LoadedConfig, clock: Clock, options: ReplayOptions) -> Assembly:
    registry = Registry(modules=options.plugin_modules)
    builder = Builder(registry, clock, experimental=options.experimental, object_paths=options.objects)
    return assemble(config, builder)


def _reads_load(feed: Feed) -> bool:
    return any(isinstance(extractor, CoreMetricsExtractor) for extractor in feed.extractors)
