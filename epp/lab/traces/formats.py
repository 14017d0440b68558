# SPDX-License-Identifier: Apache-2.0
"""Trace formats with one request per line: parsers of a line."""

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import TypeVar

import msgspec

from epp.explain.record import VERSION, DecisionRecord
from epp.framework.messages import printable
from epp.framework.request import DEFAULT_FLOW
from epp.framework.suggestions import hint_at
from epp.lab.traces.trace import TraceRequest

MOST_TOKENS = 10_000_000
"""Maximum tokens of a prompt or of an output."""
MOST_SECONDS = 366 * 86400.0
"""Maximum time span of a trace, and longest latency target."""
MOST_NAME = 256
"""Maximum characters of a name."""
MOST_BLOCK_TOKENS = 65_536
MOST_BLOCK_ID = 2**64 - 1
BLOCK_TOKENS = 64
"""Tokens of a block if a file does not specify them."""
T = TypeVar("T")
_HEADER = re.compile(rb'(?:\{\s*"block_tokens"\s*:|#\s*block_tokens\s*=)\s*(\d{1,9})\s*\}?')


class BrokenLineError(Exception):
    """The line is not a request in this format; the message is the reason."""


class SkippedLineError(Exception):
    """The line is valid, but there is nothing to replay; the message is the reason."""


class LineFormat(ABC):
    """A format with one request per line."""

    name: str
    is_csv = False
    required: frozenset[str]
    """Keys of the object in a line, or columns of the CSV header."""
    starts_at_zero = False
    """Whether times count from the start of the trace; otherwise, the first request is the start."""

    def __init__(self, head: Sequence[bytes]) -> None:
        """Take the first lines of the file; raises BrokenLineError if they are in another format."""
        found = [match for line in head if (match := _HEADER.fullmatch(line))]
        self.block_tokens = int(found[0][1]) if found else BLOCK_TOKENS
        self.headers = frozenset(match[0] for match in found) | {line for line in head if line.startswith(b"#")}
        """Lines that are not requests: headers, and comments among the first lines."""

    @classmethod
    def recognises(cls, keys: frozenset[str], *, is_csv: bool) -> bool:
        """Return whether a line has the keys of an object, or the columns of a CSV header, of this format."""
        return is_csv == cls.is_csv and keys >= cls.required

    @abstractmethod
    def request(self, line: bytes) -> TraceRequest:
        """Return the request in a line; raises BrokenLineError or SkippedLineError."""


class OwnLines(LineFormat):
    """Objects with the fields of TraceRequest; the first line may be `{"block_tokens": 64}`."""

    name = "jsonl"
    required = frozenset({"at", "prompt_tokens", "output_tokens"})
    starts_at_zero = True
    _decoder = msgspec.json.Decoder(TraceRequest)

    @classmethod
    def recognises(cls, keys: frozenset[str], *, is_csv: bool) -> bool:
        return super().recognises(keys, is_csv=is_csv) or (not is_csv and keys == {"block_tokens"})

    def request(self, line: bytes) -> TraceRequest:
        return _decoded(self._decoder, line)


class _MooncakeRequest(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class Mooncake(LineFormat):
    """JSON lines of the Mooncake traces: milliseconds, and an id per block of 512 tokens, the last one partial."""

    name = "mooncake"
    required = frozenset({"timestamp", "input_length", "output_length"})
    _decoder = msgspec.json.Decoder(_MooncakeRequest)

    def __init__(self, head: Sequence[bytes]) -> None:
        super().__init__(head)
        self.block_tokens = 512

    def request(self, line: bytes) -> TraceRequest:
        found = _decoded(self._decoder, line)
        return TraceRequest(
            at=found.timestamp / 1000,
            prompt_tokens=found.input_length,
            output_tokens=_answered(found.output_length),
            blocks=found.hash_ids[: max(found.input_length, 0) // self.block_tokens],
        )


class Decisions(LineFormat):
    """Records of `--decision-file`: requests that ended with a known number of output tokens."""

    name = "decisions"
    required = frozenset({"version", "id", "kind", "at", "asked"})
    _decoder = msgspec.json.Decoder(DecisionRecord)

    def request(self, line: bytes) -> TraceRequest:
        record = _decoded(self._decoder, line)
        if record.version > VERSION:
            raise BrokenLineError(f"version {_shown(record.version)} is newer than this program supports")
        asked, ending = record.asked, record.ending
        if record.kind != "routed" or ending is None:
            raise SkippedLineError("not routed")
        if ending.completion_tokens is None:
            raise SkippedLineError("without token counts")
        prompt_tokens = asked.prompt_tokens if ending.prompt_tokens is None else ending.prompt_tokens
        prefix, tenant = record.prefix, asked.fairness_id
        if prefix is not None and prefix.block_tokens != self.block_tokens:
            raise BrokenLineError(f"its blocks do not have {self.block_tokens} tokens")
        return TraceRequest(
            at=_seconds(record.at) - record.timings.decision,
            prompt_tokens=prompt_tokens,
            output_tokens=_answered(ending.completion_tokens),
            model=asked.target_model or asked.model,
            tenant="" if tenant == DEFAULT_FLOW else tenant,
            session="" if prefix is None else prefix.session,
            objective=asked.objective,
            blocks=() if prefix is None else prefix.blocks[: max(prompt_tokens, 0) // self.block_tokens],
            ttft_slo=_target(asked.ttft_slo),
            tpot_slo=_target(asked.tpot_slo),
        )


class CsvFormat(LineFormat):
    """A CSV file with a header and one request per line."""

    is_csv = True

    def __init__(self, head: Sequence[bytes]) -> None:
        super().__init__(head)
        header = next((line for line in head if line not in self.headers), b"")
        self.columns = columns_of(header)
        for column in sorted(self.required.difference(self.columns)):
            raise BrokenLineError(f"no column {column}")
        self.headers |= {header}

    def cells(self, line: bytes) -> dict[str, str]:
        """Return the cells of a line that are not empty, by column; raises BrokenLineError."""
        cells = columns_of(line)
        if len(cells) != len(self.columns):
            raise BrokenLineError(f"not {len(self.columns)} cells")
        return {column: cell for column, cell in zip(self.columns, cells, strict=True) if cell}


class OwnCsv(CsvFormat):
    """Columns with the names of the fields of TraceRequest; blocks are separated by spaces."""

    name = "csv"
    starts_at_zero = True
    required = OwnLines.required

    def __init__(self, head: Sequence[bytes]) -> None:
        super().__init__(head)
        for column in sorted(set(self.columns).difference(TraceRequest.__struct_fields__)):
            hint = hint_at(column, TraceRequest.__struct_fields__)
            raise BrokenLineError(f"there is no field {printable(column)!r}; {hint}")

    def request(self, line: bytes) -> TraceRequest:
        cells: dict[str, object] = {**self.cells(line)}
        cells["blocks"] = str(cells.get("blocks", "")).split()
        try:
            return msgspec.convert(cells, TraceRequest, strict=False)
        except msgspec.ValidationError as error:
            raise BrokenLineError(str(error)) from error


class Azure(CsvFormat):
    """The Azure LLM inference traces of 2023 and 2024."""

    name = "azure"
    required = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})

    def request(self, line: bytes) -> TraceRequest:
        cells = self.cells(line)
        return TraceRequest(
            at=_seconds(cells.get("TIMESTAMP", "")),
            prompt_tokens=_count(cells, "ContextTokens"),
            output_tokens=_answered(_count(cells, "GeneratedTokens")),
        )


class BurstGpt(CsvFormat):
    """The BurstGPT traces; failed requests have no response tokens. Session ids are in the files since version 2."""

    name = "burstgpt"
    required = frozenset({"Timestamp", "Model", "Request tokens", "Response tokens"})

    def request(self, line: bytes) -> TraceRequest:
        cells = self.cells(line)
        output_tokens = _answered(_count(cells, "Response tokens"))
        try:
            at = float(cells.get("Timestamp", ""))
        except ValueError as error:
            raise BrokenLineError("Timestamp is not a number") from error
        return TraceRequest(
            at=at,
            prompt_tokens=_count(cells, "Request tokens"),
            output_tokens=output_tokens,
            model=cells.get("Model", ""),
            session=cells.get("Session ID", ""),
        )


FORMATS: Mapping[str, type[LineFormat]] = {
    one.name: one for one in (OwnLines, OwnCsv, Mooncake, Azure, BurstGpt, Decisions)
}
"""Formats with one request per line, by name."""


def own_lines(requests: Iterable[TraceRequest], block_tokens: int) -> Iterator[bytes]:
    """Yield requests as lines of the format `jsonl`."""
    yield b'{"block_tokens":%d}\n' % block_tokens
    encode = msgspec.json.Encoder().encode
    for request in requests:
        yield encode(request) + b"\n"


def checked(request: TraceRequest, block_tokens: int) -> TraceRequest:
    """Return the request; raises BrokenLineError for values out of limits."""
    for name, tokens in (("prompt_tokens", request.prompt_tokens), ("output_tokens", request.output_tokens)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise BrokenLineError(f"{name} must be 1 to {MOST_TOKENS:,}, not {_shown(tokens)}")
    if len(request.blocks) > request.prompt_tokens // block_tokens:
        raise BrokenLineError(
            f"{len(request.blocks)} blocks of {block_tokens} tokens do not fit in {request.prompt_tokens} prompt tokens"
        )
    if request.blocks and not 0 <= min(request.blocks) <= max(request.blocks) <= MOST_BLOCK_ID:
        raise BrokenLineError("a block id is negative, or has more than 64 bits")
    for name, seconds in (("ttft_slo", request.ttft_slo), ("tpot_slo", request.tpot_slo)):
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise BrokenLineError(f"{name} must be above 0 seconds and below a year, not {seconds:g}")
    for name in ("model", "tenant", "session", "objective"):
        if len(getattr(request, name)) > MOST_NAME:
            raise BrokenLineError(f"{name} has more than {MOST_NAME} characters")
    if not -inf < request.at < inf:
        raise BrokenLineError("the time is not a number")
    return request


def columns_of(line: bytes) -> list[str]:
    """Return the cells of a line of CSV; raises BrokenLineError."""
    try:
        text = line.decode()
        cells = next(csv.reader([text])) if '"' in text else text.split(",")
    except (ValueError, csv.Error) as error:
        raise BrokenLineError(f"not CSV: {error}") from error
    return [cell.strip() for cell in cells]


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError) as error:
        raise BrokenLineError(str(error)) from error


def _target(seconds: float | None) -> float | None:
    """Return the target of a client; None if it is out of limits."""
    return seconds if seconds is not None and 0 < seconds <= MOST_SECONDS else None


def _answered(output_tokens: int) -> int:
    if output_tokens == 0:
        raise SkippedLineError("without output tokens")
    return output_tokens


def _count(cells: Mapping[str, str], column: str) -> int:
    text = cells.get(column, "")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise BrokenLineError(f"{column} is not a whole number of tokens")
    return int(text)


def _seconds(text: str) -> float:
    """Return a time stamp in seconds since 1970; without a time zone, it is in UTC. Raises BrokenLineError."""
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise BrokenLineError("the time stamp is not like 2024-05-10 00:00:00.009930+00:00") from error


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**12 else "a number of more than 12 digits"
