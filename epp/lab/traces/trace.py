# SPDX-License-Identifier: Apache-2.0
"""Traces: requests, files, lines and their problems."""

import gzip
import stat
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Protocol, cast

import msgspec

from epp.framework.messages import printable

LONGEST_LINE = 4 * 1024 * 1024
"""Maximum bytes of a line or of a conversation, uncompressed."""
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_NAME = 200
_HEAD_LINES = 20
MOST_BROKEN_SHARE = 0.01
"""Maximum share of broken lines; a trace with more is refused."""
FEWEST_LINES = 100
"""Number of lines to read before a trace can be refused for broken lines, unless it ends before."""
_NAMED = 5
_MOST_REASON = 200


def zstd() -> ModuleType:
    """Return the module for zstd, which few traces need."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def shown(path: Path) -> str:
    return printable(str(path), _MOST_NAME)


@contextmanager
def opened(path: Path, follow: Callable[[BinaryIO], None] = lambda _: None) -> Iterator[BinaryIO]:
    """Open a regular file; decompress it if its first bytes are those of gzip or zstd. Raises TraceError.

    `follow` receives the file as it is on disk. Read errors inside the context become TraceErrors, too.
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
    """Yield lines with their numbers, from 1, without blank lines; None for a line that is too long."""
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
    """Return the first lines that are not blank, within the first `LONGEST_LINE` bytes."""
    *lines, last = file.read(LONGEST_LINE).removeprefix(_BOM).split(b"\n", _HEAD_LINES)
    found = [line for one in lines if (line := one.strip())]
    return found or [line for line in (last.strip(),) if line]


def _check_regular(path: Path) -> None:
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return
    except ValueError as error:
        raise TraceError(f"{shown(path)!r} is not a file name: {error}") from error
    raise TraceError(f"{shown(path)} is not a regular file: a trace is read more than once")


@contextmanager
def _zstd_file(file: BinaryIO) -> Iterator[BinaryIO]:
    module = zstd()
    try:
        with module.ZstdFile(file) as plain:
            yield cast("BinaryIO", plain)
    except module.ZstdError as error:
        raise EOFError(str(error)) from error


class TraceError(Exception):
    """A trace cannot be read or generated; the message names the file, the place and the remedy."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request of a trace.

    Attributes:
        at: seconds since the start of the trace.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        model: name in the body; empty for the model of the servers.
        tenant: fairness id; empty for none.
        session: requests with the same session are turns of one conversation; empty for none.
        objective: name of the InferenceObjective; empty for none.
        blocks: id of each full block of the prompt. Equal ids mean equal tokens after an equal prefix. Empty if the
            prompt is unknown: it then shares no prefix with others.
        ttft_slo: target for the time to the first token, in seconds.
        tpot_slo: target for the time between two tokens, in seconds.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    model: str = ""
    tenant: str = ""
    session: str = ""
    objective: str = ""
    blocks: tuple[int, ...] = ()
    ttft_slo: float | None = None
    tpot_slo: float | None = None


class Trace(Protocol):
    """Requests in order of time; each iteration reads them from the start."""

    name: str
    block_tokens: int
    """Tokens of each block of `TraceRequest.blocks`."""

    def __iter__(self) -> Iterator[TraceRequest]: ...


@dataclass(slots=True)
class Problems:
    """Broken and skipped lines, or conversations, of one iteration."""

    file: str
    unit: str = "line"
    read: int = 0
    """Lines read, without blank lines and headers."""
    broken: int = 0
    named: list[str] = field(default_factory=list)
    """Numbers and reasons of the first five broken lines."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Valid lines without a request to replay, by reason."""

    def add(self, number: int, reason: object) -> None:
        """Count a broken line; raises TraceError if there are too many."""
        self.broken += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{self.unit} {number}: {printable(str(reason), _MOST_REASON)}")
        if self.read >= FEWEST_LINES:
            self.check()

    def check(self) -> None:
        """Raise TraceError if too many lines are broken."""
        if self.broken > MOST_BROKEN_SHARE * self.read:
            raise TraceError(
                f"{self.file}: {self.broken} of {self.read} {self.unit}s are broken, more than "
                f"{MOST_BROKEN_SHARE:.0%}: correct or remove them; {'; '.join(self.named)}"
            )


class FileTrace(ABC):
    """A trace in a file; each iteration reads it again, and raises TraceError if it cannot be used."""

    unit = "line"

    def __init__(self, path: Path, format: str, block_tokens: int) -> None:  # noqa: A002
        self.path = path
        self.name = shown(path)
        self.format = format
        self.block_tokens = block_tokens
        self.problems = Problems(self.name, self.unit)
        """Problems of the latest iteration so far."""
        self._on_disk: BinaryIO | None = None
        self._bytes_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the file on disk that the latest iteration has read."""
        if self._on_disk is not None and not self._on_disk.closed:
            self._bytes_read = self._on_disk.tell()
        return self._bytes_read

    def _follow(self, file: BinaryIO) -> None:
        self._on_disk, self._bytes_read = file, 0

    def __iter__(self) -> Iterator[TraceRequest]:
        self.problems = Problems(self.name, self.unit)
        return self._requests(self.problems)

    @abstractmethod
    def _requests(self, problems: Problems) -> Iterator[TraceRequest]:
        """Yield the requests, and count problems."""
