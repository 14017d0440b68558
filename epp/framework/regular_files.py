# SPDX-License-Identifier: Apache-2.0
"""Safe reading of files written by others: devices, pipes and directories are refused."""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple


class FileId(NamedTuple):
    """A file of a file system: another one after a rename over it, the same one after a write in place."""

    device: int
    inode: int


_ALLOWED: ContextVar[tuple[frozenset[str], frozenset[str]] | None] = ContextVar("files that may be read", default=None)


class FileContent(NamedTuple):
    """The bytes of a file at one moment."""

    data: bytes
    file: FileId


def file_id(path: Path) -> FileId | None:
    """Return which file is at a path; None where that cannot be told."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileId(status.st_dev, status.st_ino)


@contextmanager
def only_files(paths: Collection[str], *, below: Collection[str] = ()) -> Iterator[None]:
    """Refuse to read others than these files, and those `below` these directories, in what is called from here."""
    token = _ALLOWED.set((frozenset(paths), frozenset(below)))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def check_allowed(path: Path) -> None:
    """Raise OSError for a file that may not be read now: for libraries that read files themselves."""
    if not _is_allowed(path):
        raise PermissionError(errno.EACCES, "only files of the configuration in effect may be named here", str(path))


def read_regular(path: Path, most_bytes: int) -> FileContent:
    """Return the content, or the first `most_bytes` + 1 bytes of a larger one.

    Raises OSError, whose `strerror` has a remedy where there is a certain one. A pipe, a socket or a device is an error
    too, and is not waited for.
    """
    check_allowed(path)
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        descriptor = _opened(path)  # once more: symbolic links in the path may have just been swapped
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
    return OSError(errno.EINVAL, "it is no regular file: name one", str(path))


def _read(descriptor: int, most_bytes: int) -> bytes:
    pieces = []
    left = most_bytes
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
