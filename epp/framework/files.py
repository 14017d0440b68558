# SPDX-License-Identifier: Apache-2.0
"""Files that other programs write: safe reads, and delays until a version is complete.

A file that is written in place is empty at first and then grows, and its first part may be valid. Therefore a version
that is written in place, or is much smaller than the previous one, takes effect only after it stays unchanged for a
while.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

_ALLOWED: ContextVar[tuple[frozenset[str], frozenset[str]] | None] = ContextVar("files that may be read", default=None)
UNCHANGED_SECONDS = 1.5
"""Time without changes; longer than a pause between two writes of a program, and than the interval of reads."""
LONGEST_SECONDS = 10.0
"""Time after which a file takes effect even if it keeps changing."""
_WHEN = f"it takes effect once it has not changed for {UNCHANGED_SECONDS:g} s"


class FileId(NamedTuple):
    """Identity of a file; it differs after a rename over the file, and stays the same after a write in place."""

    device: int
    inode: int


class FileContent(NamedTuple):
    """Content of a file at one moment."""

    data: bytes
    file: FileId


def file_id(path: Path) -> FileId | None:
    """Return the identity of the file at a path; None if it is not accessible."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileId(status.st_dev, status.st_ino)


@contextmanager
def only_files(paths: Collection[str], *, below: Collection[str] = ()) -> Iterator[None]:
    """Restrict reads within the context to these files, and to files `below` these directories."""
    token = _ALLOWED.set((frozenset(paths), frozenset(below)))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def check_allowed(path: Path) -> None:
    """Raise OSError if the file may not be read; for libraries that read files themselves."""
    if not _is_allowed(path):
        raise PermissionError(errno.EACCES, "only files of the configuration in effect may be named here", str(path))


def read_regular(path: Path, most_bytes: int) -> FileContent:
    """Return the content, or the first `most_bytes` + 1 bytes of a larger file.

    Raises OSError, whose `strerror` may have a remedy. A pipe, a socket or a device is an error too, without a wait.
    """
    check_allowed(path)
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        descriptor = _opened(path)  # retry, because symbolic links in the path may just have been replaced
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory: name a file in it", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path)
        return FileContent(_read(descriptor, most_bytes + 1), FileId(status.st_dev, status.st_ino))
    finally:
        os.close(descriptor)


def _is_allowed(path: Path) -> bool:
    allowed = _ALLOWED.get()
    if allowed is None:
        return True
    files, directories = allowed
    is_below = ".." not in path.parts and any(str(parent) in directories for parent in (path, *path.parents))
    return str(path) in files or is_below


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _no_file(path) from None
        raise


def _no_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file: name one", str(path))


def _read(descriptor: int, most_bytes: int) -> bytes:
    pieces = []
    left = most_bytes
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class UnsettledVersion(NamedTuple):
    """A version that is not in effect yet, because it may change."""

    digest: bytes
    since: float
    """Time of the first read of this version."""
    began: float
    """Time of the first read of the first of the consecutive unsettled versions."""

    def is_over(self, now: float) -> bool:
        """Return whether the version has stayed unchanged, or the file has kept changing, for long enough."""
        return now - self.since >= UNCHANGED_SECONDS or now - self.began >= LONGEST_SECONDS


def next_wait(before: UnsettledVersion | None, digest: bytes, now: float) -> UnsettledVersion:
    return UnsettledVersion(digest, now, now if before is None else before.began)


def doubt(*, in_place: bool, entries: int = 0, entries_before: int = 0) -> str:
    """Return the reason that a version may be incomplete; empty if it is complete.

    `in_place` means that the file has the same identity as in the last read. A new file that was renamed over the old
    one is usually complete: it is only doubtful if more than half of the entries are missing.
    """
    if in_place:
        return f"it was written in place: {_WHEN}"
    if 2 * entries < entries_before:
        return f"it has {entries} entries in place of {entries_before}: {_WHEN}"
    return ""
