# SPDX-License-Identifier: Apache-2.0
"""The last good version of a file, from one reading to the next."""

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Generic, NamedTuple, TypeVar

import msgspec

from epp.framework.inputs import InputProblem

LIMIT_BYTES = 16 * 1024 * 1024

T = TypeVar("T")


class Parsed(NamedTuple, Generic[T]):
    """What a version of the file says, without its mistakes, and a sentence on each of them."""

    value: T
    size: int
    """Number of its entries, for messages."""
    problems: tuple[str, ...] = ()


Parse = Callable[[bytes, Path], Parsed[T]]
"""Raises ValueError for a version that says nothing."""


class LastGoodFile(msgspec.Struct, Generic[T], frozen=True):
    """The version in effect; `after` returns the next state."""

    path: Path
    setting: str
    """Parameter that names the file, for messages."""
    parse: Parse[T]
    parsed: Parsed[T] | None = None
    """None before the first reading."""
    problems: tuple[InputProblem, ...] = ()
    """Parts of the newest version that are not in effect, or the whole of it."""
    rejected: int = 0
    """Versions with mistakes since the start."""
    seen: bytes = b""
    """Digest of the newest content, or the read error."""

    @classmethod
    def first(cls, path: str, setting: str, parse: Parse[T]) -> "LastGoodFile[T]":
        """Return the state after the first reading; raises ValueError for a file that says nothing."""
        state = cls(Path(path), setting, parse).after()
        if state.parsed is None:
            raise ValueError(f"{setting}: {path!r}: {state.problems[0].reason}")
        return state

    def after(self) -> "LastGoodFile[T]":
        """Return the state after a reading of the file; this one if nothing changed.

        A version with mistakes takes effect, without them, only if there is no good one.
        """
        try:
            content = _content(self.path)
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}: correct the path, or restore the file"
            return self._rejected(reason, reason.encode())
        seen = hashlib.blake2b(content).digest()
        if seen == self.seen:
            return self
        if len(content) > LIMIT_BYTES:
            return self._rejected(f"has more than {LIMIT_BYTES} bytes: leave entries out", seen)
        try:
            parsed = self.parse(content, self.path)
        except ValueError as error:
            is_text = not isinstance(error, UnicodeDecodeError)
            return self._rejected(str(error) if is_text else "it is no text in UTF-8: save it as that", seen)
        if parsed.problems and self.parsed is not None and not self.parsed.problems:
            return self._rejected("; ".join(parsed.problems), seen)
        problems = tuple(InputProblem(str(self.path), "a part", problem) for problem in parsed.problems)
        return msgspec.structs.replace(
            self, parsed=parsed, problems=problems, rejected=self.rejected + bool(problems), seen=seen
        )

    def _rejected(self, reason: str, seen: bytes) -> "LastGoodFile[T]":
        if seen == self.seen:
            return self
        problem = InputProblem(str(self.path), reason=reason, kept=0 if self.parsed is None else self.parsed.size)
        return msgspec.structs.replace(self, problems=(problem,), rejected=self.rejected + 1, seen=seen)


def _content(path: Path) -> bytes:
    """Return the content, or one byte more than the limit; raises OSError, also for a pipe, which would block."""
    try:
        is_file = S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        is_file = S_ISREG(path.stat().st_mode)  # once more: symbolic links in the path may have just been swapped
    if not is_file:
        raise OSError(errno.EINVAL, "it is no regular file")
    with path.open("rb") as file:
        return file.read(LIMIT_BYTES + 1)
