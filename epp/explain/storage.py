# SPDX-License-Identifier: Apache-2.0
"""Storage of decision records: a ring buffer in memory, and a file written by a thread."""

import contextlib
import errno
import os
import stat
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import NamedTuple

import structlog

from epp.framework.errors import ConfigurationError
from epp.telemetry.logs import write_all

_MOST_QUEUED_BYTES = 8 * 1024 * 1024
"""Limit on the total size of queued lines; further lines are lost."""
_GATHER_SECONDS = 0.1
"""Time in which lines are collected for one write."""
_END_SECONDS = 2.0
_MODE = 0o640
_log = structlog.get_logger()


class Kept(NamedTuple):
    id: str
    request_id: str
    at: float
    """Seconds since 1970."""
    data: bytes
    """JSON."""
    new_for: str = ""
    """Reason for recording the decision; empty for a newer version of a record."""
    is_final: bool = False
    """Whether it is written to the file."""


class Ring:
    """Ring buffer of the latest records, in the order of their decisions."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, Kept] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: Kept) -> None:
        """Add a record, unless it alone exceeds the size limit."""
        if self._most < 1 or len(kept.data) > self._most_bytes:
            return
        self._kept[kept.id] = kept
        self.size_bytes += len(kept.data)
        self._make_room()

    def update(self, record_id: str, data: bytes) -> None:
        """Replace a record if it is still in the buffer."""
        before = self._kept.get(record_id)
        if before is None:
            return
        self._kept[record_id] = before._replace(data=data)
        self.size_bytes += len(data) - len(before.data)
        self._make_room()

    def get(self, record_id: str) -> bytes | None:
        found = self._kept.get(record_id)
        return None if found is None else found.data

    def latest(
        self,
        limit: int,
        *,
        since: float | None = None,
        after: str = "",
        request_id: str = "",
        most_bytes: int | None = None,
    ) -> list[bytes]:
        """Return the latest records, newest first; at most `most_bytes` together, or a single larger one.

        `since` (seconds since 1970) and `after` (the id of a record) exclude older records. `request_id` selects the
        records of one request.
        """
        found: list[bytes] = []
        left = self._most_bytes if most_bytes is None else most_bytes
        for kept in reversed(self._kept.values()):
            if len(found) >= limit or kept.id == after or (since is not None and kept.at <= since):
                break
            if request_id and kept.request_id != request_id:
                continue
            left -= len(kept.data)
            if found and left < 0:
                break
            found.append(kept.data)
        return found

    def _make_room(self) -> None:
        while self.size_bytes > self._most_bytes or len(self._kept) > self._most:
            oldest = next(islice(self._kept, 1))
            self.size_bytes -= len(self._kept.pop(oldest).data)


class DecisionFile:
    """A file of records, one per line; `write` never raises and never blocks, and lost lines are counted."""

    def __init__(self, path: Path, *, most_bytes: int, count: int) -> None:
        """Create the file if there is none; raises ConfigurationError if it cannot be written.

        It is rotated at `most_bytes`; there are up to `count` files, and older ones end in `.1` (the latest), `.2` etc.
        """
        self.path = path.absolute()
        self._most_bytes = most_bytes
        self._count = count
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._queued_bytes = self._taken_bytes = 0  # set by callers, and by the thread
        self._rejected = self._unwritten = 0  # set by callers, and by the thread
        self._thread: Thread | None = None
        self._ending = Event()
        self.problem = ""
        """Reason that lines are being lost; empty if they are not. May be read in any thread."""
        try:
            self._append(b"")
        except OSError as error:
            problem = f"--decision-file: {self.path} cannot be written: {error.strerror}"
            remedy = "name a file in a directory that this process may write to"
            raise ConfigurationError(problem, remedy=remedy) from error

    @property
    def lost(self) -> int:
        """Number of lines that could not be written; may be read in any thread."""
        return self._rejected + self._unwritten

    def write(self, line: bytes) -> None:
        """Queue a line without a line feed; it is lost if too many lines wait."""
        if self._queued_bytes + len(line) - self._taken_bytes > _MOST_QUEUED_BYTES or self._ending.is_set():
            self._rejected += 1
            return
        self._queued_bytes += len(line)
        self._queue.put(line)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="decision file", daemon=True)
            self._thread.start()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Write the queued lines within `seconds`; later lines are lost."""
        self._ending.set()
        if self._thread is not None:
            self._queue.put(b"")  # wakes it
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            first = self._queue.get()
            self._ending.wait(_GATHER_SECONDS)
            lines = [first, *(self._queue.get() for _ in range(self._queue.qsize()))]
            self._taken_bytes += sum(map(len, lines))
            lines = [line for line in lines if line]
            if lines:
                self._write(lines)
            if self._ending.is_set() and self._queue.empty():
                return

    def _write(self, lines: list[bytes]) -> None:
        """Write lines in groups that fit into one file."""
        group: list[bytes] = []
        size = 0
        for line in lines:
            if group and size + len(line) + 1 > self._most_bytes:
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
            if not self.problem:
                _log.warning(
                    "decisions are not written",
                    file=str(self.path),
                    reason=error.strerror,
                    remedy="free space, or let this process write there; the next decision is a new attempt",
                )
            self.problem = f"{self.path}: {error.strerror}"
        else:
            if self.problem:
                _log.info("decisions are written again", file=str(self.path), lost=self.lost)
            self.problem = ""

    def _append(self, data: bytes) -> None:
        """Append whole lines, or nothing; raises OSError.

        The file is opened for each write, so that it may be moved or removed.
        """
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._most_bytes:
                self._rotate()
                os.close(descriptor)
                descriptor, size = -1, 0
                descriptor = self._open()
            if size and data and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # after a line that was truncated by a crash
            try:
                write_all(descriptor, data)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, _MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return descriptor

    def _rotate(self) -> None:
        """Rename the files to make room for a new one; raises OSError, so that their total size stays limited."""
        for number in range(self._count - 1, 0, -1):
            newer = self.path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                newer.replace(self._numbered(number))
        if self._count == 1:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
