# SPDX-License-Identifier: Apache-2.0
"""Formats of traces with one request a line: each turns a line into a request."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import msgspec

from epp.lab.traces.trace import Trace, TraceRequest

MOST_TOKENS = 10_000_000
"""Tokens of a prompt, or of an output."""
MOST_SECONDS = 366 * 86400.0
"""Time span of a trace, and longest latency objective."""
MOST_NAME = 256
"""Characters of a name."""
MOST_BLOCK_TOKENS = 65_536
BLOCK_TOKENS = 64
"""Tokens of a block where a file does not say it."""
_HEADER = re.compile(rb'(?:\{\s*"block_tokens"\s*:|#\s*block_tokens\s*=)\s*(\d{1,9})\s*\}?')


class BrokenLineError(Exception):
    """The line is no request of its format; the message is the reason."""


class SkippedLineError(Exception):
    """The line is valid, and nothing to replay; the message is the reason."""


class LineFormat(ABC):
    """A format with one request a line."""

    name: str
    description: str
    starts_at_zero = False
    """Whether times count from the start of the trace; otherwise, the first request is the start."""

    def __init__(self, head: Sequence[bytes]) -> None:
        """Take the first lines of the file."""
        header = _HEADER.fullmatch(head[0]) if head else None
        self.block_tokens = BLOCK_TOKENS if header is None else int(header[1])
        self.headers = frozenset[bytes]() if header is None else frozenset(head[:1])
        """Lines that are no requests."""

    @classmethod
    @abstractmethod
    def recognises(cls, keys: frozenset[str], *, is_csv: bool) -> bool:
        """Return whether a line has the keys of an object, or the columns of a CSV header, of this format."""

    @abstractmethod
    def request(self, line: bytes) -> TraceRequest:
        """Return the request in a line; raises BrokenLineError or SkippedLineError."""


class OwnLines(LineFormat):
    """Objects with the fields of TraceRequest; the first line may be `{"block_tokens": 64}`."""

    name = "jsonl"
    description = "JSON lines of this program"
    starts_at_zero = True

    def __init__(self, head: Sequence[bytes]) -> None:
        super().__init__(head)
        self._decoder = msgspec.json.Decoder(TraceRequest)

    @classmethod
    def recognises(cls, keys: frozenset[str], *, is_csv: bool) -> bool:
        return not is_csv and (keys == {"block_tokens"} or keys >= {"at", "prompt_tokens", "output_tokens"})

    def request(self, line: bytes) -> TraceRequest:
        try:
            return self._decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise BrokenLineError(str(error)) from error


def own_lines(trace: Trace | Iterable[TraceRequest], block_tokens: int) -> Iterator[bytes]:
    """Yield a trace as JSON lines of this program."""
    yield b'{"block_tokens":%d}\n' % block_tokens
    encode = msgspec.json.Encoder().encode
    for request in trace:
        yield encode(request) + b"\n"


def checked(request: TraceRequest, block_tokens: int) -> TraceRequest:
    """Return the request; raises BrokenLineError for values out of limits."""
    for name, tokens in (("prompt_tokens", request.prompt_tokens), ("output_tokens", request.output_tokens)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise BrokenLineError(f"{name} is {_shown(tokens)}, and not 1 to {MOST_TOKENS:,}")
    if len(request.blocks) > request.prompt_tokens // block_tokens:
        raise BrokenLineError(
            f"{len(request.blocks)} blocks of {block_tokens} tokens do not fit in {request.prompt_tokens} prompt tokens"
        )
    for name, seconds in (("ttft_slo", request.ttft_slo), ("tpot_slo", request.tpot_slo)):
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise BrokenLineError(f"{name} is {seconds:g}, and not above 0 seconds and below a year")
    for name in ("model", "tenant", "session", "objective"):
        if len(getattr(request, name)) > MOST_NAME:
            raise BrokenLineError(f"{name} has more than {MOST_NAME} characters")
    if not -inf < request.at < inf:
        raise BrokenLineError("the time is not a number")
    return request


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**12 else "a number of more than 12 digits"


FORMATS: Mapping[str, type[LineFormat]] = {one.name: one for one in (OwnLines,)}
"""Line formats by name."""
