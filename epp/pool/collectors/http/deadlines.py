# SPDX-License-Identifier: Apache-2.0
"""Time limits of answers that are due, with one timer for all."""

import asyncio
from typing import Protocol


class Expiring(Protocol):
    """Something that waits for an answer."""

    def expire(self) -> None:
        """Give up: the answer did not come in time."""


class Deadlines:
    """One time limit for everything that waits: what began first ends first."""

    __slots__ = ("_due", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, waiting: Expiring) -> None:
        """Start the time limit of one."""
        loop = asyncio.get_running_loop()
        self._due[waiting] = due = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._expire)

    def end(self, waiting: Expiring) -> None:
        """End it: the answer is there, or nothing waits for it any more."""
        self._due.pop(waiting, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._due:
            waiting, due = next(iter(self._due.items()))
            if due > now:
                self._timer = loop.call_at(due, self._expire)
                return
            del self._due[waiting]
            waiting.expire()
