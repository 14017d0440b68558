# SPDX-License-Identifier: Apache-2.0
"""Files that are followed: changes, requested reloads, and the last good version of each file."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from epp.framework.files import FileId, UnsettledVersion, doubt, next_wait, read_regular
from epp.framework.plugin_status import InputProblem

_CHECK_SECONDS = 0.8
"""Time between two checks. A new version takes effect within a second; the rest of it is for reading the version."""

_log = structlog.get_logger()
LIMIT_BYTES = 16 * 1024 * 1024
T = TypeVar("T")


class Reloads:
    """Requests to read files again, for example by SIGHUP. For one event loop; any thread may read `count`."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Event] = set()

    def request(self) -> None:
        """Make all followers of files read them again."""
        self.count += 1
        _log.info("reload of certificates and configuration requested", count=self.count)
        for event in self._waiting:
            event.set()

    async def each(self) -> AsyncIterator[None]:
        """Yield after each request, endlessly; several pending requests count once."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while True:
                await event.wait()
                event.clear()
                yield
        finally:
            self._waiting.discard(event)


RELOADS = Reloads()


async def changes() -> AsyncIterator[None]:
    """Yield whenever followed files must be read again, endlessly; the follower compares their content.

    Notifications of the file system are not used: network file systems, and links whose target changes in place, have
    none.
    """
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        yield


class FollowedFile(Generic[T]):
    """The content of files, read again by `renew` if one of them changed. Thread-safe.

    `read` raises OSError or ValueError for unusable content; so does the constructor.
    """

    def __init__(self, read: Callable[[], T], *paths: Path) -> None:
        self._read = read
        self._paths = paths
        self._lock = Lock()
        self._version = self._version_now()
        self.value = read()
        """Content of the last good version."""

    def renew(self, reject: Callable[[Exception], None]) -> bool:
        """Return whether the value changed; `reject` is called once for each unusable version."""
        with self._lock:
            version = self._version_now()
            if version == self._version:
                return False
            self._version = version
            try:
                value = self._read()
            except (OSError, ValueError) as error:
                reject(error)
                return False
            is_new, self.value = value != self.value, value
            return is_new

    def _version_now(self) -> list[tuple[int, ...] | None]:
        """Return the identity, time and size of each file; None for a missing file."""
        found: list[tuple[int, ...] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
        return found


class ParsedFile(NamedTuple, Generic[T]):
    """Valid content of one version of a file, and a sentence for each mistake in it."""

    value: T
    size: int
    """Number of entries, for messages."""
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Sentences for parts without effect that do no harm."""


Parse = Callable[[bytes, Path], ParsedFile[T]]
"""Raises ValueError for a version without any usable content."""


class LastGoodFile(msgspec.Struct, Generic[T], frozen=True):
    """The version in effect; `after` returns the next state."""

    path: Path
    setting: str
    """Name of the parameter with the file, for messages."""
    parse: Parse[T]
    limit_bytes: int = LIMIT_BYTES
    parsed: ParsedFile[T] | None = None
    """None before the first reading."""
    file: FileId | None = None
    """Identity of the file at the last reading."""
    problems: tuple[InputProblem, ...] = ()
    """Problems of the newest version: parts, or the whole, that are not in effect."""
    rejected: int = 0
    """Number of versions with mistakes since the start."""
    seen: bytes = b""
    """Digest of the newest content, or the read error."""
    waiting: UnsettledVersion | None = None
    """The newest content if it must be read a second time before it takes effect."""
    effective: bytes = b""
    """Digest of the content in effect."""

    @classmethod
    def first(cls, path: str, setting: str, parse: Parse[T], limit_bytes: int = LIMIT_BYTES) -> "LastGoodFile[T]":
        """Return the state after the first reading; raises ValueError for an unusable file."""
        state = cls(Path(path), setting, parse, limit_bytes).after(0.0)
        if state.parsed is None:
            raise ValueError(f"{setting}: {path!r}: {state.problems[0].reason}")
        return state

    def after(self, now: float) -> "LastGoodFile[T]":
        """Read the file and return the next state, or this one if nothing changed; `now` is monotonic.

        A version with mistakes takes effect, without the wrong parts, only if there is no good version. A version that
        may be half-written must be read a second time.
        """
        try:
            content = read_regular(self.path, self.limit_bytes)
        except OSError as error:
            return self._rejected(_reason(error), _reason(error).encode())
        seen = hashlib.blake2b(content.data).digest()
        if seen == self.seen and (self.waiting is None or not self.waiting.is_over(now)):
            return self
        following = replace(self, file=content.file)
        try:
            parsed = self._parsed(content.data)
        except ValueError as error:
            return following._rejected(str(error), seen)  # noqa: SLF001  the same class
        before = None if seen == self.effective else self.parsed
        if before is not None and (
            reason := doubt(in_place=content.file == self.file, entries=parsed.size, entries_before=before.size)
        ):
            waiting = self.waiting if seen == self.seen else next_wait(self.waiting, seen, now)
            if waiting is None or not waiting.is_over(now):
                return following._with_problem(reason, seen, waiting=waiting)  # noqa: SLF001  the same
        problems = tuple(InputProblem(str(self.path), "a part", problem) for problem in parsed.problems)
        rejected = self.rejected + bool(problems)
        return replace(
            following, parsed=parsed, problems=problems, rejected=rejected, seen=seen, waiting=None, effective=seen
        )

    def _parsed(self, content: bytes) -> ParsedFile[T]:
        """Return the parsed content; raises ValueError if it cannot take effect."""
        if len(content) > self.limit_bytes:
            raise ValueError(f"has more than {self.limit_bytes} bytes: leave entries out")
        try:
            parsed = self.parse(content, self.path)
        except UnicodeDecodeError as error:
            raise ValueError("it is not text in UTF-8: save it in that encoding") from error
        if parsed.problems and self.parsed is not None and not self.parsed.problems:
            raise ValueError("; ".join(parsed.problems))
        return parsed

    def _rejected(self, reason: str, seen: bytes) -> "LastGoodFile[T]":
        if seen == self.seen:
            return self
        return self._with_problem(reason, seen, rejected=self.rejected + 1, waiting=None)

    def _with_problem(self, reason: str, seen: bytes, **changed: object) -> "LastGoodFile[T]":
        problem = InputProblem(str(self.path), reason=reason, kept=0 if self.parsed is None else self.parsed.size)
        return replace(self, problems=(problem,), seen=seen, **changed)


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"cannot be read: {reason}" + ("" if ":" in reason else ": correct the path, or restore the file")
