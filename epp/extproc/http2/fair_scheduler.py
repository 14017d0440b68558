# SPDX-License-Identifier: Apache-2.0
"""Fair scheduling of busy connections, and of many calls that end together, across event-loop iterations."""

import asyncio
from collections import deque
from collections.abc import Callable

_TURN_SECONDS = 0.002
"""Time for the input of all connections in one iteration of the event loop."""
FEW_BYTES = 16_384
"""Reads up to this size bypass the queue."""
LINGER_SECONDS = 1.0
"""Time for a client to read the last bytes."""
_MOST_LATER_BYTES = 65_536
"""Unprocessed bytes above which reading pauses."""
MOST_ENDINGS = 16
"""Most calls that end in one iteration of the event loop, in one or two milliseconds with their records."""


class FairScheduler:
    """Shares each iteration of the event loop among the connections of a server."""

    def __init__(self) -> None:
        self._ends: float | None = None
        self._queue: deque[Callable[[], None]] = deque()
        self._is_due = False

    def ends(self, now: float) -> float:
        """Return the time by which all connections together yield to the event loop."""
        if self._ends is None:
            asyncio.get_running_loop().call_soon(self._end)  # first, because it raises without memory
            self._ends = now + _TURN_SECONDS
        return self._ends

    def must_wait(self, size: int, now: float) -> bool:
        """Whether a read of `size` bytes must wait: other reads wait, or the iteration has no time left."""
        return size > FEW_BYTES and (bool(self._queue) or (self._ends is not None and now >= self._ends))

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` in a later iteration, after the callbacks that already wait."""
        self._queue.append(resume)
        self._call()

    def _call(self) -> None:
        if not self._is_due:
            asyncio.get_running_loop().call_soon(self._serve)  # first, because it raises without memory
            self._is_due = True

    def _serve(self) -> None:
        """Resume the longest-waiting connections while this iteration has time."""
        loop, queue = asyncio.get_running_loop(), self._queue
        self._is_due = False
        try:
            ends = self.ends(loop.time())
            for _ in range(len(queue)):  # a connection with more input appends itself again
                queue.popleft()()
                if loop.time() >= ends:
                    break
        finally:
            if queue:
                self._call()

    def _end(self) -> None:
        self._ends = None


class PacedProtocol(asyncio.Protocol):
    """Handles input within the time of each event-loop iteration, and keeps the rest for a later one.

    Subclasses implement `_take`, which stores the input that it has no time for in `_later`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, scheduler: FairScheduler) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._transport: asyncio.Transport | None = None
        self._later = b""
        self._is_queued = False
        self._is_paused = False
        self.is_closing = False
        """Whether reading and writing have ended."""

    def data_received(self, data: bytes) -> None:
        if self.is_closing:
            return
        if self._later or self._is_paused:
            self._later += data
        elif self._scheduler.must_wait(len(data), self._loop.time()):
            self._later = data
            self._continue_later()
        else:
            self._take(data)
        if len(self._later) > _MOST_LATER_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading, with the kept input first."""
        self._is_paused = False
        if self._later:
            self._continue_later()
        else:
            self._read_on()

    def abort(self) -> None:
        """Close without writing the rest."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def _linger(self, transport: asyncio.Transport) -> None:
        """Close after the client had time to read: with unread input, a reset would make it lose the last bytes."""
        try:
            transport.write_eof()
        except OSError:  # the client has closed
            transport.close()
        else:
            transport.resume_reading()
            self._loop.call_later(LINGER_SECONDS, transport.close)

    def _continue_later(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._scheduler.wait(self._resume)

    def _resume(self) -> None:
        """Handle the kept input, then resume reading."""
        self._is_queued = False
        if self._is_paused or self.is_closing or not self._later:
            return
        data, self._later = self._later, b""
        try:
            self._take(data)
        except BaseException:  # as event loops do if a read raises: otherwise reading would never resume
            self.abort()
            raise
        self._read_on()

    def _read_on(self) -> None:
        transport = self._transport
        if not (self._later or self._is_paused or self.is_closing or transport is None or transport.is_closing()):
            transport.resume_reading()


class Pace:
    """Spreads the ends of calls over iterations of the event loop: all clients may leave at once."""

    def __init__(self) -> None:
        self._left = MOST_ENDINGS
        self._later: deque[tuple[Callable[[], object], int]] = deque()
        self._is_due = False

    def do(self, act: Callable[[], object], calls: int = 1) -> None:
        """Call `act` now or in a later iteration, in order; `calls` is the number of calls that it ends."""
        if self._later or self._left < calls:
            self._later.append((act, calls))
        else:
            self._left -= calls
            act()
        self._resume()

    def _resume(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due, self._left = False, MOST_ENDINGS
        later = self._later
        try:
            while later and later[0][1] <= self._left:
                act, calls = later.popleft()
                self._left -= calls
                act()
        finally:
            if self._left < MOST_ENDINGS:
                self._resume()
