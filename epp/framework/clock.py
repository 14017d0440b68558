"""Time as a value that is passed in: the server's clock, and one that tests and simulators turn by hand."""

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """Monotonic time in seconds; only differences mean anything."""

    __slots__ = ()

    @abstractmethod
    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""


class SystemClock(Clock):
    """The machine's monotonic clock."""

    __slots__ = ()

    def now(self) -> float:
        """Seconds since the machine started, or thereabouts."""
        return time.monotonic()


class ManualClock(Clock):
    """A clock that stands still until `advance` is called."""

    __slots__ = ("_now",)

    def __init__(self, start_seconds: float = 0.0) -> None:
        self._now = start_seconds

    def now(self) -> float:
        """Seconds as last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {seconds} s")
        self._now += seconds
