# SPDX-License-Identifier: Apache-2.0
"""Turns of the event loop: connections on which much comes take them one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable

_TURN_SECONDS = 0.002
"""Time in which all connections together handle what came, in one turn of the event loop."""
FEW_BYTES = 16_384
"""A read of no more is handled as it comes, whoever waits: of small frames, a few."""


class Turns:
    """For all connections of a server together."""

    def __init__(self) -> None:
        self._ends: float | None = None
        self._line: deque[Callable[[], None]] = deque()
        self._is_due = False

    def ends(self, now: float) -> float:
        """Return by when all connections together let the event loop go on to other work."""
        if self._ends is None:
            self._ends = now + _TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._end)
        return self._ends

    def must_wait(self, size: int, now: float) -> bool:
        """Whether a read of so many bytes is to be handled after others: they wait, or this turn is over."""
        return size > FEW_BYTES and (bool(self._line) or (self._ends is not None and now >= self._ends))

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this in a later turn, after all that waits already."""
        self._line.append(go_on)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let those go on that have waited longest, as long as this turn has time."""
        loop, line = asyncio.get_running_loop(), self._line
        ends = self.ends(loop.time())
        self._is_due = False
        try:
            for _ in range(len(line)):  # who has more waits again
                line.popleft()()
                if loop.time() >= ends:
                    break
        finally:
            if line and not self._is_due:
                self._is_due = True
                loop.call_soon(self._serve)

    def _end(self) -> None:
        self._ends = None
