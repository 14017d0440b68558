# SPDX-License-Identifier: Apache-2.0
"""Polls of all feeds of all endpoints in one task: each when it is due, all within a budget."""

import asyncio
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import TypeAlias

from epp.framework.clock import Clock
from epp.framework.datalayer import DataSource, Feed, Report
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ROUND_TRIP
from epp.pool.collectors.polling.poll import Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, PollBudget, PollPriority, Timetable, UrgentBudget
from epp.pool.collectors.sources.http import HttpSource
from epp.pool.collectors.sources.page_client import PageClient
from epp.pool.collectors.sources.response_parser import Reading
from epp.routing.datastore import Datastore
from epp.routing.outliers.record import OnVerdict, Verdict

_SHARE = 0.05
"""Largest share of a core that the pages of one endpoint may use; beyond it, the endpoint is polled less often."""

Done: TypeAlias = Callable[["PolledFeed", bytes | Exception], None]
_STEP_SECONDS = 0.004
"""Time until the next step while due polls wait for the budget."""
_SOON_SECONDS = 0.01
"""Time to the next step from which the next request wakes the poller."""
_CONNECTING = 2
"""Weight of a poll that needs a new connection, among polls that start together."""
_JITTER = 0.1
_MOST_JITTER_SECONDS = 0.005
_LONGEST_FIRST_WAIT_SECONDS = 1.0
_MOST_BRIEF_PER_SECOND = 200.0
"""Limit on brief connections, which cost more than pages on persistent ones."""


class SharedPages:
    """The latest pages of endpoints that several pools of one process poll, so that each server is asked once.

    Only pages without TLS are shared: pools may trust different certificates.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users: Counter[Hashable] = Counter()
        self._pages: dict[Hashable, tuple[float, bytes]] = {}

    def join(self, key: Hashable) -> None:
        """Count a reader of the page."""
        self._users[key] += 1

    def leave(self, key: Hashable) -> None:
        """Remove a reader; the page is kept only for several readers."""
        self._users[key] -= 1
        if self._users[key] <= 1:
            self._pages.pop(key, None)
        if not self._users[key]:
            del self._users[key]

    def put(self, key: Hashable, page: bytes) -> None:
        """Keep a page that was read now, if it has another reader."""
        if self._users[key] > 1:
            self._pages[key] = self._clock.now(), page

    def recent(self, key: Hashable, seconds: float) -> bytes | None:
        """Return the page if it was read within the last `seconds`."""
        read_at, page = self._pages.get(key, (-math.inf, b""))
        return page if self._clock.now() - read_at < seconds else None


class PolledFeed:
    """One feed of one endpoint: the poll in progress, and the time of the next one.

    Pages over HTTP need no task unless an error occurs; each fetch of any other source is a task.
    """

    __slots__ = (
        "_client", "_page", "_shared", "_store", "_task", "brief", "cadence", "due", "endpoint", "gone", "least_wait",
        "on_end", "poll", "priority", "wait",
    )  # fmt: skip

    def __init__(
        self,
        store: Datastore,
        endpoint: Endpoint,
        poll: Poll,
        *,
        cadence: Cadence | None,
        brief: bool = False,
        shared: SharedPages | None = None,
    ) -> None:
        """Without `cadence`, the interval is fixed; `brief` means that no connection is kept."""
        self._shared = shared
        self._page: Hashable = None
        """Key of the page among the shared pages; None if it is not shared."""
        self._store = store
        self.endpoint = endpoint
        self.poll = poll
        self.cadence = cadence
        self.brief = brief
        self.due = 0.0
        self.wait = 0.0
        """Time between the last poll and the next one."""
        self.least_wait = 0.0
        """Shortest wait, by the cost of the last page."""
        self.gone = False
        self.priority = PollPriority()
        self.on_end: Callable[[], None] | None = None
        """Called when the server closes a persistent connection."""
        self._client: PageClient | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def shows_reachability(self) -> bool:
        """Whether it polls the port that requests are sent to."""
        return self.poll.feed.asks(self.endpoint)

    @property
    def needs_connection(self) -> bool:
        """Whether the next poll connects first."""
        if not isinstance(self.poll.feed.source, HttpSource):
            return self.brief
        return self._client is None or not self._client.connected

    def begin(self, done: Done) -> None:
        """Start a poll, and call `done` with its outcome after this has returned."""
        source = self.poll.feed.source
        if isinstance(source, HttpSource):
            client = self._client
            moved = client is not None and client.attempt.endpoint is not self.endpoint
            if client is None or (moved and client.attempt.place != source.place(self.endpoint)):
                if client is not None:
                    client.close()
                self._client = client = source.client_for(self.endpoint, self.poll.metric_filter)
                client.on_end = self.on_end
                self._share(client)
            recent = None
            if self._shared is not None and self._page is not None and not self.priority.is_asked:
                recent = self._shared.recent(self._page, self.wait / 2)
            if recent is None:
                client.request(lambda outcome: self._requested(outcome, done))
            else:
                asyncio.get_running_loop().call_soon(done, self, recent)
        else:
            name = f"collect {source.name} of {self.endpoint.id}"
            self._task = asyncio.get_running_loop().create_task(self._fetch(source, done), name=name)

    def settle(self, outcome: bytes | Exception, delay_seconds: float, now: float) -> None:
        """Report the outcome, and set the time until the next poll."""
        wait = self.poll.settle(self.endpoint, outcome, delay_seconds)
        if self.cadence is not None:
            if self.poll.changed or self._store.in_flight(self.endpoint.id):
                self.cadence.event(now)
            wait = max(wait, self.cadence.interval(now))
        if self._client is not None:
            self.least_wait = self._client.seconds / _SHARE
            round_trip = self._client.take_round_trip()
            if round_trip is not None and self.shows_reachability:
                self._store.tag(self.endpoint, Report({ROUND_TRIP: round_trip}))
        self.wait = max(wait, self.least_wait)
        self.priority.settled(outcome)

    def end(self) -> Iterator[asyncio.Task[None]]:
        """Cancel the poll in progress and close the connection; yield cancelled tasks."""
        self.gone = True
        self.priority.end()
        self._share(None)
        client, self._client = self._client, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            yield task
        if client is not None and (asking := client.close()) is not None:
            yield asking

    def _share(self, client: PageClient | None) -> None:
        """Share the pages of a client from now on; None for no pages."""
        if self._shared is None:
            return
        if self._page is not None:
            self._shared.leave(self._page)
        self._page = None
        if client is not None and client.attempt.tls is None:
            self._page = client.attempt.url, client.attempt.request, self.poll.wanted
            self._shared.join(self._page)

    def _requested(self, outcome: bytes | Exception, done: Done) -> None:
        if self._shared is not None and self._page is not None and isinstance(outcome, bytes) and not self.poll.cut:
            self._shared.put(self._page, outcome)
        done(self, outcome)

    async def _fetch(self, source: DataSource, done: Done) -> None:
        outcome: bytes | Exception
        try:
            outcome = await source.fetch(self.endpoint)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; other feeds continue
            outcome = error
        self._task = None
        done(self, outcome)


class Poller:
    """Starts polls in order of their due times, as the budget allows."""

    def __init__(
        self,
        store: Datastore,
        clock: Clock,
        budget: PollBudget,
        generator: random.Random,
        *,
        reading: Reading | None = None,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        """Use `cpu_seconds` for the CPU time of the event loop's thread."""
        self.reading = reading or Reading()
        """State that the connections of all sources share."""
        self.on_connection_end: Callable[[Endpoint], None] | None = None
        """Called when a server closes a persistent connection, unless it does so regularly: it may have failed."""
        self._store = store
        self._clock = clock
        self._budget = budget
        self._urgent = UrgentBudget()
        self._generator = generator
        self._cpu_seconds = cpu_seconds
        self._timetable: Timetable[PolledFeed] = Timetable(clock.now() - generator.random())
        self.polled_feeds: dict[str, dict[Feed, PolledFeed]] = {}
        """Keyed by endpoint id."""
        self.count = 0
        """Number of polled feeds, counted for each endpoint."""
        self._brief = 0
        self._waiting: deque[PolledFeed] = deque()
        self._unaccounted_seconds = 0.0
        self._sequence = store.ledger.sequence
        self._alarm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_step = math.inf
        """End of the timer, without jitter."""
        self._latest_step = math.inf
        """End of the timer, with jitter: a later step is late."""

    @property
    def delay_seconds(self) -> float:
        """Expected time between the due time and the start of a poll."""
        return len(self._waiting) / self._budget.polls_per_second

    def add(self, polled: PolledFeed, interval: float) -> None:
        """Start to poll a feed, for the first time within its interval or a second."""
        self.polled_feeds.setdefault(polled.endpoint.id, {})[polled.poll.feed] = polled
        self.count += 1
        self._brief += polled.brief
        polled.wait = interval
        if polled.shows_reachability:
            polled.on_end = lambda: self._connection_ended(polled)
        now = self._clock.now()
        longest = min(interval, _LONGEST_FIRST_WAIT_SECONDS)
        first = now - longest * self._generator.random()
        self._put(polled, self._timetable.after(first, longest, now, self.count))

    def remove(self, polled: PolledFeed) -> Collection[asyncio.Task[None]]:
        """Stop polling a feed; return its cancelled tasks."""
        polled_feeds = self.polled_feeds[polled.endpoint.id]
        del polled_feeds[polled.poll.feed]
        if not polled_feeds:
            del self.polled_feeds[polled.endpoint.id]
        self.count -= 1
        self._brief -= polled.brief
        self._timetable.remove(polled)
        polled.on_end = None  # avoids a reference cycle
        return tuple(polled.end())

    def ask(self, identity: str, report: OnVerdict) -> None:
        """Poll an endpoint urgently, at the port that requests are sent to, and call `report` once with the verdict."""
        polled_feeds = [polled for polled in self.polled_feeds.get(identity, {}).values() if polled.shows_reachability]
        if not polled_feeds:
            report(Verdict.SILENT)
            return
        polled = min(polled_feeds, key=lambda one: one.wait)
        now = self._clock.now()
        polled.priority.ask(now, report)
        self._poll_urgently(polled, now)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._alarm = loop.create_future()
                picked = self._sequence != self._store.ledger.sequence
                self._set_timer(self.step())
                if not picked and self._next_step - self._clock.now() > _SOON_SECONDS:
                    self._store.ledger.on_next = self._wake
                await self._alarm
        finally:
            self._alarm = None
            self._store.ledger.on_next = None
            self._set_timer(math.inf)

    def step(self) -> float:
        """Start polls that are due; return the time of the next step, infinite for never."""
        started = self._cpu_seconds()
        now = self._clock.now()
        self._shorten_intervals(now)
        self._waiting.extend(self._timetable.take_due(now))
        self._budget.ran(now, started, max(now - self._latest_step, 0.0))
        most, at_once = self._budget.allowance(now), self._budget.at_once
        began = load = 0
        while self._waiting and began < most and load < at_once:
            polled = self._waiting.popleft()
            if not polled.gone:
                began += 1
                load += _CONNECTING if polled.needs_connection else 1
                self._begin_one(polled)
        self._budget.began(began)
        self._unaccounted_seconds += self._cpu_seconds() - started + self.reading.take()
        if began:
            self._budget.spent(self._unaccounted_seconds, began)
            self._unaccounted_seconds = 0.0
        if self._waiting:
            return now + max(_STEP_SECONDS, 1.0 / self._budget.polls_per_second)
        return self._timetable.next_due

    def _begin_one(self, polled: PolledFeed) -> None:
        polled.priority.began_at = self._clock.now()
        try:
            polled.begin(self._settle)
        except Exception as error:  # noqa: BLE001  for example, a certificate file cannot be read
            self._settle(polled, error)

    def _connection_ended(self, polled: PolledFeed) -> None:
        """Report a server that closed a connection and may have failed."""
        now = self._clock.now()
        if not polled.gone and polled.priority.connection_ended(now) and self.on_connection_end is not None:
            self.on_connection_end(polled.endpoint)

    def _poll_urgently(self, polled: PolledFeed, now: float) -> None:
        """Poll a feed as soon as possible, unless a poll is in progress or waiting."""
        if self._timetable.due_of(polled) == math.inf:
            return
        earliest = polled.priority.earliest
        if earliest > now or not self._urgent.take(now):
            self._put(polled, min(max(now, earliest), self._timetable.due_of(polled)))
            return
        self._timetable.remove(polled)
        self._budget.began(1)
        self._begin_one(polled)

    def _settle(self, polled: PolledFeed, outcome: bytes | Exception) -> None:
        if polled.gone:
            return
        now = self._clock.now()
        try:
            polled.settle(outcome, self.delay_seconds, now)
        finally:
            wait = max(polled.wait, self._brief / _MOST_BRIEF_PER_SECOND) if polled.brief else polled.wait
            due = self._timetable.after(polled.due, wait, now, self.count)
            self._put(polled, min(due, max(now, polled.priority.earliest)) if polled.priority.is_asked else due)

    def _shorten_intervals(self, now: float) -> None:
        """Shorten the interval of endpoints that were sent a request."""
        if self._sequence == self._store.ledger.sequence:
            return
        for endpoint in self._store.picked_since(self._sequence):
            for polled in self.polled_feeds.get(endpoint.id, {}).values():
                if polled.cadence is not None:
                    polled.cadence.event(now)
                    wait = max(polled.cadence.interval(now), polled.least_wait)
                    due = max(now, polled.due - polled.wait + wait)
                    if due < self._timetable.due_of(polled) < math.inf:
                        self._put(polled, due)
        self._sequence = self._store.ledger.sequence

    def _put(self, polled: PolledFeed, due: float) -> None:
        polled.due = due
        self._timetable.put(polled, due)
        if due < self._next_step:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        """Set the timer of the next step, with jitter."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_step = self._latest_step = due
        if due < math.inf:
            now = self._clock.now()
            seconds = max(due - now, 0.0)
            jitter = self._generator.random() * min(_JITTER * seconds, _MOST_JITTER_SECONDS)
            self._latest_step = now + seconds + jitter
            self._timer = asyncio.get_running_loop().call_later(seconds + jitter, self._wake)

    def _wake(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)
