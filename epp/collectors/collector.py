"""Keeps the datastore's columns fresh: asks every endpoint of the pool, each on its own beat."""

import asyncio
import math
import random
from collections.abc import Sequence

from epp.collectors.observer import CollectorObserver
from epp.collectors.poll import Poll
from epp.collectors.reachability import Reachability
from epp.datastore import Change, Datastore
from epp.framework.clock import Clock
from epp.framework.datalayer import Feed
from epp.framework.endpoint import Endpoint

_LONGEST_FIRST_WAIT_SECONDS = 1.0


class Collector:
    """One task for each endpoint and feed, so that a slow exporter holds up nothing else.

    Follows the pool from `start` to `stop`, and once stopped is done. Sources are closed by whoever made them.
    """

    def __init__(
        self,
        store: Datastore,
        feeds: Sequence[Feed],
        *,
        clock: Clock,
        interval_seconds: float = 0.05,
        observer: CollectorObserver | None = None,
        generator: random.Random | None = None,
    ) -> None:
        self._store = store
        self._feeds = tuple(feeds)
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._observer = observer or CollectorObserver()
        self._generator = generator or random.Random()  # noqa: S311 - spreads the polls, guards nothing
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks: dict[str, tuple[asyncio.Task[None], ...]] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._running = False
        for feed in self._feeds:
            if self._interval_of(feed) <= 0:
                raise ValueError(
                    f"source {feed.source.name!r}: an interval of {self._interval_of(feed)} s is too short"
                )

    @property
    def task_count(self) -> int:
        """Tasks under way, those that are about to end included."""
        return sum(map(len, self._tasks.values())) + len(self._ending)

    async def start(self) -> None:
        """Begin with the endpoints that are there and follow the pool from now on."""
        self._running = True
        self._store.subscribe(self._pool_changed)
        for endpoint in self._store.endpoints:
            self._begin(endpoint)

    async def stop(self) -> None:
        """End every task and wait for its end."""
        self._running = False
        for identity in tuple(self._tasks):
            self._end(identity)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _pool_changed(self, change: Change) -> None:
        if not self._running:
            return
        for _, endpoint in change.removed:
            self._end(endpoint.id)
        for _, endpoint in change.updated:
            self._endpoints[endpoint.id] = endpoint
        for _, endpoint in change.added:
            self._begin(endpoint)

    def _begin(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.id] = endpoint
        reachability = Reachability(self._store, endpoint)
        self._tasks[endpoint.id] = tuple(
            asyncio.create_task(self._run(endpoint, feed, reachability), name=f"collect {endpoint.id}")
            for feed in self._feeds
        )

    def _end(self, identity: str) -> None:
        self._endpoints.pop(identity, None)
        for task in self._tasks.pop(identity, ()):
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _run(self, endpoint: Endpoint, feed: Feed, reachability: Reachability) -> None:
        interval = self._interval_of(feed)
        poll = Poll(self._store, feed, reachability, interval_seconds=interval, observer=self._observer)
        due = self._clock.now() + self._generator.uniform(0, min(interval, _LONGEST_FIRST_WAIT_SECONDS))
        while True:
            await asyncio.sleep(due - self._clock.now())
            wait = await poll.collect_once(self._endpoints.get(endpoint.id, endpoint))
            due = next_due(due, wait, self._clock.now())

    def _interval_of(self, feed: Feed) -> float:
        own = feed.source.interval_seconds
        return self._interval_seconds if own is None else own


def next_due(due: float, wait: float, now: float) -> float:
    """Return the next beat of `wait` seconds after `due` that is still to come; beats that were missed are skipped."""
    return due + wait * (math.floor(max(now - due, 0.0) / wait) + 1)
