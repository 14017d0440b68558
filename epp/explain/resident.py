# SPDX-License-Identifier: Apache-2.0
"""Memory that calls on the event loop leave behind."""

import os
import resource
from contextlib import suppress

MOST_AT_ONCE = 64 * 2**20
"""Bytes by which one call may make the process grow."""
MOST_IN_ALL = 256 * 2**20
"""Bytes by which all calls together may, while the process grows as much."""


class ResidentMemory:
    """The resident size of this process; always 0 where it cannot be read."""

    def __init__(self) -> None:
        """Open the file of it, of Linux."""
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = resource.getpagesize()

    def size_bytes(self) -> int:
        """Return its size now."""
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 64, 0).split()[1]) * self._page

    def close(self) -> None:
        """Release the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Growth:
    """How much the calls of one kind make the process grow."""

    def __init__(self) -> None:
        """Begin with none."""
        self._least = 0
        self._sum = 0

    def breach(self, before: int, after: int) -> str:
        """Take the size of the process before and after a call; return which bound is broken, empty for none."""
        grown = after - before
        if not self._least or before <= self._least:
            self._least, self._sum = before, 0
        self._sum = max(self._sum + grown, 0)
        if grown > MOST_AT_ONCE:
            return f"took {grown >> 20} MiB of memory for one request"
        if min(self._sum, after - self._least) > MOST_IN_ALL:
            return f"took {self._sum >> 20} MiB of memory, and does not give it back"
        return ""
