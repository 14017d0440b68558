# SPDX-License-Identifier: Apache-2.0
"""Periodic polls of all endpoints of the pool, written to the datastore."""

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Contact, Feed
from epp.framework.endpoint import Endpoint, EndpointTrust
from epp.framework.plugin import Datum
from epp.pool.collectors.polling.conditions import Conditions, Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, PollBudget, slowest_interval
from epp.pool.collectors.polling.poller import PolledFeed, Poller, SharedPages
from epp.pool.collectors.sources.http import HttpSource
from epp.pool.collectors.sources.probes import ConnectionProbe, EndpointTls
from epp.pool.collectors.sources.response_parser import Reading
from epp.pool.collectors.tagging import run_in_steps
from epp.pool.settings import PageLimits
from epp.routing.datastore import Change, Datastore
from epp.routing.outliers.record import OnVerdict
from epp.runtime.supervisor import Supervisor, shortage

_GROWING_SECONDS = 0.5
"""Time in which further endpoints may join before the pool is checked."""
_CHECK_SECONDS = 5.0
_STRETCHED = 2.0
"""Growth of the interval from which another line is logged."""

_log = structlog.get_logger()
_MANY = 8
"""Largest change of the pool that is applied without pauses; larger changes are applied in steps."""


class Collector:
    """Polls each endpoint for each feed independently, all within a budget.

    Feeds without a configured interval are polled less often while an endpoint is idle: see `Cadence`. An endpoint
    whose own port is polled by no feed is probed with brief connections. Follows the pool from `start` to `stop`;
    cannot be started again. The caller closes the sources.
    """

    def __init__(
        self,
        store: Datastore,
        feeds: Sequence[Feed],
        *,
        clock: Clock,
        interval_seconds: float = 0.05,
        observer: CollectorObserver | None = None,
        supervisor: Supervisor | None = None,
        generator: random.Random | None = None,
        trust: EndpointTrust | None = None,
        budget: PollBudget | None = None,
        limits: PageLimits | None = None,
        shared: SharedPages | None = None,
    ) -> None:
        """Use the `trust` of a gateway with this picker; raises ConfigurationError for its certificate file."""
        self._limits = limits or PageLimits()
        self._shared = shared
        self._store = store
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._observer = observer or CollectorObserver()
        generator = generator or random.Random()  # noqa: S311  spreads the polls
        self._supervisor = supervisor or Supervisor(observer=self._observer)
        self._endpoint_tls = None if trust is None else EndpointTls(trust)
        self._probe = Feed(ConnectionProbe(self._endpoint_tls), ())
        self._tls_limits: tuple[bool, frozenset[str]] | None = None
        """HTTPS endpoints that the gateway can use: whether those with a host name, and addresses; None for all."""
        self.conditions = Conditions()
        self._trusted_seconds = math.inf
        self._poller = Poller(store, clock, budget or PollBudget(), generator, reading=Reading(self._limits))
        self._feeds = self.checked(feeds)
        self._equip(self._feeds)
        self._ending: set[asyncio.Task[None]] = set()
        self._endpoints: dict[str, Endpoint] = {}
        self._reachability: dict[str, Reachability] = {}
        self._running = False
        self._late: deque[Change] = deque()
        """Changes that are still to be applied, the first one in part."""
        self._any_late = asyncio.Event()
        self._size_changed = asyncio.Event()
        self._logged_connections = 0
        """Number of connections in the last log line about a shortage of file descriptors."""
        self._logged_seconds = 0.0
        """Interval in the last log line about stretched intervals."""
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def feed_count(self) -> int:
        """Number of endpoints times feeds that are polled."""
        return self._poller.count

    @property
    def untried(self) -> int:
        """Number of endpoints with a feed that reports their requests and has not been polled yet."""
        return sum(
            any(not polled.poll.was_tried and polled.poll.reads_requests for polled in polled_feeds.values())
            for polled_feeds in self._poller.polled_feeds.values()
        )

    def checked(self, feeds: Sequence[Feed]) -> tuple[Feed, ...]:
        """Return the feeds without duplicates; raises ValueError for an interval that is not above 0."""
        for feed in feeds:
            if (interval := self._interval_of(feed)) <= 0:
                raise ValueError(f"source {feed.source.name!r}: an interval of {interval} s is too short")
        return tuple(dict.fromkeys(feeds))

    async def start(self) -> None:
        """Start polling the endpoints of the pool, and follow its changes."""
        self._running = True
        self._store.subscribe(self._pool_changed)
        for endpoint in self._store.endpoints:
            self._begin(endpoint)
        self._tasks = (
            self._supervisor.start("collect", self._poller.run),
            self._supervisor.start("collector capacity", self._follow_capacity),
            self._supervisor.start("collect", self._catch_up, name="polls of many endpoints"),
        )
        self._size_changed.set()

    async def replace(self, feeds: Sequence[Feed]) -> None:
        """Replace the feeds in steps; a feed with the same source and extractors as before continues.

        Data that only removed feeds reported becomes unknown. Returns after the polls of removed feeds have ended, so
        that their sources can be closed. Raises ValueError for an interval that is not above 0, before any change.
        """
        wanted = self.checked(feeds)
        gone = [feed for feed in self._feeds if feed not in wanted]
        self._feeds = wanted
        self._equip(wanted)
        await run_in_steps(self._replace_all_feeds())
        self._size_changed.set()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._store.forget(_reported(gone) - _reported(wanted))

    def ask(self, endpoint: Endpoint, report: OnVerdict) -> None:
        """Poll an endpoint urgently, and call `report` once with the verdict."""
        if self._late:
            self._follow(endpoint.id)
        self._poller.ask(endpoint.id, report)

    def call_on_connection_end(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener`, which may `ask`, when a server closes the connection on which it is polled.

        Calls are limited for a server that does so regularly.
        """
        self._poller.on_connection_end = listener

    def trust_for(self, seconds: float) -> None:
        """Limit the interval of idle endpoints, so that their metrics stay younger than that."""
        self._trusted_seconds = seconds
        slowest = self._slowest_seconds
        for polled_feeds in self._poller.polled_feeds.values():
            for polled in polled_feeds.values():
                if polled.cadence is not None:
                    polled.cadence.slowest = slowest

    def limit_tls(self, *, by_name: bool, addresses: Collection[str]) -> None:
        """Rule out HTTPS endpoints that join from now on, except those with a host name or these addresses."""
        self._tls_limits = (by_name, frozenset(addresses))

    async def stop(self) -> None:
        """End all polls and wait for their end."""
        self._running = False
        for identity in tuple(self._endpoints):
            self._end(identity)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._ending, *self._tasks, return_exceptions=True)

    def _pool_changed(self, change: Change) -> None:
        if not self._running:
            return
        if self._late or len(change.removed) + len(change.updated) + len(change.added) > _MANY:
            self._late.append(change)
            self._any_late.set()
            return
        for _ in self._follow_change(change):
            pass
        self._size_changed.set()

    async def _catch_up(self) -> None:
        """Apply large changes of the pool in steps, until cancelled."""
        while True:
            await self._any_late.wait()
            while self._late:
                await run_in_steps(self._follow_change(self._late[0]))
                self._late.popleft()
            self._any_late.clear()
            self._size_changed.set()

    async def _follow_capacity(self) -> None:
        """Check the capacity periodically and after changes of the pool, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._size_changed.wait()
            await asyncio.sleep(_GROWING_SECONDS)
            self._size_changed.clear()
            self._check_capacity()

    def _check_capacity(self) -> None:
        """Log too few file descriptors, and intervals longer than configured; again when the pool grows."""
        endpoints, connections, problem = len(self._endpoints), self._poller.count, shortage(self._poller.count)
        if problem is None:
            self._logged_connections = 0
        elif connections > self._logged_connections:
            self._logged_connections = connections
            _log.warning("too few file descriptors", endpoints=endpoints, problem=problem)
        seconds = max(self._poller.delay_seconds, self._interval_seconds)
        self._observer.poll_interval(seconds)
        if seconds <= self._interval_seconds:
            self._logged_seconds = self._interval_seconds
        elif seconds >= _STRETCHED * max(self._logged_seconds, self._interval_seconds):
            self._logged_seconds = seconds
            _log.warning(
                "endpoints are polled less often than configured",
                endpoints=endpoints,
                asked_seconds=self._interval_seconds,
                seconds=round(seconds, 3),
                remedy="none needed; but a metricsStalenessThreshold below these seconds distrusts most endpoints",
            )

    def _follow_change(self, change: Change) -> Iterator[None]:
        """Apply a change of the pool, one endpoint per step."""
        for _, endpoint in change.removed:
            self._end(endpoint.id)
            yield
        for _, endpoint in (*change.updated, *change.added):
            self._follow(endpoint.id)
            yield

    def _follow(self, identity: str) -> None:
        """Start or update the polls of an endpoint."""
        endpoint, before = self._store.endpoint(identity), self._endpoints.get(identity)
        if endpoint is None:
            return  # it has left
        if before is not None and (
            before.tls != endpoint.tls
            or (before.metrics is None) != (endpoint.metrics is None)
            or endpoint.identity.is_another_than(before.identity)
        ):
            self._end(identity)
            before = None
        if before is None:
            self._begin(endpoint)
            return
        self._endpoints[identity] = endpoint
        for polled in self._poller.polled_feeds.get(identity, {}).values():
            polled.endpoint = endpoint

    def _begin(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.id] = endpoint
        self._reachability[endpoint.id] = reachability = Reachability(self._store, endpoint, self.conditions)
        if self._is_ruled_out(endpoint):
            why = "it speaks TLS and joined later: the gateway has TLS with the https endpoints of its start"
            reachability.rule_out(Contact.TLS_UNAVAILABLE, why, "restart the gateway")
        self._begin_feeds(endpoint)

    def _is_ruled_out(self, endpoint: Endpoint) -> bool:
        if self._tls_limits is None or not endpoint.tls:
            return False
        by_name, addresses = self._tls_limits
        return not by_name if endpoint.host else endpoint.address not in addresses

    def _equip(self, feeds: Iterable[Feed]) -> None:
        """Set the TLS and the state that all sources share."""
        for feed in feeds:
            if isinstance(feed.source, HttpSource):
                feed.source.endpoint_tls = self._endpoint_tls
                feed.source.reading = self._poller.reading

    def _feeds_of(self, endpoint: Endpoint) -> tuple[Feed, ...]:
        if self._is_ruled_out(endpoint):
            return ()
        asked = any(feed.asks(endpoint) for feed in self._feeds)
        return self._feeds if asked else (*self._feeds, self._probe)

    def _begin_feeds(self, endpoint: Endpoint) -> None:
        for feed in self._feeds_of(endpoint):
            if feed in self._poller.polled_feeds.get(endpoint.id, ()):
                continue
            poll = Poll(
                self._store,
                feed,
                self._reachability[endpoint.id],
                clock=self._clock,
                interval_seconds=self._interval_of(feed),
                observer=self._observer,
                limits=self._limits,
            )
            cadence = None
            if feed.source.interval_seconds is None:
                cadence = Cadence(self._interval_seconds, self._slowest_seconds, self._clock.now())
            polled = PolledFeed(
                self._store, endpoint, poll, cadence=cadence, brief=feed is self._probe, shared=self._shared
            )
            self._poller.add(polled, self._interval_of(feed))

    def _replace_all_feeds(self) -> Iterator[None]:
        """Replace the feeds, one endpoint per step."""
        for identity in tuple(self._endpoints):
            endpoint = self._endpoints.get(identity)
            if endpoint is not None:  # it has not left
                wanted = self._feeds_of(endpoint)
                for feed, polled in tuple(self._poller.polled_feeds.get(identity, {}).items()):
                    if feed not in wanted:
                        self._end_feed(polled)
                        self._reachability[identity].forget(feed.source.name)
                self._begin_feeds(endpoint)
            yield

    @property
    def _slowest_seconds(self) -> float:
        return slowest_interval(self._interval_seconds, self._trusted_seconds)

    def _end(self, identity: str) -> None:
        if self._endpoints.pop(identity, None) is not None:
            del self._reachability[identity]
            self.conditions.remove(identity)
            for polled in tuple(self._poller.polled_feeds.get(identity, {}).values()):
                self._end_feed(polled)

    def _end_feed(self, polled: PolledFeed) -> None:
        for task in self._poller.remove(polled):
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _interval_of(self, feed: Feed) -> float:
        own = feed.source.interval_seconds
        return self._interval_seconds if own is None else own


def _reported(feeds: Iterable[Feed]) -> set[Datum]:
    return {datum for feed in feeds for extractor in feed.extractors for datum in extractor.writes}
