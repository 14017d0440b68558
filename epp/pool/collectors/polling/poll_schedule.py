# SPDX-License-Identifier: Apache-2.0
"""Schedule of polls: intervals, due times, priorities, and a budget of CPU time."""

import heapq
import math
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from epp.framework.datalayer import NotAskedError, UnreachableError
from epp.routing.outliers.record import OnVerdict, Verdict

# Intervals:
_STEP_SECONDS = 1.0
"""Time without an event after which the interval doubles."""
SLOWEST_SECONDS = 0.15
"""Longest interval for an idle endpoint, unless the configured interval is longer. By default `utilization-detector`
ignores metrics from an age of 200 ms."""

# Due times:
_TOGETHER = 16
"""Polls that start together: a wake-up of the event loop costs as much as a poll or two."""
_SHORTEST_STEP_SECONDS = 0.004
_NEARLY = 1e-6
_EARLY_SECONDS = 0.001
"""Time by which a timer of the event loop may end early: its resolution is 1 ms."""
_DROPPED = 64
"""Outdated entries that one call drops."""
T = TypeVar("T")

# Urgent polls:
SHORTEST_GAP_SECONDS = 0.01
"""Shortest time between two polls of an endpoint, urgent ones included: clients can cause urgent polls."""
_MOST_QUESTIONS = 1_000
_MOST_URGENT_PER_SECOND, _MOST_URGENT_AT_ONCE = 64.0, 32.0
"""Limits on the urgent polls of a pool."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0

# Budget:
_SHARE = 0.2
"""Share of the event loop's free time that polls may use."""
_LEAST_LEFT = 0.25
"""Least free time that is assumed, so that polls continue on an overloaded event loop."""
_MEMORY_SECONDS = 1.0
_SPAN_SECONDS = 0.1
"""Time over which the load of the event loop is measured."""
_ON_TIME_SECONDS = 0.002
"""Delay that is ignored, since polls themselves cause it."""
_BATCH_SECONDS = 0.001
"""CPU time of polls that start together: their responses may arrive together, too."""
_MOST_AT_ONCE = 32
_FIRST_COST_SECONDS = 100e-6
_LEAST_COST_SECONDS, _MOST_COST_SECONDS = 20e-6, 20e-3
"""Bounds on the assumed cost of a poll: a part is not measured, and peaks are short."""
_MEMORY_POLLS = 500.0
"""Polls over which the cost is averaged."""
_LONGEST_GAP_SECONDS = 0.05
"""Longest time without polls that later polls may catch up."""


class Cadence:
    """Interval of polls: it doubles for each second without an event, up to the slowest, and resets with each event.

    An event is a request that was sent to the endpoint, a request in flight, or a change of its numbers.
    """

    __slots__ = ("_fastest", "_last_event", "slowest")

    def __init__(self, fastest: float, slowest: float, now: float) -> None:
        self._fastest = fastest
        self.slowest = slowest
        self._last_event = now

    def event(self, now: float) -> None:
        self._last_event = now

    def interval(self, now: float) -> float:
        """Return the time until the next poll."""
        quiet = now - self._last_event
        interval = self._fastest
        while quiet >= _STEP_SECONDS and interval < self.slowest:
            interval = min(2 * interval, self.slowest)
            quiet -= _STEP_SECONDS
        return interval


def slowest_interval(fastest: float, trusted_seconds: float) -> float:
    """Return the longest interval for an age limit of metrics: three quarters of it, as pages take time."""
    return max(fastest, min(SLOWEST_SECONDS, 0.75 * trusted_seconds))


class Timetable(Generic[T]):
    """Due times of entries, on a grid, so that polls start together and the event loop sleeps in between.

    The grid of an interval has its multiples, or in a large pool those of a fraction of it, so that about 16 entries
    are due together. The grid starts at `origin`, which differs between processes.
    """

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._heap: list[tuple[float, int, T]] = []
        self._due: dict[T, tuple[float, int]] = {}
        self._number = count()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next_due(self) -> float:
        """The earliest due time, or an earlier one of a removed entry; infinite without entries."""
        heap = self._heap
        for _ in range(_DROPPED):
            if not heap or not self._is_outdated(heap[0]):
                break
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def put(self, entry: T, due: float) -> None:
        number = next(self._number)
        self._due[entry] = due, number
        heapq.heappush(self._heap, (due, number, entry))

    def remove(self, entry: T) -> None:
        self._due.pop(entry, None)

    def due_of(self, entry: T) -> float:
        """Return the due time of an entry; infinite for an unknown entry."""
        found = self._due.get(entry)
        return math.inf if found is None else found[0]

    def take_due(self, now: float) -> Iterator[T]:
        """Remove and yield entries that are due within a millisecond, the earliest first; some may be left."""
        dropped = 0
        while dropped < _DROPPED and self._heap and self._heap[0][0] <= now + _EARLY_SECONDS:
            first = heapq.heappop(self._heap)
            if self._is_outdated(first):
                dropped += 1
            else:
                del self._due[first[2]]
                yield first[2]

    def after(self, due: float, interval: float, now: float, polled: int) -> float:
        """Return the next due time after `due`, on the grid of the interval; `polled` is the number of entries.

        It is later than `now`; missed times are skipped. It is at most an interval after `due`, and exactly that if
        `due` was on the same grid.
        """
        step = interval / max(1, min(math.ceil(polled / _TOGETHER), int(interval / _SHORTEST_STEP_SECONDS)))
        wanted = next_due(due, interval, now) - self._origin
        steps = math.floor(wanted / step + _NEARLY)
        while self._origin + steps * step <= now:
            steps += 1
        return self._origin + steps * step

    def _is_outdated(self, timed: tuple[float, int, T]) -> bool:
        """Return whether the entry has another due time, or was removed."""
        _, number, entry = timed
        found = self._due.get(entry)
        return found is None or found[1] != number


def next_due(due: float, wait: float, now: float) -> float:
    """Return the next multiple of `wait` seconds after `due` that is later than `now`; missed ones are skipped."""
    return due + wait * (math.floor(max(now - due, 0.0) / wait) + 1)


class PollPriority:
    """Urgent polls of one endpoint, which may have failed.

    A question whether the endpoint can be reached is answered by the first poll that starts after it; a refused
    connection also answers later questions. A closed persistent connection is a reason for an urgent poll, but less
    frequently for a server that closes connections regularly.
    """

    __slots__ = ("_ended_at", "_pause_seconds", "_questions", "began_at")

    def __init__(self) -> None:
        self.began_at = -math.inf
        """Start of the last poll."""
        self._questions: list[tuple[float, OnVerdict]] = []
        self._pause_seconds = 0.0
        self._ended_at = -math.inf
        """End of the last connection whose end caused an urgent poll."""

    @property
    def is_asked(self) -> bool:
        """Whether a question is open."""
        return bool(self._questions)

    @property
    def earliest(self) -> float:
        """The earliest time of the next poll."""
        return self.began_at + SHORTEST_GAP_SECONDS

    def ask(self, now: float, report: OnVerdict) -> None:
        """Add a question; over the limit, it is answered with `SILENT`."""
        if len(self._questions) >= _MOST_QUESTIONS:
            report(Verdict.SILENT)
        else:
            self._questions.append((now, report))

    def connection_ended(self, now: float) -> bool:
        """Return whether the end of a persistent connection is a reason for an urgent poll."""
        if abs(now - self._ended_at) < self._pause_seconds:
            return False
        self._ended_at = now
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return True

    def settled(self, outcome: bytes | Exception) -> None:
        """Answer questions with the outcome of a poll."""
        if isinstance(outcome, UnreachableError):
            verdict = Verdict.REFUSES if outcome.refused else Verdict.SILENT
        else:
            verdict = Verdict.SILENT if isinstance(outcome, NotAskedError) else Verdict.ANSWERS
        if verdict is Verdict.REFUSES:
            self._pause_seconds = 0.0
        if not self._questions:
            return
        asked, self._questions = self._questions, []
        for at, report in asked:
            if verdict is Verdict.REFUSES or at <= self.began_at:
                report(verdict)
            else:
                self._questions.append((at, report))

    def end(self) -> None:
        """Answer all open questions with `SILENT`, since the endpoint has left."""
        asked, self._questions = self._questions, []
        for _, report in asked:
            report(Verdict.SILENT)


class UrgentBudget:
    """Rate limit of urgent polls; unlike that of other polls, it does not depend on the load of the machine."""

    def __init__(self) -> None:
        self._at = 0.0
        self._left = _MOST_URGENT_AT_ONCE

    def take(self, now: float) -> bool:
        """Return whether one more urgent poll may start now, and count it."""
        self._left = min(self._left + max(now - self._at, 0.0) * _MOST_URGENT_PER_SECOND, _MOST_URGENT_AT_ONCE)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class PollBudget:
    """Limits the CPU time of all polls together: in a large pool, each endpoint is polled less often."""

    def __init__(self, share: float = _SHARE) -> None:
        self._share = share
        self._spent_seconds = 0.0
        self._busy = 0.0
        """Share of time in which the event loop runs other tasks, or is late."""
        self._late_seconds = 0.0
        self._seen: tuple[float, float] | None = None
        """Time of the last measurement, and the CPU time of other tasks until then."""
        self._cost_seconds = _FIRST_COST_SECONDS
        self._left = 0.0
        self._at = -math.inf

    @property
    def polls_per_second(self) -> float:
        """Most polls that may start in a second."""
        return self._share * max(1.0 - self._busy, _LEAST_LEFT) / self._cost_seconds

    @property
    def at_once(self) -> int:
        return min(max(int(_BATCH_SECONDS / self._cost_seconds), 1), _MOST_AT_ONCE)

    def ran(self, now: float, seconds: float, late_seconds: float = 0.0) -> None:
        """Record the CPU time of the event loop so far, polls included, and its delay.

        It is late after each long task, and permanently if other processes use the CPUs.
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
        """Record the CPU time of a number of polls."""
        self._spent_seconds += seconds
        if polls:
            weight = min(polls / _MEMORY_POLLS, 1.0)
            cost = self._cost_seconds + weight * (seconds / polls - self._cost_seconds)
            self._cost_seconds = min(max(cost, _LEAST_COST_SECONDS), _MOST_COST_SECONDS)

    def allowance(self, now: float) -> int:
        """Return the number of polls that may start now; after a while, at least one, independent of the cost."""
        gap = min(max(now - self._at, 0.0), _LONGEST_GAP_SECONDS)
        self._at = now
        rate = self.polls_per_second
        self._left = min(self._left + gap * rate, max(_LONGEST_GAP_SECONDS * rate, 1.0))
        return int(self._left)

    def began(self, polls: int) -> None:
        self._left -= polls
