# SPDX-License-Identifier: Apache-2.0
"""Files of traces: plain, gzip or zstd, in lines of bounded length."""

import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from epp.framework.messages import printable
from epp.lab.traces.trace import TraceError

LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of a line, or of a conversation, without compression."""
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_NAME = 200
_HEAD_LINES = 20


def zstd() -> ModuleType:
    """Return the module for zstd; few traces need it."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def shown(path: Path) -> str:
    """Return the path for messages."""
    return printable(str(path), _MOST_NAME)


@contextmanager
def opened(path: Path, follow: Callable[[BinaryIO], None] = lambda _: None) -> Iterator[BinaryIO]:
    """Open a regular file; decompress it if its first bytes are those of gzip or zstd. Raises TraceError.

    `follow` is given the file as it is on disk. The errors of reading in the context become TraceErrors, too.
    """
    try:
        _check_regular(path)
        with path.open("rb") as file:
            follow(file)
            magic = file.peek(len(_ZSTD))
            if magic.startswith(_GZIP):
                with gzip.GzipFile(fileobj=file) as plain:
                    yield cast("BinaryIO", plain)
            elif magic.startswith(_ZSTD):
                with _zstd_file(file) as plain:
                    yield plain
            else:
                yield file
    except OSError as error:
        reason = error.strerror or str(error)  # gzip.BadGzipFile has no strerror
        raise TraceError(f"{shown(path)} cannot be read: {reason}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{shown(path)} is truncated or damaged ({error}): copy or compress it again") from error


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield lines and their numbers, from 1, but no blank lines; None for a line that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield number, None
        elif line := line.strip():
            yield number, line


def first_lines(file: BinaryIO) -> list[bytes]:
    """Return the first lines that are not blank, as far as they are in the size of the longest line."""
    *lines, last = file.read(LONGEST_LINE).removeprefix(_BOM).split(b"\n", _HEAD_LINES)
    found = [line for one in lines if (line := one.strip())]
    return found or [line for line in (last.strip(),) if line]


def _check_regular(path: Path) -> None:
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return
    except ValueError as error:
        raise TraceError(f"{shown(path)!r} is not the name of a file: {error}") from error
    raise TraceError(f"{shown(path)} is not a regular file: a trace is read more than once")


@contextmanager
def _zstd_file(file: BinaryIO) -> Iterator[BinaryIO]:
    module = zstd()
    try:
        with module.ZstdFile(file) as plain:
            yield cast("BinaryIO", plain)
    except module.ZstdError as error:
        raise EOFError(str(error)) from error
