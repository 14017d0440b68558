# SPDX-License-Identifier: Apache-2.0
"""How fast queues empty, from which a client is told when to come back."""

from collections import Counter, deque
from math import ceil

WINDOW_SECONDS = 10.0
LONGEST_SECONDS = 300
_TURNS_SECONDS = 30.0
"""Time over which the turns of a flow are counted: it has few of them."""
_MOST = 4096
_LEAST = 16
"""Releases that count however long ago they were: few a second say as much as many."""
_LEAST_OF_FLOW = 4
"""Releases of a flow from which on it has a rate of its own."""
_LEAST_SHARE = 1 / 32
"""Of the rate, that is left for a priority however many requests come above it."""


class _Events:
    """Times, priorities and flows of the latest events."""

    __slots__ = ("_by_flow", "_by_priority", "_events")

    def __init__(self) -> None:
        self._events: deque[tuple[float, int, str]] = deque()
        self._by_priority: Counter[int] = Counter()
        self._by_flow: Counter[tuple[int, str]] = Counter()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def oldest(self) -> float:
        """When the oldest one was."""
        return self._events[0][0]

    def add(self, at: float, priority: int, flow: str = "") -> None:
        """Add one, the latest of all."""
        self._events.append((at, priority, flow))
        self._by_priority[priority] += 1
        self._by_flow[priority, flow] += 1
        if len(self._events) > _MOST:
            self._drop()

    def forget_before(self, at: float, least: int) -> None:
        """Drop older ones, but for so many."""
        while len(self._events) > least and self._events[0][0] < at:
            self._drop()

    def above(self, priority: int) -> int:
        """Return the number of those of higher priorities."""
        return sum(count for each, count in self._by_priority.items() if each > priority)

    def of(self, priority: int, flow: str) -> int:
        """Return the number of those of a flow."""
        return self._by_flow[priority, flow]

    def _drop(self) -> None:
        _, priority, flow = self._events.popleft()
        self._by_priority[priority] -= 1
        if not self._by_priority[priority]:
            del self._by_priority[priority]
        self._by_flow[priority, flow] -= 1
        if not self._by_flow[priority, flow]:
            del self._by_flow[priority, flow]


class DrainRate:
    """Requests that left the queues for an endpoint, over the last seconds in which any waited.

    Time in which none waits is left out: what goes then says how much comes, not how much could go.
    """

    __slots__ = ("_before", "_came", "_left", "_since", "_turns")

    def __init__(self) -> None:
        self._since: float | None = None
        """When requests began to wait; None while none does."""
        self._before = 0.0
        """Seconds in which requests waited before that."""
        self._left = _Events()
        self._turns = _Events()
        """The same over a longer time."""
        self._came = _Events()

    def start(self, now: float) -> None:
        """Note that requests begin to wait."""
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        """Note that none waits any more."""
        self._before = self._at(now)
        self._since = None

    def came(self, now: float, priority: int) -> None:
        """Note that a request begins to wait."""
        self._came.add(self._at(now), priority)

    def dispatched(self, now: float, priority: int, flow: str = "") -> None:
        """Note that a request left."""
        self._left.add(self._at(now), priority)
        self._turns.add(self._at(now), priority, flow)

    def per_second(self, now: float) -> float:
        """Return the rate over the last ten seconds, or over a few requests where they take longer."""
        at, left = self._at(now), self._left
        left.forget_before(at - WINDOW_SECONDS, _LEAST)
        return len(left) / max(at - self._start(at), 0.1) if left else 0.0

    def seconds_for(self, requests: int, now: float, priority: int) -> float | None:
        """Return the time in which so many requests of a priority and above leave; None where it is not known.

        What comes above this priority meanwhile goes first: as many a second as came of late.
        """
        rate = self.per_second(now)
        if not rate:
            return None
        at = self._at(now)
        start = self._start(at)
        self._came.forget_before(start, 0)
        since = max(start, self._came.oldest) if len(self._came) == _MOST else start
        above = self._came.above(priority) / max(at - since, 0.1)
        return requests / max(rate - above, rate * _LEAST_SHARE)

    def seconds_of(self, flow: str, requests: int, now: float, priority: int) -> float | None:
        """Return the time in which so many requests of a flow leave that has its turns; None where it is not known.

        What other flows of the same priority send meanwhile has its turns as well, and so has what comes above it: the
        flow goes on having the share of all releases that it had of late.
        """
        rate, turns = self.per_second(now), self._turns
        turns.forget_before(self._at(now) - _TURNS_SECONDS, _LEAST)
        released = turns.of(priority, flow)
        return requests * len(turns) / (rate * released) if rate and released >= _LEAST_OF_FLOW else None

    def _at(self, now: float) -> float:
        return self._before + (0.0 if self._since is None else now - self._since)

    def _start(self, at: float) -> float:
        """Return when the time began in which the releases were that count."""
        oldest = self._left.oldest
        return oldest if len(self._left) == _MOST else min(oldest, max(0.0, at - WINDOW_SECONDS))


def retry_after(seconds: float | None, *, otherwise: int) -> int:
    """Return whole seconds for a client, from 1 to 300."""
    return otherwise if seconds is None else max(1, min(LONGEST_SECONDS, ceil(seconds)))
