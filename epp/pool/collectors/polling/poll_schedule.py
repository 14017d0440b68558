# SPDX-License-Identifier: Apache-2.0
"""Schedule of polls: intervals, due times, priorities, and a budget of CPU time."""

import heapq
import math
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from epp.framework.datalayer import NotAskedError, UnreachableError
from epp.routing.outliers import Told, Verdict

_STEP_SECONDS = 1.0
"""Time without an event after which polls become rarer, once more after each further one."""
SLOWEST_SECONDS = 0.15
"""Longest time between two polls of an endpoint at rest, unless less is asked for at any rate: at 200 ms,
utilization-detector distrusts metrics by default."""


class Cadence:
    """Doubles the interval for each second without an event, up to the slowest; any event ends that at once.

    An event is a request that was sent there, one that is in flight, or numbers that changed.
    """

    __slots__ = ("_fastest", "_last_event", "_slowest")

    def __init__(self, fastest: float, slowest: float, now: float) -> None:
        self._fastest = fastest
        self._slowest = slowest
        self._last_event = now

    def event(self, now: float) -> None:
        """Record an event."""
        self._last_event = now

    def limit(self, slowest: float) -> None:
        """Change the slowest interval."""
        self._slowest = slowest

    def interval(self, now: float) -> float:
        """Return the time until the next poll."""
        quiet = now - self._last_event
        interval = self._fastest
        while quiet >= _STEP_SECONDS and interval < self._slowest:
            interval = min(2 * interval, self._slowest)
            quiet -= _STEP_SECONDS
        return interval


def slowest_interval(fastest: float, trusted_seconds: float) -> float:
    """Return the longest interval where metrics are trusted up to an age: three quarters of it, as pages take time."""
    return max(fastest, min(SLOWEST_SECONDS, 0.75 * trusted_seconds))


_TOGETHER = 16
"""Polls that begin together: a wake-up of the event loop costs as much as a poll or two."""
_SHORTEST_STEP_SECONDS = 0.004
_NEARLY = 1e-6
_EARLY_SECONDS = 0.001
"""How much too early a timer of the event loop may end: it counts milliseconds."""
_DROPPED = 64
"""Outdated times that are dropped at once, where many entries were taken out."""
T = TypeVar("T")


class Timetable(Generic[T]):
    """The next time of each entry; one that is put again has the new time only.

    Entries with one interval are due at multiples of it, or of a part of it in a large pool: about 16 at a time. The
    grid begins at `origin`, which differs from process to process.
    """

    __slots__ = ("_due", "_heap", "_number", "_origin")

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._heap: list[tuple[float, int, T]] = []
        self._due: dict[T, tuple[float, int]] = {}
        self._number = count()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next_due(self) -> float:
        """The earliest time; infinite without entries. It may be that of an entry no more, of very many."""
        heap = self._heap
        for _ in range(_DROPPED):
            if not heap or not self._is_outdated(heap[0]):
                break
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def put(self, entry: T, due: float) -> None:
        """Let an entry be due at that time."""
        number = next(self._number)
        self._due[entry] = due, number
        heapq.heappush(self._heap, (due, number, entry))

    def remove(self, entry: T) -> None:
        """Take an entry out, if it is there."""
        self._due.pop(entry, None)

    def due_of(self, entry: T) -> float:
        """Return the time of an entry; infinite if it is not there."""
        found = self._due.get(entry)
        return math.inf if found is None else found[0]

    def take_due(self, now: float) -> Iterator[T]:
        """Take out and yield what is due within a millisecond, the earliest first; perhaps not all at once."""
        dropped = 0
        while dropped < _DROPPED and self._heap and self._heap[0][0] <= now + _EARLY_SECONDS:
            first = heapq.heappop(self._heap)
            if self._is_outdated(first):
                dropped += 1
            else:
                del self._due[first[2]]
                yield first[2]

    def after(self, due: float, interval: float, now: float, polled: int) -> float:
        """Return the time after `due`, on the grid of the interval, with so many polled in all.

        It is later than `now`; times that were missed are skipped. It is an interval after `due` where that was on the
        same grid, and never more.
        """
        step = interval / max(1, min(math.ceil(polled / _TOGETHER), int(interval / _SHORTEST_STEP_SECONDS)))
        wanted = next_due(due, interval, now) - self._origin
        steps = math.floor(wanted / step + _NEARLY)
        while self._origin + steps * step <= now:
            steps += 1
        return self._origin + steps * step

    def _is_outdated(self, timed: tuple[float, int, T]) -> bool:
        """Return whether this is not the time of its entry any more."""
        _, number, entry = timed
        found = self._due.get(entry)
        return found is None or found[1] != number


def next_due(due: float, wait: float, now: float) -> float:
    """Return the next multiple of `wait` seconds after `due` that is later than `now`; missed ones are skipped."""
    return due + wait * (math.floor(max(now - due, 0.0) / wait) + 1)


SHORTEST_GAP_SECONDS = 0.01
"""Between the beginnings of two polls of an endpoint, however urgent: clients can make them urgent."""
_MOST_QUESTIONS = 1_000
_MOST_URGENT_PER_SECOND, _MOST_URGENT_AT_ONCE = 64.0, 32.0
"""Polls of a pool that are out of turn."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0


class PollPriority:
    """Questions to one endpoint, and whether the end of a kept connection tells anything.

    A question is answered by a poll that begins after it; a refusal answers those that came in the meantime, too.
    A server that closes kept connections as a habit is polled out of turn ever more rarely for that.
    """

    __slots__ = ("_ended_at", "_pause_seconds", "_questions", "began_at")

    def __init__(self) -> None:
        self.began_at = -math.inf
        """When the last poll began."""
        self._questions: list[tuple[float, Told]] = []
        self._pause_seconds = 0.0
        self._ended_at: float | None = None
        """When the connection ended that the poll under way is for."""

    @property
    def is_asked(self) -> bool:
        """Whether a question is open."""
        return bool(self._questions)

    @property
    def earliest(self) -> float:
        """The earliest time of the next poll."""
        return self.began_at + SHORTEST_GAP_SECONDS

    def ask(self, now: float, tell: Told) -> None:
        """Add a question; of very many, the last are told that the endpoint is silent."""
        if len(self._questions) >= _MOST_QUESTIONS:
            tell(Verdict.SILENT)
        else:
            self._questions.append((now, tell))

    def connection_ended(self, now: float) -> bool:
        """Return whether the end of a kept connection is a reason for a poll."""
        if self._ended_at is not None and abs(now - self._ended_at) < self._pause_seconds:
            return False
        self._ended_at = now
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return True

    def settled(self, outcome: bytes | Exception) -> None:
        """Answer questions by the outcome of a poll."""
        verdict = verdict_of(outcome)
        if verdict is Verdict.REFUSES:
            self._pause_seconds = 0.0
        if not self._questions:
            return
        asked, self._questions = self._questions, []
        for at, tell in asked:
            if verdict is Verdict.REFUSES or at <= self.began_at:
                tell(verdict)
            else:
                self._questions.append((at, tell))

    def end(self) -> None:
        """Answer all that is open: the endpoint has left."""
        asked, self._questions = self._questions, []
        for _, tell in asked:
            tell(Verdict.SILENT)


class UrgentBudget:
    """A limit on the polls of a pool that are out of turn, the same on a busy machine, where others are rare."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._at = 0.0
        self._left = _MOST_URGENT_AT_ONCE

    def take(self, now: float) -> bool:
        """Return whether one more may begin now, and count it."""
        self._left = min(self._left + max(now - self._at, 0.0) * _MOST_URGENT_PER_SECOND, _MOST_URGENT_AT_ONCE)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def verdict_of(outcome: bytes | Exception) -> Verdict:
    """Return what a poll tells of the port that was asked."""
    if isinstance(outcome, UnreachableError):
        return Verdict.REFUSES if outcome.refused else Verdict.SILENT
    return Verdict.SILENT if isinstance(outcome, NotAskedError) else Verdict.ANSWERS


_SHARE = 0.2
"""Of the event loop's time that requests and all else leave."""
_LEAST_LEFT = 0.25
"""Of the event loop's time: with more requests than it can take, polls still get this part of their share."""
_MEMORY_SECONDS = 1.0
_SPAN_SECONDS = 0.1
"""Time over which the work of the event loop is looked at."""
_ON_TIME_SECONDS = 0.002
"""Delay that counts for nothing: polls themselves take as long."""
_TURN_SECONDS = 0.001
"""What polls that begin together may take: their answers may come together, too."""
_MOST_AT_ONCE = 32
_FIRST_COST_SECONDS = 100e-6
_LEAST_COST_SECONDS, _MOST_COST_SECONDS = 20e-6, 20e-3
"""What a poll is taken to cost at least, since not all of it is measured, and at most, since a bad moment passes."""
_MEMORY_POLLS = 500.0
"""Polls after which a cost counts for little."""
_LONGEST_GAP_SECONDS = 0.05
"""Time without a poll that is made up for; what a busy event loop missed is not."""


class PollBudget:
    """Says how many polls may begin, by the CPU time of polls and of all else so far; knows no clock of its own."""

    __slots__ = ("_at", "_busy", "_cost_seconds", "_late_seconds", "_left", "_seen", "_share", "_spent_seconds")

    def __init__(self, share: float = _SHARE) -> None:
        self._share = share
        self._spent_seconds = 0.0
        self._busy = 0.0
        """Part of its time in which the event loop does anything but polls, or cannot do what it should."""
        self._late_seconds = 0.0
        self._seen: tuple[float, float] | None = None
        """A time, and what all else had taken by then."""
        self._cost_seconds = _FIRST_COST_SECONDS
        self._left = 0.0
        self._at: float | None = None

    @property
    def polls_per_second(self) -> float:
        """Most polls that may begin in a second."""
        return self._share * max(1.0 - self._busy, _LEAST_LEFT) / self._cost_seconds

    @property
    def at_once(self) -> int:
        """Most polls that may begin together."""
        return min(max(int(_TURN_SECONDS / self._cost_seconds), 1), _MOST_AT_ONCE)

    def ran(self, now: float, seconds: float, late_seconds: float = 0.0) -> None:
        """Record the CPU time that the event loop has taken by now, that of polls included, and by how much it is late.

        It is late for a while after each long turn, and all the time where the machine has other work for its CPUs.
        """
        others = seconds - self._spent_seconds
        self._late_seconds += max(late_seconds - _ON_TIME_SECONDS, 0.0)
        if self._seen is None:
            self._seen = now, others
        elif (gap := now - self._seen[0]) >= _SPAN_SECONDS:
            busy = min(max((others - self._seen[1]) / gap, self._late_seconds / gap, 0.0), 1.0)
            self._busy += min(gap / _MEMORY_SECONDS, 1.0) * (busy - self._busy)
            self._seen = now, others
            self._late_seconds = 0.0

    def spent(self, seconds: float, polls: int) -> None:
        """Record the CPU time that so many polls took."""
        self._spent_seconds += seconds
        if polls:
            weight = min(polls / _MEMORY_POLLS, 1.0)
            cost = self._cost_seconds + weight * (seconds / polls - self._cost_seconds)
            self._cost_seconds = min(max(cost, _LEAST_COST_SECONDS), _MOST_COST_SECONDS)

    def allowance(self, now: float) -> int:
        """Return how many polls may begin now; at least one after a while, however much they cost."""
        gap = _LONGEST_GAP_SECONDS if self._at is None else min(max(now - self._at, 0.0), _LONGEST_GAP_SECONDS)
        self._at = now
        rate = self.polls_per_second
        self._left = min(self._left + gap * rate, max(_LONGEST_GAP_SECONDS * rate, 1.0))
        return int(self._left)

    def began(self, polls: int) -> None:
        """Record that so many polls began."""
        self._left -= polls
