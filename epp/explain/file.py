# SPDX-License-Identifier: Apache-2.0
"""A file of records, one on a line, written by a thread of its own: a slow or full disk holds nothing up."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

import structlog

from epp.explain.settings import FileSettings
from epp.framework.errors import ConfigurationError

_MOST_QUEUED_BYTES = 8 * 1024 * 1024
"""Of lines that wait to be written; further ones are lost."""
_GATHER_SECONDS = 0.1
"""Time in which further lines are gathered, to be written at once."""
_END_SECONDS = 2.0
_MODE = 0o640

_log = structlog.get_logger()


class DecisionFile:
    """`write` never raises and never blocks; lines that cannot be written are counted as lost."""

    def __init__(self, settings: FileSettings) -> None:
        """Create the file, where there is none; raises ConfigurationError where it cannot be written."""
        self._settings = settings
        self._path = settings.path.absolute()
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._queued_bytes = self._taken_bytes = 0  # the one is written by callers, the other by the thread
        self._turned_away = self._unwritten = 0  # the same
        self._thread: Thread | None = None
        self._ending = Event()
        self._problem = ""
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"--decision-file: {self._path} cannot be written: {error.strerror}",
                remedy="name a file in a directory that this process may write to",
            ) from error

    @property
    def path(self) -> Path:
        """The file that is written to now."""
        return self._path

    @property
    def lost(self) -> int:
        """Lines that could not be written; may be read in any thread."""
        return self._turned_away + self._unwritten

    @property
    def problem(self) -> str:
        """Why lines are lost now; empty while they are not. May be read in any thread."""
        return self._problem

    def write(self, line: bytes) -> None:
        """Queue a line, without its end; it is lost where too many wait."""
        if self._queued_bytes + len(line) - self._taken_bytes > _MOST_QUEUED_BYTES or self._ending.is_set():
            self._turned_away += 1
            return
        self._queued_bytes += len(line)
        self._queue.put(line)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="decision file", daemon=True)
            self._thread.start()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Write what waits, in this time at most; nothing is written afterwards."""
        self._ending.set()
        if self._thread is not None:
            self._queue.put(b"")  # wakes it
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            lines = [self._queue.get()]
            self._ending.wait(_GATHER_SECONDS)
            with contextlib.suppress(Empty):
                while True:
                    lines.append(self._queue.get_nowait())
            self._taken_bytes += sum(map(len, lines))
            lines = [line for line in lines if line]
            if lines:
                self._write(lines)
            if self._ending.is_set() and self._queue.empty():
                return

    def _write(self, lines: list[bytes]) -> None:
        """Write as much at a time as one file may have."""
        group: list[bytes] = []
        size = 0
        for line in lines:
            if group and size + len(line) + 1 > self._settings.most_bytes:
                self._write_group(group)
                group, size = [], 0
            group.append(line)
            size += len(line) + 1
        self._write_group(group)

    def _write_group(self, lines: list[bytes]) -> None:
        try:
            self._append(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            self._unwritten += len(lines)
            if not self._problem:
                _log.warning(
                    "decisions are not written",
                    file=str(self._path),
                    reason=error.strerror,
                    remedy="make room, or let this process write there: writing goes on by itself",
                )
            self._problem = f"{self._path}: {error.strerror}"
        else:
            if self._problem:
                _log.info("decisions are written again", file=str(self._path), lost=self.lost)
            self._problem = ""

    def _append(self, data: bytes) -> None:
        """Append whole lines, or nothing; raises OSError.

        The file is opened again each time, so that others may move or remove it.
        """
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._settings.most_bytes:
                self._rotate()
                os.close(descriptor)
                descriptor, size = -1, 0
                descriptor = self._open()
            if size and data and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # after a line that a crash has cut
            try:
                _write_all(descriptor, data)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, _MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return descriptor

    def _rotate(self) -> None:
        """Make room for another file; raises OSError, so that the files together stay within their bounds."""
        for number in range(self._settings.count - 1, 0, -1):
            newer = self._path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                newer.replace(self._numbered(number))
        if self._settings.count == 1:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
