# SPDX-License-Identifier: Apache-2.0
"""When polls are due: a heap of times on a grid, so that polls begin together and the event loop sleeps in between."""

import heapq
import math
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

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
