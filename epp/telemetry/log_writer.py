# SPDX-License-Identifier: Apache-2.0
"""A log stream with its own thread: a slow, full or broken stderr neither blocks nor breaks the program."""

import atexit
import io
import os
from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import TextIO

_MAX_QUEUED = 10_000
"""Lines; further ones are dropped."""
_GATHER_SECONDS = 0.02
"""Time in which further lines are gathered, to be written at once: a thread that woke for each would cost more."""
_FLUSH_SECONDS = 1.0
"""Longest wait for queued lines at the end of the process."""


class LogWriter(io.TextIOBase):
    """A text stream whose `write` never raises and never blocks; lines that cannot be written are counted as lost."""

    def __init__(self, stream: TextIO, *, max_queued: int = _MAX_QUEUED) -> None:
        self._stream = stream
        self._max_queued = max_queued
        self._queue: deque[str] = deque()
        self._changed = Condition()
        self._hurry = Event()
        self._thread: Thread | None = None
        self._idle = True
        """Whether the thread waits for a line, or has not started."""
        self._writing = False
        self._lost = 0
        self._divert: Callable[[str], object] | None = None

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._lost

    def write(self, text: str) -> int:
        """Queue a text; drop it if the queue is full. Takes no lock, unless the thread has to be woken."""
        if len(self._queue) >= self._max_queued:
            with self._changed:
                self._lost += 1
            return len(text)
        self._queue.append(text)
        if self._idle:
            self._wake()
        return len(text)

    def divert(self, to: Callable[[str], object] | None) -> None:
        """Give lines to a function, in another thread, in place of the stream; None for the stream again."""
        self._divert = to

    def flush(self) -> None:
        """Do nothing: lines are flushed when they are written."""

    def settle(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait until all lines are written or lost, at most this long; return whether they are."""
        self._hurry.set()
        try:
            with self._changed:
                return self._changed.wait_for(lambda: not self._queue and not self._writing, seconds)
        finally:
            self._hurry.clear()

    def _wake(self) -> None:
        with self._changed:
            self._idle = False
            if self._thread is None:
                self._thread = Thread(target=self._drain, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.settle)
            self._changed.notify_all()

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._idle = True  # before the queue is looked at: a line that comes after that wakes this thread
                self._changed.wait_for(lambda: self._queue)
                self._idle = False
            self._hurry.wait(_GATHER_SECONDS)
            with self._changed:
                self._writing = True
                count = len(self._queue)
                lines = "".join([self._queue.popleft() for _ in range(count)])
            try:
                self._write(lines)
            except (OSError, ValueError):  # no reader, no space, closed
                with self._changed:
                    self._lost += count

    def _write(self, lines: str) -> None:
        """Bypass the stream's buffer, which would keep lines that cannot be written, and fail again with them."""
        if self._divert is not None:
            self._divert(lines)
            return
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._stream.write(lines)
            return
        data = memoryview(lines.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(descriptor, data) :]
