# SPDX-License-Identifier: Apache-2.0
"""The time between two polls of an endpoint, which grows while nothing happens there."""

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
