# SPDX-License-Identifier: Apache-2.0
"""Reads traces of all formats: streamed, in order of time, with a count of broken lines."""

from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from epp.framework.messages import hint_at, printable
from epp.lab.traces import conversations
from epp.lab.traces.conversations import ConversationTrace
from epp.lab.traces.file_trace import FileTrace, Problems
from epp.lab.traces.formats import (
    FORMATS,
    MOST_BLOCK_TOKENS,
    MOST_SECONDS,
    BrokenLineError,
    LineFormat,
    SkippedLineError,
    checked,
    columns_of,
)
from epp.lab.traces.lines import LONGEST_LINE, first_lines, numbered_lines, opened, shown
from epp.lab.traces.trace import TraceError, TraceRequest

SORTED_REQUESTS = 16_384
"""Requests that are sorted by time; one that is later than this in the file is a broken line."""
SORTED_BLOCKS = 2_000_000
"""Limit on the blocks of these requests together; fewer requests are sorted if theirs are more."""
MOST_RATE = 100_000.0
"""Requests a second."""
FORMAT_NAMES = (*FORMATS, conversations.NAME)


def open_trace(path: Path, *, format: str = "", rate: float | None = None, seed: int = 0) -> FileTrace:  # noqa: A002
    """Return the trace in a file; raises TraceError.

    Without `format`, the first lines tell it. `rate`, in requests a second, and `seed` make the times of a trace that
    has none.
    """
    if format and format not in FORMAT_NAMES:
        raise TraceError(f"there is no trace format {printable(format)!r}: {hint_at(format, FORMAT_NAMES)}")
    with opened(path) as file:
        head = first_lines(file)
    name = format or _recognised(head)
    if not name:
        reason = "is in no known format" if head else "is empty"
        raise TraceError(f"{shown(path)} {reason}: formats are {', '.join(FORMAT_NAMES)}")
    if name == conversations.NAME:
        if rate is None or not 0 < rate <= MOST_RATE:
            limit = f"above 0, at most {MOST_RATE:,.0f}"
            raise TraceError(f"{shown(path)} has no times: give --rate, in requests a second, {limit}")
        return ConversationTrace(path, rate=rate, seed=seed)
    if rate is not None:
        raise TraceError(f"{shown(path)} has times of its own: leave --rate out")
    try:
        form = FORMATS[name](head)
    except BrokenLineError as error:
        raise TraceError(f"{shown(path)} is not in the format {name}: {error}") from error
    if not 1 <= form.block_tokens <= MOST_BLOCK_TOKENS:
        raise TraceError(f"{shown(path)}: block_tokens is {form.block_tokens}: write 1 to {MOST_BLOCK_TOKENS:,}")
    return LineTrace(path, form)


class LineTrace(FileTrace):
    """A trace with one request a line."""

    def __init__(self, path: Path, form: LineFormat) -> None:
        super().__init__(path, form.name, form.block_tokens)
        self._form = form

    def _requests(self, problems: Problems) -> Iterator[TraceRequest]:
        return _ordered(self._read(problems), problems, starts_at_zero=self._form.starts_at_zero)

    def _read(self, problems: Problems) -> Iterator[tuple[int, TraceRequest]]:
        form = self._form
        with opened(self.path, self._follow) as file:
            for number, line in numbered_lines(file):
                if line in form.headers:
                    continue
                problems.read += 1
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


def _recognised(head: list[bytes]) -> str:
    if head and head[0].startswith(b"["):
        return conversations.NAME
    for line in head:
        keys, is_csv = _keys(line)
        for kind in FORMATS.values():
            if kind.recognises(keys, is_csv=is_csv):
                return kind.name
    return ""


def _keys(line: bytes) -> tuple[frozenset[str], bool]:
    """Return the keys of an object or the columns of a CSV header, and whether it is the latter."""
    if line.startswith(b"{"):
        try:
            return frozenset(msgspec.json.decode(line, type=dict[str, msgspec.Raw])), False
        except (ValueError, RecursionError):
            return frozenset(), False
    try:
        return frozenset(columns_of(line)), True
    except BrokenLineError:
        return frozenset(), True


def _ordered(
    requests: Iterator[tuple[int, TraceRequest]], problems: Problems, *, starts_at_zero: bool
) -> Iterator[TraceRequest]:
    """Yield requests by time from the start of the trace; a request too late in the file is a broken line."""
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
