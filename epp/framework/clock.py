# SPDX-License-Identifier: Apache-2.0
"""Time as a value that is passed in: the server's clock, and one that tests and simulators turn by hand."""

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """Monotonic time, and the time of day."""

    __slots__ = ()

    @abstractmethod
    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back, and only differences mean anything."""

    @abstractmethod
    def utc(self) -> float:
        """Seconds since 1970 began in Greenwich; may be set back, so that differences mean nothing."""


class SystemClock(Clock):
    """The machine's clocks."""

    __slots__ = ()

    now = staticmethod(time.monotonic)  # without a call in between: there are several for each request
    utc = staticmethod(time.time)


class ManualClock(Clock):
    """A clock that stands still until `advance` is called, or `time` is set."""

    __slots__ = ("time",)

    def __init__(self, start_seconds: float = 0.0) -> None:
        self.time = start_seconds

    def now(self) -> float:
        return self.time

    def utc(self) -> float:
        """Return the same: it starts at the beginning of 1970 unless told otherwise."""
        return self.time

    def advance(self, seconds: float) -> None:
        """Move time forward; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {seconds} s")
        self.time += seconds
