# SPDX-License-Identifier: Apache-2.0
"""The time of an endpoint, divided equally among the requests that are there at once."""


class SharedTime:
    """A clock of one endpoint, which runs for each of n requests at 1/n of the speed of time.

    A request has had the seconds between what it shows at its end and at its start. Those of all requests add up to
    the time in which any was there.
    """

    __slots__ = ("_at", "_owner", "_seconds", "endpoint", "requests")

    def __init__(self, endpoint: str, owner: "SharedTimes") -> None:
        self.endpoint = endpoint
        self.requests = 0
        self._owner = owner
        self._seconds = 0.0
        self._at = 0.0

    def seconds(self, now: float) -> float:
        """Return what the clock shows."""
        if self.requests:
            self._seconds += (now - self._at) / self.requests
        self._at = now
        return self._seconds

    def enter(self, now: float) -> float:
        """Add a request; return what the clock shows at its start."""
        seconds = self.seconds(now)
        self.requests += 1
        return seconds

    def leave(self, now: float) -> float:
        """Take a request out; return what the clock shows at its end."""
        seconds = self.seconds(now)
        self.requests -= 1
        if not self.requests:
            self._owner.drop(self)
        return seconds


class SharedTimes:
    """The clocks of endpoints with requests, by the ids of these."""

    __slots__ = ("_clocks",)

    def __init__(self) -> None:
        self._clocks: dict[str, SharedTime] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def of(self, endpoint: str) -> SharedTime:
        """Return the clock of an endpoint; it is kept while a request is there."""
        clock = self._clocks.get(endpoint)
        if clock is None:
            clock = self._clocks[endpoint] = SharedTime(endpoint, self)
        return clock

    def drop(self, clock: SharedTime) -> None:
        """Forget a clock."""
        del self._clocks[clock.endpoint]
