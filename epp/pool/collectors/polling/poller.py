# SPDX-License-Identifier: Apache-2.0
"""Polls of all members in one task: each when it is due, all within a budget."""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from epp.framework.clock import Clock
from epp.framework.datalayer import DataSource
from epp.framework.endpoint import Endpoint
from epp.pool.collectors.polling.poll import Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, PollBudget, PollPriority, Timetable, UrgentBudget
from epp.pool.collectors.sources.answers import Arriving
from epp.pool.collectors.sources.asker import Asker
from epp.pool.collectors.sources.connection import ReadingCost
from epp.pool.collectors.sources.http import HttpSource
from epp.routing.datastore import Datastore
from epp.routing.outliers import Told, Verdict

_SHARE = 0.05
"""Of a core: an endpoint whose pages take more to read is asked less often, so that others are not."""

Done: TypeAlias = Callable[["Member", bytes | Exception], None]


class Member:
    """Begins polls and settles their outcomes, one poll at a time.

    Pages over HTTP need no task unless something goes wrong; of any other source, each fetch is one.
    """

    __slots__ = (
        "_asker", "_store", "_task", "brief", "cadence", "due", "endpoint", "gone", "least_wait", "on_end", "poll",
        "priority", "wait",
    )  # fmt: skip

    def __init__(
        self, store: Datastore, endpoint: Endpoint, poll: Poll, *, cadence: Cadence | None, brief: bool = False
    ) -> None:
        """Prepare; `cadence` is None where the interval is fixed, `brief` means that no connection is kept."""
        self._store = store
        self.endpoint = endpoint
        self.poll = poll
        self.cadence = cadence
        self.brief = brief
        self.due = 0.0
        self.wait = 0.0
        """Time between the last poll and the next one."""
        self.least_wait = 0.0
        """What it is at least, by what the last page cost, whatever happens at the endpoint."""
        self.gone = False
        self.priority = PollPriority()
        self.on_end: Callable[[], None] | None = None
        """Called when the server closes a kept connection."""
        self._asker: Asker | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def tells_reachability(self) -> bool:
        """Whether it asks the port that requests go to."""
        return self.poll.tells_reachability(self.endpoint)

    @property
    def needs_connection(self) -> bool:
        """Whether the next poll connects first."""
        if not isinstance(self.poll.source, HttpSource):
            return self.brief
        return self._asker is None or not self._asker.connected

    def begin(self, done: Done) -> None:
        """Begin a poll, and call `done` with its outcome, never before this returns."""
        source = self.poll.source
        if isinstance(source, HttpSource):
            asker = self._asker
            if asker is None or asker.attempt.endpoint.host != self.endpoint.host:
                if asker is not None:
                    asker.close()
                self._asker = asker = source.asker(self.endpoint, self.poll.sieve)
                asker.on_end = self.on_end
            asker.ask(lambda outcome: done(self, outcome))
        else:
            name = f"collect {source.name} of {self.endpoint.id}"
            self._task = asyncio.get_running_loop().create_task(self._fetch(source, done), name=name)

    def settle(self, outcome: bytes | Exception, delay_seconds: float, now: float) -> None:
        """Report the outcome, and set the time until the next poll."""
        wait = self.poll.settle(self.endpoint, outcome, delay_seconds)
        cadence = self.cadence
        if cadence is not None:
            if self.poll.changed or self._store.in_flight(self.endpoint.id):
                cadence.event(now)
            wait = max(wait, cadence.interval(now))
        if self._asker is not None:
            self.least_wait = self._asker.seconds / _SHARE
        self.wait = max(wait, self.least_wait)
        self.priority.settled(outcome)

    def end(self) -> Iterator[asyncio.Task[None]]:
        """Give up what is under way and close the connection; yield tasks that are about to end."""
        self.gone = True
        self.priority.end()
        asker, self._asker = self._asker, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            yield task
        if asker is not None and (asking := asker.close()) is not None:
            yield asking

    async def _fetch(self, source: DataSource, done: Done) -> None:
        outcome: bytes | Exception
        try:
            outcome = await source.fetch(self.endpoint)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; other feeds continue
            outcome = error
        self._task = None
        done(self, outcome)


_TURN_SECONDS = 0.004
"""Time until the next turn while polls wait."""
_SOON_SECONDS = 0.01
"""A turn that soon notices a request early enough; until a later one, the next request is waited for."""
_CONNECTING = 2
"""Weight of a poll that needs a connection, among polls that begin together."""
_JITTER = 0.1
_MOST_JITTER_SECONDS = 0.005
_LONGEST_FIRST_WAIT_SECONDS = 1.0
_MOST_BRIEF_PER_SECOND = 200.0
"""Brief connections cost more than pages on connections that are kept."""


class Poller:
    """Begins polls in the order in which they are due; what the budget does not allow yet waits for its turn."""

    def __init__(
        self,
        store: Datastore,
        clock: Clock,
        budget: PollBudget,
        generator: random.Random,
        *,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        """Prepare; `cpu_seconds` returns what the thread of the event loop has taken so far."""
        self.cost = ReadingCost()
        """What reading pages takes: sources add to it."""
        self.arriving = Arriving()
        """Counts pages that sources keep whole, until all of a page is there."""
        self.on_connection_end: Callable[[Endpoint], None] | None = None
        """Called when a server closes a kept connection, which is no habit of its own: it may have died."""
        self._store = store
        self._clock = clock
        self._budget = budget
        self._urgent = UrgentBudget()
        self._generator = generator
        self._cpu_seconds = cpu_seconds
        self._timetable: Timetable[Member] = Timetable(clock.now() - generator.random())
        self._members: dict[str, set[Member]] = {}
        """By id of the endpoint."""
        self._count = 0
        self._brief = 0
        self._waiting: deque[Member] = deque()
        self._unaccounted_seconds = 0.0
        self._sequence = store.ledger.sequence
        self._alarm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_turn = math.inf
        """When the timer ends, but for the jitter."""
        self._latest_turn = math.inf
        """The same with it: a turn that comes later is late."""

    @property
    def count(self) -> int:
        """Number of members."""
        return self._count

    @property
    def delay_seconds(self) -> float:
        """Time that a poll waits for its turn."""
        return len(self._waiting) / self._budget.polls_per_second

    def add(self, member: Member, interval: float) -> None:
        """Begin to poll a member, first within the interval, a second at most."""
        self._members.setdefault(member.endpoint.id, set()).add(member)
        self._count += 1
        self._brief += member.brief
        member.wait = interval
        if member.tells_reachability:
            member.on_end = lambda: self._connection_ended(member)
        now = self._clock.now()
        longest = min(interval, _LONGEST_FIRST_WAIT_SECONDS)
        first = now - longest * self._generator.random()
        self._put(member, self._timetable.after(first, longest, now, self._count))

    def remove(self, member: Member) -> Collection[asyncio.Task[None]]:
        """End the polls of a member; return the tasks that are about to end."""
        members = self._members[member.endpoint.id]
        members.remove(member)
        if not members:
            del self._members[member.endpoint.id]
        self._count -= 1
        self._brief -= member.brief
        self._timetable.remove(member)
        member.on_end = None  # it refers to the member: without it, no garbage is left to be collected
        return tuple(member.end())

    def ask(self, identity: str, tell: Told) -> None:
        """Poll an endpoint out of turn, at the port that requests go to, and tell the outcome, once."""
        members = [member for member in self._members.get(identity, ()) if member.tells_reachability]
        if not members:
            tell(Verdict.SILENT)
            return
        member = min(members, key=lambda one: one.wait)
        now = self._clock.now()
        member.priority.ask(now, tell)
        self._hasten(member, now)

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._alarm = loop.create_future()
                picked = self._sequence != self._store.ledger.sequence
                self._set_timer(self.turn())
                if not picked and self._next_turn - self._clock.now() > _SOON_SECONDS:
                    self._store.ledger.call_on_next(self._wake)
                await self._alarm
        finally:
            self._alarm = None
            self._store.ledger.call_on_next(None)
            self._set_timer(math.inf)

    def turn(self) -> float:
        """Begin polls that are due; return when the next turn is, infinite for never."""
        started = self._cpu_seconds()
        now = self._clock.now()
        self._hurry(now)
        self._waiting.extend(self._timetable.take_due(now))
        self._budget.ran(now, started, max(now - self._latest_turn, 0.0))
        began = self._begin(self._budget.allowance(now), self._budget.at_once)
        self._unaccounted_seconds += self._cpu_seconds() - started + self.cost.take()
        if began:
            self._budget.spent(self._unaccounted_seconds, began)
            self._unaccounted_seconds = 0.0
        if self._waiting:
            return now + max(_TURN_SECONDS, 1.0 / self._budget.polls_per_second)
        return self._timetable.next_due

    def _begin(self, most: int, at_once: int) -> int:
        """Begin so many polls at most, or fewer where they connect first; return their number."""
        began = load = 0
        while self._waiting and began < most and load < at_once:
            member = self._waiting.popleft()
            if not member.gone:
                began += 1
                load += _CONNECTING if member.needs_connection else 1
                self._begin_one(member)
        self._budget.began(began)
        return began

    def _begin_one(self, member: Member) -> None:
        member.priority.began_at = self._clock.now()
        try:
            member.begin(self._settle)
        except Exception as error:  # noqa: BLE001  a certificate file that cannot be read, say
            self._settle(member, error)

    def _connection_ended(self, member: Member) -> None:
        """Tell that a server may have died, which has closed a connection."""
        now = self._clock.now()
        if not member.gone and member.priority.connection_ended(now) and self.on_connection_end is not None:
            self.on_connection_end(member.endpoint)

    def _hasten(self, member: Member, now: float) -> None:
        """Poll a member as soon as may be, ahead of all that waits, unless a poll is under way or waits already."""
        if self._timetable.due_of(member) == math.inf:
            return
        earliest = member.priority.earliest
        if earliest > now or not self._urgent.take(now):
            self._put(member, min(max(now, earliest), self._timetable.due_of(member)))
            return
        self._timetable.remove(member)
        self._budget.began(1)
        self._begin_one(member)

    def _settle(self, member: Member, outcome: bytes | Exception) -> None:
        if member.gone:
            return
        now = self._clock.now()
        try:
            member.settle(outcome, self.delay_seconds, now)
        finally:
            wait = max(member.wait, self._brief / _MOST_BRIEF_PER_SECOND) if member.brief else member.wait
            due = self._timetable.after(member.due, wait, now, self._count)
            self._put(member, min(due, max(now, member.priority.earliest)) if member.priority.is_asked else due)

    def _hurry(self, now: float) -> None:
        """Poll endpoints at full pace again that were sent a request."""
        if self._sequence == self._store.ledger.sequence:
            return
        for endpoint in self._store.picked_since(self._sequence):
            for member in self._members.get(endpoint.id, ()):
                cadence = member.cadence
                if cadence is None:
                    continue
                cadence.event(now)
                wait = max(cadence.interval(now), member.least_wait)
                due = max(now, member.due - member.wait + wait)
                if due < self._timetable.due_of(member) < math.inf:
                    self._put(member, due)
        self._sequence = self._store.ledger.sequence

    def _put(self, member: Member, due: float) -> None:
        member.due = due
        self._timetable.put(member, due)
        if due < self._next_turn:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        """Let the next turn be at that time, or a little later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_turn = self._latest_turn = due
        if due < math.inf:
            now = self._clock.now()
            seconds = max(due - now, 0.0)
            jitter = self._generator.random() * min(_JITTER * seconds, _MOST_JITTER_SECONDS)
            self._latest_turn = now + seconds + jitter
            self._timer = asyncio.get_running_loop().call_later(seconds + jitter, self._wake)

    def _wake(self) -> None:
        alarm = self._alarm
        if alarm is not None and not alarm.done():
            alarm.set_result(None)
