# SPDX-License-Identifier: Apache-2.0
"""Clocks that components get as an argument: the system clock, and a manual one for tests and simulators."""

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """Monotonic time, and the time of day."""

    __slots__ = ()

    @abstractmethod
    def now(self) -> float:
        """Return the seconds since an arbitrary start. The time never goes back; only differences are meaningful."""

    @abstractmethod
    def utc(self) -> float:
        """Return the seconds since the Unix epoch. The time may be set back; differences are not meaningful."""


class SystemClock(Clock):
    """The machine's clocks."""

    __slots__ = ()

    now = staticmethod(time.monotonic)  # without a wrapper, since each request calls it several times
    utc = staticmethod(time.time)


class ManualClock(Clock):
    """A clock that stands still until `advance` is called, or `time` is set."""

    __slots__ = ("time",)

    def __init__(self, start_seconds: float = 0.0) -> None:
        self.time = start_seconds

    def now(self) -> float:
        return self.time

    def utc(self) -> float:
        """Return the same time; it starts at the Unix epoch by default."""
        return self.time

    def advance(self, seconds: float) -> None:
        """Move time forward; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {seconds} s")
        self.time += seconds
