"""Writes log lines from a thread of its own: a slow, full or broken stderr neither blocks nor breaks the program."""

import atexit
import io
import os
from collections import deque
from threading import Condition, Thread
from typing import TextIO

_MOST_WAITING = 10_000
"""Lines; more are lost."""
_FLUSH_SECONDS = 1.0
"""Longest wait for the last lines at the end of the process."""


class LogWriter(io.TextIOBase):
    """A text stream whose `write` never raises and never waits; lines that cannot be written are counted as lost."""

    def __init__(self, stream: TextIO, *, most_waiting: int = _MOST_WAITING) -> None:
        self._stream = stream
        self._most_waiting = most_waiting
        self._waiting: deque[str] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._writing = False
        self._lost = 0

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._lost

    def write(self, text: str) -> int:
        """Queue a text; drop it where too many wait."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                self._lost += 1
                return len(text)
            self._waiting.append(text)
            if self._thread is None:
                self._thread = Thread(target=self._drain, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.settle)
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Return at once: lines are flushed as they are written."""

    def settle(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait until all lines are written or lost, or the time is up; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lines = "".join(self._waiting)
                count = len(self._waiting)
                self._waiting.clear()
                self._writing = True
            try:
                self._write(lines)
            except (OSError, ValueError):  # no reader, no space, closed
                self._lost += count

    def _write(self, lines: str) -> None:
        """Write past the stream's own buffer: it would keep what could not be written, and fail with it again."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._stream.write(lines)
            return
        data = memoryview(lines.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(descriptor, data) :]
