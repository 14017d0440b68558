# SPDX-License-Identifier: Apache-2.0
"""Reads traces of all formats: streamed, in order of time, with a count of broken lines."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

import msgspec

from epp.framework.messages import hint_at, printable
from epp.lab.traces.formats import (
    FORMATS,
    MOST_BLOCK_TOKENS,
    MOST_SECONDS,
    BrokenLineError,
    LineFormat,
    SkippedLineError,
    checked,
)
from epp.lab.traces.lines import LONGEST_LINE, numbered_lines, opened, shown
from epp.lab.traces.trace import TraceError, TraceRequest

MOST_BROKEN_SHARE = 0.01
"""A trace with more broken lines is refused."""
FEWEST_LINES = 100
"""Lines that are read before a trace is refused for its broken lines, unless it ends before."""
SORTED_REQUESTS = 16_384
"""Requests that are sorted by time; one that is later than this in the file is a broken line."""
SORTED_BLOCKS = 2_000_000
"""Limit on the blocks of these requests together; fewer requests are sorted if theirs are more."""
_NAMED = 5
_MOST_REASON = 200
_HEAD_LINES = 20


@dataclass(slots=True)
class Problems:
    """The broken and skipped lines of one reading."""

    file: str
    lines: int = 0
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
            self.named.append(f"line {number}: {printable(str(reason), _MOST_REASON)}")
        if self.lines >= FEWEST_LINES:
            self.check()

    def check(self) -> None:
        """Raise TraceError if too many lines are broken."""
        if self.broken > MOST_BROKEN_SHARE * self.lines:
            raise TraceError(
                f"{self.file}: {self.broken} of {self.lines} lines are broken, more than "
                f"{MOST_BROKEN_SHARE:.0%}: correct or remove them; {'; '.join(self.named)}"
            )


class FileTrace:
    """A trace in a file; each iteration reads it again and raises TraceError for a file that cannot be used."""

    def __init__(self, path: Path, form: LineFormat) -> None:
        self.name = shown(path)
        self.block_tokens = form.block_tokens
        self.format = form.name
        self.problems = Problems(self.name)
        """Those of the latest iteration, as far as it has come."""
        self._path = path
        self._form = form

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests in order of time."""
        self.problems = Problems(self.name)
        return _ordered(self._read(self.problems), self.problems, starts_at_zero=self._form.starts_at_zero)

    def _read(self, problems: Problems) -> Iterator[tuple[int, TraceRequest]]:
        form = self._form
        with opened(self._path) as file:
            for number, line in numbered_lines(file):
                if line in form.headers:
                    continue
                problems.lines += 1
                try:
                    if line is None:
                        raise BrokenLineError(f"more than {LONGEST_LINE >> 20} MiB")  # noqa: TRY301  counted below
                    request = checked(form.request(line), form.block_tokens)
                except SkippedLineError as reason:
                    problems.skipped[str(reason)] += 1
                except BrokenLineError as reason:
                    problems.add(number, reason)
                else:
                    yield number, request


def open_trace(path: Path, *, format: str = "") -> FileTrace:  # noqa: A002  the name of the flag
    """Return the trace in a file; raises TraceError.

    Without a format, the first lines tell it.
    """
    with opened(path) as file:
        head = [line for _, line in islice(numbered_lines(file), _HEAD_LINES) if line is not None]
    if format and format not in FORMATS:
        raise TraceError(f"there is no trace format {printable(format)!r}: {hint_at(format, FORMATS)}")
    kind = FORMATS[format] if format else _recognised(head)
    if kind is None:
        reason = "is empty" if not head else "is in no known format"
        raise TraceError(f"{shown(path)} {reason}: formats are {', '.join(FORMATS)}")
    form = kind(head)
    if not 1 <= form.block_tokens <= MOST_BLOCK_TOKENS:
        raise TraceError(f"{shown(path)}: block_tokens is {form.block_tokens}: write 1 to {MOST_BLOCK_TOKENS:,}")
    return FileTrace(path, form)


def _recognised(head: list[bytes]) -> type[LineFormat] | None:
    for line in head:
        keys, is_csv = _keys(line)
        for kind in FORMATS.values():
            if kind.recognises(keys, is_csv=is_csv):
                return kind
    return None


def _keys(line: bytes) -> tuple[frozenset[str], bool]:
    """Return the keys of an object or the columns of a CSV header, and whether it is the latter."""
    if line.startswith(b"{"):
        try:
            return frozenset(msgspec.json.decode(line, type=dict[str, msgspec.Raw])), False
        except (ValueError, RecursionError):
            return frozenset(), False
    return frozenset(name.strip().strip('"') for name in line.decode(errors="replace").split(",")), True


def _ordered(
    requests: Iterator[tuple[int, TraceRequest]], problems: Problems, *, starts_at_zero: bool
) -> Iterator[TraceRequest]:
    """Yield requests by time from the start of the trace; those that come too late in the file are broken lines."""
    heap: list[tuple[float, int, TraceRequest]] = []
    blocks = 0
    start, latest = (0.0, 0.0) if starts_at_zero else (None, None)

    def timed(request: TraceRequest) -> TraceRequest:
        return request if not start else msgspec.structs.replace(request, at=round(request.at - start, 6))

    for number, request in requests:
        if latest is not None and request.at < latest:
            late = (
                "the time is before the start" if request.at < 0 else "the time is too far before that of lines above"
            )
            problems.add(number, late)
            continue
        first = start if start is not None else heap[0][0] if heap else request.at
        if request.at - first > MOST_SECONDS:
            problems.add(number, f"the time is more than {MOST_SECONDS / 86400:.0f} days after the start")
            continue
        heappush(heap, (request.at, number, request))
        blocks += len(request.blocks)
        while len(heap) > SORTED_REQUESTS or (blocks > SORTED_BLOCKS and heap):
            latest, _, earliest = heappop(heap)
            start = latest if start is None else start
            blocks -= len(earliest.blocks)
            yield timed(earliest)
    problems.check()
    while heap:
        latest, _, request = heappop(heap)
        start = latest if start is None else start
        yield timed(request)
