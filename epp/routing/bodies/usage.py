# SPDX-License-Identifier: Apache-2.0
"""Token counts in JSON and gRPC responses, and whether a response has any content."""

import re
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from epp.framework.protobuf import FieldReader
from epp.framework.request import GrpcResponse, Usage
from epp.routing.bodies.members import MemberScanner, Wanted

_MAX_LINE_BYTES = 1024 * 1024
_MAX_BODY_BYTES = 8 * 1024
_MAX_VALUE_BYTES = 64 * 1024
MAX_COUNT = 10**15
_MAX_COUNT_DIGITS = 15
_TOTALS = Wanted.named("usage", "meta_info")
_COUNTS = re.compile(rb'(?:usage|meta_info)"[ \t]*:[ \t]*\{')
"""Matches a line with counts, but not `"usage":null`, which may be in every event of a stream."""
_ENDED = frozenset({b'"response.completed"', b'"response.incomplete"', b'"response.failed"'})
_STARTED = b'"message_start"'
_NULL = msgspec.Raw(b"null")
_MAX_HEAD_BYTES = 64 * 1024
_ERROR = rb'\s*\{\s*"(?:error"\s*:\s*[^n\s]|(?:object|type)"\s*:\s*"error")'
_CONTENT_EVENT = re.compile(rb"^data:[ \t]*(?!\[DONE\]|" + _ERROR + rb")\S.*\n", re.MULTILINE)
_CONTENT_BODY = re.compile(rb"(?!" + _ERROR + rb")")
_BODY_HEAD_BYTES = 64
_Number: TypeAlias = int | float | str | None


@dataclass(slots=True, eq=False)
class UsageReader:
    """Finds the token counts in a response, fed in pieces.

    It supports `usage` of chat, completions, embeddings, Responses and Messages, and SGLang's `meta_info`. If there are
    several, the last value of each field is used. Unreadable parts are skipped; nothing raises.

    The incomplete line of an event stream is kept, up to 1 MiB; longer lines are skipped. Any other body is kept as a
    whole up to 8 KiB; for longer bodies, only the value of `usage` or `meta_info` is kept, up to 64 KiB.
    """

    _: KW_ONLY
    event_stream: bool
    events: int = field(default=0, init=False)
    """Events of a stream so far, `[DONE]` included; most engines send one for each token."""
    has_content: bool = field(default=False, init=False)
    """Whether there was an event other than an error or `[DONE]`, or the beginning of a body that is not an error."""
    _counts: dict[str, int] = field(default_factory=dict, init=False)
    _kept: bytearray = field(default_factory=bytearray, init=False)
    _skips_line: bool = field(default=False, init=False)
    _scanner: MemberScanner | None = field(default=None, init=False)
    """Scanner of a body that is too long to keep."""
    _in_value: bool = field(default=False, init=False)
    _head: bytes = field(default=b"", init=False)
    _tail: bytes = field(default=b"", init=False)

    @property
    def usage(self) -> Usage | None:
        """The counts so far; None before the first one. A missing count is 0."""
        if self._kept and not self.event_stream and self._scanner is None:
            self._scan()
        counts = self._counts
        if not counts:
            return None
        cache_read = counts.get("cache_read_input_tokens", 0)
        # The Messages API counts cached tokens separately from other input; no other API has these fields.
        input_tokens = counts.get("input_tokens", 0) + cache_read + counts.get("cache_creation_input_tokens", 0)
        return Usage(
            prompt_tokens=counts.get("prompt_tokens", input_tokens),
            completion_tokens=counts.get("completion_tokens", counts.get("output_tokens", 0)),
            cached_tokens=counts.get("cached_tokens", cache_read),
        )

    @property
    def reports_cached(self) -> bool:
        """Whether the counts so far include cached tokens, which engines may leave out."""
        return "cached_tokens" in self._counts or "cache_read_input_tokens" in self._counts

    def feed(self, piece: bytes, *, last: bool) -> None:
        """Read a piece; with `last`, also an incomplete last line."""
        if not self.has_content:
            self._look_for_content(piece, last=last)
        if not self.event_stream:
            self._read_body(piece, last=last)
            return
        self._count_events(piece)
        if piece.endswith(b"\n") and not self._kept and not self._skips_line:
            self._read_lines(piece)
        else:
            lines_end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            if lines_end:
                self._read_lines(bytes(self._kept) + piece[:lines_end])
                self._kept.clear()
            self._keep_line(piece[lines_end:])
            if last:
                self._read_lines(bytes(self._kept))

    def _count_events(self, piece: bytes) -> None:
        self.events += _blank_lines(piece)
        if piece.startswith((b"\n", b"\r")):  # an end may span two pieces
            begin = piece[:2]
            self.events += _blank_lines(self._tail + begin) - _blank_lines(self._tail) - _blank_lines(begin)
        self._tail = piece[-2:] if len(piece) > 1 else (self._tail + piece)[-2:]

    def _look_for_content(self, piece: bytes, *, last: bool) -> None:
        self._head += piece[:_MAX_HEAD_BYTES]
        if len(self._head) > _MAX_HEAD_BYTES:
            self.has_content = True
        elif self.event_stream:
            self.has_content = _CONTENT_EVENT.search(self._head + b"\n" if last else self._head) is not None
        elif len(self._head) >= _BODY_HEAD_BYTES or (last and self._head):
            self.has_content = _CONTENT_BODY.match(self._head) is not None
        if self.has_content:
            self._head = b""

    def _keep_line(self, part: bytes) -> None:
        if len(self._kept) + len(part) > _MAX_LINE_BYTES:
            self._skips_line = True
            self._kept.clear()
        elif not self._skips_line:
            self._kept += part

    def _read_lines(self, text: bytes) -> None:
        first = 1 if self._skips_line else 0
        self._skips_line = False
        if text.find(b"usage") < 0 and text.find(b"meta_info") < 0:  # faster than `in`, which first tries a number
            return
        for line in text.splitlines()[first:]:
            if line.startswith(b"data:") and len(line) <= _MAX_LINE_BYTES and _COUNTS.search(line):
                self._read_event(line)

    def _read_event(self, line: bytes) -> None:
        event = _decoded(_EVENT, line[len(b"data:") :])
        if event is None:
            return
        kind = bytes(event.type)
        if kind in _ENDED:
            event = _decoded(_EVENT, event.response)
        elif kind == _STARTED:
            event = _decoded(_EVENT, event.message)
        self._read_counts(event)

    def _read_counts(self, body: "_Body | None") -> None:
        if body is not None:
            self._read_totals(body.usage)
            self._read_totals(body.meta_info)

    def _read_body(self, piece: bytes, *, last: bool) -> None:
        if self._scanner is not None:
            self._read_members(self._scanner, piece)
            return
        self._kept += piece
        if len(self._kept) > _MAX_BODY_BYTES:
            self._scan()
        elif last:
            body = _decoded(_BODY, bytes(self._kept))
            if body is None:
                self._scan()
            else:
                self._kept.clear()
                self._read_counts(body)

    def _scan(self) -> None:
        """Read the kept bytes, and later each piece on arrival."""
        kept = bytes(self._kept)
        self._kept.clear()
        self._scanner = MemberScanner(_TOTALS)
        self._read_members(self._scanner, kept)

    def _read_members(self, scanner: MemberScanner, piece: bytes) -> None:
        position = 0
        for mark in scanner.feed(piece):
            if self._in_value:
                self._keep_value(piece[position:mark])
                self._read_totals(self._kept)
                self._kept.clear()
            self._in_value = not self._in_value
            position = mark
        if self._in_value:
            self._keep_value(piece[position:])

    def _keep_value(self, part: bytes) -> None:
        # A value that is too long is truncated, which makes it unreadable.
        self._kept += part[: _MAX_VALUE_BYTES - len(self._kept)]

    def _read_totals(self, value: msgspec.Raw | bytearray) -> None:
        totals = _totals(value) if value else None
        if totals is None or totals.finish_reason == _NULL:
            return
        cached = totals.cached_tokens
        for details in (totals.prompt_tokens_details, totals.input_tokens_details):
            if details is not None:
                cached = details.cached_tokens
        for name, found in (
            ("prompt_tokens", totals.prompt_tokens),
            ("input_tokens", totals.input_tokens),
            ("completion_tokens", totals.completion_tokens),
            ("output_tokens", totals.output_tokens),
            ("cached_tokens", cached),
            ("cache_read_input_tokens", totals.cache_read_input_tokens),
            ("cache_creation_input_tokens", totals.cache_creation_input_tokens),
        ):
            if found is not None:
                count = _count(found)
                if count is not None:
                    self._counts[name] = count


class _Body(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()
    meta_info: msgspec.Raw = msgspec.Raw()


class _Event(_Body):
    type: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()


class _Details(msgspec.Struct):
    cached_tokens: _Number = None


class _Totals(_Details):
    prompt_tokens: _Number = None
    input_tokens: _Number = None
    completion_tokens: _Number = None
    output_tokens: _Number = None
    cache_read_input_tokens: _Number = None
    cache_creation_input_tokens: _Number = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    finish_reason: msgspec.Raw = msgspec.Raw()


_BODY = msgspec.json.Decoder(_Body)
_EVENT = msgspec.json.Decoder(_Event)
_TOTALS_OBJECT = msgspec.json.Decoder(_Totals)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FIELDS = {field.encode_name: msgspec.json.Decoder[Any](field.type) for field in msgspec.structs.fields(_Totals)}
_T = TypeVar("_T")


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes | bytearray | msgspec.Raw) -> _T | None:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):  # malformed, of another type, not UTF-8, or nested too deep
        return None


def _blank_lines(text: bytes) -> int:
    return text.count(b"\n\n") + text.count(b"\n\r\n")


def _totals(value: msgspec.Raw | bytearray) -> _Totals | None:
    """Return the counts in a value, without those that have a wrong type."""
    try:
        return _TOTALS_OBJECT.decode(value)
    except msgspec.ValidationError:
        members = _decoded(_MEMBERS, value) or {}
    except (ValueError, RecursionError):
        return None
    readable = {
        name: raw
        for name, raw in members.items()
        if name in _FIELDS and (raw == _NULL or _decoded(_FIELDS[name], raw) is not None)
    }
    return _decoded(_TOTALS_OBJECT, msgspec.json.encode(readable))


def _count(value: float | str) -> int | None:
    """Return an integer from a whole number or decimal digits; None for any other value."""
    if type(value) is int:
        return value if 0 <= value <= MAX_COUNT else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_COUNT_DIGITS:
        return int(value)
    if not isinstance(value, float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


_HEAD_BYTES = 5
_MAX_MESSAGE_BYTES = 1024 * 1024
_MOST_FIELDS = 1000
"""Largest number of fields that are read in a message; they take a millisecond."""
_COMPRESSED = 1


@dataclass(slots=True, eq=False)
class GrpcUsageReader:
    """Finds the token counts in a gRPC response, fed in pieces that may begin within messages.

    If there are several messages, the last value of each count that is not 0 is used. Compressed and unreadable
    messages, and those of more than 1 MiB, are skipped; nothing raises, and at most 1 MiB is kept.
    """

    response: GrpcResponse
    _: KW_ONLY
    event_stream: bool
    """Whether JSON in messages is an event stream."""
    events: int = field(default=0, init=False)
    """Messages so far."""
    usage: Usage | None = field(default=None, init=False)
    """The counts so far; None before the first one."""
    reports_cached: bool = field(default=False, init=False)
    """Whether the counts so far include cached tokens."""
    _head: bytes = field(default=b"", init=False)
    _left: int = field(default=0, init=False)
    """Number of bytes of the current message that have not arrived."""
    _kept: bytearray | None = field(default=None, init=False)
    """The current message; None if it is skipped."""
    _is_lost: bool = field(default=False, init=False)
    """Whether there was something other than a message, so that no later message can be found."""
    _json: UsageReader = field(init=False)

    def __post_init__(self) -> None:
        self._json = UsageReader(event_stream=self.event_stream)

    @property
    def has_content(self) -> bool:
        """Whether there was a message; for JSON, a message that is not an error."""
        return self._json.has_content if self.response.json_body else self.events > 0

    def feed(self, piece: bytes, *, last: bool) -> None:
        at = 0
        while at < len(piece) and not self._is_lost:
            if not self._left:
                part = piece[at : at + _HEAD_BYTES - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _HEAD_BYTES:
                    self._begin()
                continue
            part = piece[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._kept is not None:
                self._kept += part
            if not self._left:
                self._end()
        if last and self.response.json_body:
            self._read_json(b"", last=True)

    def _begin(self) -> None:
        flag, self._left, self._head = self._head[0], int.from_bytes(self._head[1:]), b""
        self._is_lost = flag > _COMPRESSED
        self._kept = None if flag or self._left > _MAX_MESSAGE_BYTES else bytearray()
        if not self._left and not self._is_lost:
            self._end()

    def _end(self) -> None:
        self.events += 1
        message, self._kept = self._kept, None
        if message:
            try:
                self._read(FieldReader(_MOST_FIELDS), bytes(message))
            except ValueError:  # malformed
                return

    def _read(self, reader: FieldReader, message: bytes) -> None:
        fields = dict(reader.fields(message))
        data = fields.get(self.response.json_body)
        if self.response.json_body and isinstance(data, memoryview):
            self._read_json(bytes(data), last=False)
        for numbers in self.response.counts:
            counts = fields
            if numbers.message:
                inner = fields.get(numbers.message)
                if not isinstance(inner, memoryview):
                    continue
                counts = dict(reader.fields(inner))
            before = self.usage or Usage(0, 0, 0)
            values = (numbers.prompt_tokens, numbers.completion_tokens, numbers.cached_tokens)
            prompt, completion, cached = (_field_count(counts.get(number)) if number else 0 for number in values)
            self.reports_cached = self.reports_cached or numbers.cached_tokens > 0
            self.usage = Usage(
                prompt or before.prompt_tokens, completion or before.completion_tokens, cached or before.cached_tokens
            )

    def _read_json(self, data: bytes, *, last: bool) -> None:
        if self.event_stream and data.startswith(b"{"):  # an event without its field name
            data = b"data: " + data + b"\n\n"
        self._json.feed(data, last=last)
        self.usage, self.reports_cached = self._json.usage, self._json.reports_cached


def _field_count(value: int | memoryview | None) -> int:
    return value if isinstance(value, int) and value <= MAX_COUNT else 0
