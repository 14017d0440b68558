# SPDX-License-Identifier: Apache-2.0
"""Opening of trace files: detection of the format, traces of lines and of conversations."""

import json
import re
from array import array
from codecs import getincrementaldecoder
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import BinaryIO, NamedTuple

import msgspec

from epp.framework.messages import printable
from epp.framework.request import BYTES_PER_TOKEN
from epp.framework.suggestions import hint_at
from epp.lab.traces.formats import (
    BLOCK_TOKENS,
    FORMATS,
    MOST_BLOCK_TOKENS,
    MOST_SECONDS,
    BrokenLineError,
    LineFormat,
    SkippedLineError,
    checked,
    columns_of,
)
from epp.lab.traces.trace import (
    LONGEST_LINE,
    FileTrace,
    Problems,
    TraceError,
    TraceRequest,
    first_lines,
    numbered_lines,
    opened,
    shown,
)
from epp.plugins.prefix_cache.producer import block_hashes

SHAREGPT = "sharegpt"
SECONDS_BETWEEN_TURNS = 30.0
"""Mean time between the turns of a conversation."""
MOST_OPEN = 1000
"""Maximum number of open conversations."""
_MOST_MESSAGES = 2000
_READ_BYTES = 1024 * 1024
_ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "model", "bard", "bing"})
_BETWEEN = re.compile(r"[\s,]*")
_BEGIN = re.compile(r"[\s,]*\[")
SORTED_REQUESTS = 16_384
"""Number of requests buffered to sort them by time; a request that is further out of order is a broken line."""
SORTED_BLOCKS = 2_000_000
"""Maximum total blocks of the buffered requests; fewer requests are buffered if they have more."""
MOST_RATE = 100_000.0
"""Maximum requests per second."""
FORMAT_NAMES = (*FORMATS, SHAREGPT)


class _Conversation(NamedTuple):
    session: str
    turns: list[tuple[int, int]]
    """Bytes of the prompt and tokens of the answer of each turn, last turn first."""
    blocks: "array[int]"
    """Blocks of the longest prompt; the other prompts are prefixes of it."""


class ConversationTrace(FileTrace):
    """Turns of conversations at random times: a Poisson process of `rate` requests per second.

    Each request is the next turn of an open conversation; its prompt is the whole conversation before.
    """

    unit = "conversation"

    def __init__(self, path: Path, *, rate: float, seed: int) -> None:
        super().__init__(path, SHAREGPT, BLOCK_TOKENS)
        self._rate = rate
        self._seed = seed

    def _requests(self, problems: Problems) -> Iterator[TraceRequest]:
        random = Random(self._seed)  # noqa: S311  seeded
        most = min(max(round(self._rate * SECONDS_BETWEEN_TURNS), 1), MOST_OPEN)
        at = 0.0
        with opened(self.path, self._follow) as file:
            waiting = _conversations(file, problems)
            are_open: list[_Conversation] = []
            while True:
                while len(are_open) < most and (new := next(waiting, None)) is not None:
                    are_open.append(new)
                if not are_open:
                    break
                index = random.randrange(len(are_open))
                conversation = are_open[index]
                prompt_bytes, output_tokens = conversation.turns.pop()
                if not conversation.turns:
                    are_open[index] = are_open[-1]
                    are_open.pop()
                yield TraceRequest(
                    at=round(at, 6),
                    prompt_tokens=-(-prompt_bytes // BYTES_PER_TOKEN),
                    output_tokens=output_tokens,
                    session=conversation.session,
                    blocks=tuple(conversation.blocks[: prompt_bytes // (BLOCK_TOKENS * BYTES_PER_TOKEN)]),
                )
                at += random.expovariate(self._rate)
        problems.check()


def _conversations(file: BinaryIO, problems: Problems) -> Iterator[_Conversation]:
    for number, element in enumerate(_elements(file, problems.file), 1):
        problems.read += 1
        try:
            yield _conversation(element, str(number))
        except SkippedLineError as reason:
            problems.skipped[str(reason)] += 1
        except BrokenLineError as reason:
            problems.add(number, reason)


def _conversation(element: object, session: str) -> _Conversation:
    messages = element.get("conversations") if isinstance(element, dict) else None
    if not isinstance(messages, list):
        raise BrokenLineError('"conversations" is missing or not a list')
    if len(messages) > _MOST_MESSAGES:
        raise BrokenLineError(f"more than {_MOST_MESSAGES} messages")
    history = bytearray()
    turns: list[tuple[int, int]] = []
    for message in messages:
        speaker, text = (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise BrokenLineError('a message without "from" and "value"')
        data = text.encode(errors="surrogatepass")
        if speaker in _ANSWERS and history and data:
            turns.append((len(history), -(-len(data) // BYTES_PER_TOKEN)))
        history += data
    if not turns:
        raise SkippedLineError("without an answer")
    longest = turns[-1][0] // (BLOCK_TOKENS * BYTES_PER_TOKEN)
    hashes = block_hashes(bytes(history), seed=0, block_tokens=BLOCK_TOKENS, max_blocks=longest)
    return _Conversation(session, turns[::-1], hashes)


def _elements(file: BinaryIO, name: str) -> Iterator[object]:
    """Yield the elements of a JSON array; raises TraceError if the text is not one."""
    decode = getincrementaldecoder("utf-8-sig")(errors="replace").decode
    read = json.JSONDecoder().raw_decode
    text, number = decode(file.read(_READ_BYTES)), 0
    begin = _BEGIN.match(text)
    if begin is None:
        raise TraceError(f"{name} is not a JSON array of conversations")
    position = begin.end()
    while True:
        between = _BETWEEN.match(text, position)
        position = position if between is None else between.end()
        if text.startswith("]", position):
            return
        try:
            element, position = read(text, position)
        except (ValueError, RecursionError) as error:
            left = len(text) - position
            more = file.read(max(_READ_BYTES, left)) if left <= LONGEST_LINE else b""
            if not more:
                reason = f"not valid JSON of at most {LONGEST_LINE >> 20} MiB, or the file is truncated"
                raise TraceError(f"{name}: conversation {number + 1} is {reason}: correct or remove it") from error
            text, position = text[position:] + decode(more), 0
        else:
            number += 1
            yield element


def open_trace(path: Path, *, format: str = "", rate: float | None = None, seed: int = 0) -> FileTrace:  # noqa: A002
    """Return the trace in a file; raises TraceError.

    Without `format`, it is detected from the first lines. `rate`, in requests per second, and `seed` generate the times
    of a trace without times.
    """
    if format and format not in FORMAT_NAMES:
        raise TraceError(f"there is no trace format {printable(format)!r}: {hint_at(format, FORMAT_NAMES)}")
    with opened(path) as file:
        head = first_lines(file)
    name = format or _recognised(head)
    if not name:
        reason = "is not in a known format" if head else "is empty"
        raise TraceError(f"{shown(path)} {reason}: formats are {', '.join(FORMAT_NAMES)}")
    if name == SHAREGPT:
        if rate is None or not 0 < rate <= MOST_RATE:
            limit = f"above 0, at most {MOST_RATE:,.0f}"
            raise TraceError(f"{shown(path)} has no times: give --rate, in requests per second, {limit}")
        return ConversationTrace(path, rate=rate, seed=seed)
    if rate is not None:
        raise TraceError(f"{shown(path)} has its own times: leave --rate out")
    try:
        form = FORMATS[name](head)
    except BrokenLineError as error:
        raise TraceError(f"{shown(path)} is not in the format {name}: {error}") from error
    if not 1 <= form.block_tokens <= MOST_BLOCK_TOKENS:
        raise TraceError(f"{shown(path)}: block_tokens is {form.block_tokens}: write 1 to {MOST_BLOCK_TOKENS:,}")
    return LineTrace(path, form)


class LineTrace(FileTrace):
    """A trace with one request per line."""

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
                        raise BrokenLineError(f"more than {LONGEST_LINE >> 20} MiB")  # noqa: TRY301
                    request = checked(form.request(line), form.block_tokens)
                except SkippedLineError as reason:
                    problems.skipped[str(reason)] += 1
                except BrokenLineError as reason:
                    problems.add(number, reason)
                else:
                    yield number, request


def _recognised(head: list[bytes]) -> str:
    if head and head[0].startswith(b"["):
        return SHAREGPT
    for line in head:
        keys, is_csv = _keys(line)
        for kind in FORMATS.values():
            if kind.recognises(keys, is_csv=is_csv):
                return kind.name
    return ""


def _keys(line: bytes) -> tuple[frozenset[str], bool]:
    """Return the keys of an object or the columns of a CSV header, and whether the line is CSV."""
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
            reason = "before the start" if request.at < 0 else "too far before those of earlier lines"
            problems.add(number, f"the time is {reason}")
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
