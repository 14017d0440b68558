# SPDX-License-Identifier: Apache-2.0
"""How fast queues empty, from which a client is told when to come back."""

from collections import deque
from math import ceil

WINDOW_SECONDS = 10.0
LONGEST_SECONDS = 300
_MOST = 4096


class DrainRate:
    """Requests that left the queues for an endpoint, over the last seconds."""

    __slots__ = ("_since", "_times")

    def __init__(self, now: float) -> None:
        self._since = now
        self._times: deque[float] = deque(maxlen=_MOST)

    def start(self, now: float) -> None:
        """Note that requests begin to wait: what was before says nothing."""
        self._since = now
        self._times.clear()

    def dispatched(self, now: float) -> None:
        """Note that a request left."""
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """Return the rate over the last ten seconds, or since requests began to wait."""
        times, oldest = self._times, now - WINDOW_SECONDS
        while times and times[0] < oldest:
            times.popleft()
        if not times:
            return 0.0
        start = times[0] if len(times) == _MOST else max(self._since, oldest)
        return len(times) / max(now - start, 0.1)

    def seconds_for(self, requests: int, now: float) -> float | None:
        """Return the time in which so many requests leave; None where it is not known."""
        rate = self.per_second(now)
        return requests / rate if rate else None


def retry_after(seconds: float | None, *, otherwise: int) -> int:
    """Return whole seconds for a client, from 1 to 300."""
    return otherwise if seconds is None else max(1, min(LONGEST_SECONDS, ceil(seconds)))
