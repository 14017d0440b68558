# SPDX-License-Identifier: Apache-2.0
"""A trace in a file, and the count of its broken lines."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from epp.framework.messages import printable
from epp.lab.traces.lines import shown
from epp.lab.traces.trace import TraceError, TraceRequest

MOST_BROKEN_SHARE = 0.01
"""A trace with more broken lines is refused."""
FEWEST_LINES = 100
"""Lines that are read before a trace is refused for its broken lines, unless it ends before."""
_NAMED = 5
_MOST_REASON = 200


@dataclass(slots=True)
class Problems:
    """The broken and skipped lines of one reading, or its conversations."""

    file: str
    unit: str = "line"
    read: int = 0
    """Lines read, without blank lines and headers."""
    broken: int = 0
    named: list[str] = field(default_factory=list)
    """Number and reason of the first five broken lines."""
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

    def __init__(self, path: Path, format: str, block_tokens: int) -> None:  # noqa: A002  the name of the flag
        self.path = path
        self.name = shown(path)
        self.format = format
        self.block_tokens = block_tokens
        self.problems = Problems(self.name, self.unit)
        """Those of the latest iteration, as far as it has come."""
        self._on_disk: BinaryIO | None = None
        self._bytes_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes that the latest iteration has read, of the file as it is on disk."""
        if self._on_disk is not None and not self._on_disk.closed:
            self._bytes_read = self._on_disk.tell()
        return self._bytes_read

    def _follow(self, file: BinaryIO) -> None:
        self._on_disk, self._bytes_read = file, 0

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests in order of time."""
        self.problems = Problems(self.name, self.unit)
        return self._requests(self.problems)

    @abstractmethod
    def _requests(self, problems: Problems) -> Iterator[TraceRequest]:
        """Yield the requests, and count problems."""
