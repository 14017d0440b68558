# SPDX-License-Identifier: Apache-2.0
"""CPU time of the event loop's thread that reading pages takes."""

import time


class ReadingCost:
    """Adds up the time between `begin` and `end`; `take` returns the sum and starts again."""

    __slots__ = ("_began", "_spent")

    def __init__(self) -> None:
        self._began = 0.0
        self._spent = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.thread_time()

    def end(self) -> None:
        """Stop the clock."""
        if self._began:
            self._spent += time.thread_time() - self._began
            self._began = 0.0

    @property
    def lap(self) -> float:
        """Seconds since the clock was started, which goes on."""
        return time.thread_time() - self._began if self._began else 0.0

    def take(self) -> float:
        """Return the seconds since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent
