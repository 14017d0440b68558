# SPDX-License-Identifier: Apache-2.0
"""Replacement of the `model` and `priority` members of JSON bodies, and completion of truncated JSON."""

import re
import sys
from itertools import chain

import msgspec
import numpy as np

from epp.framework.errors import MalformedBodyError
from epp.routing.bodies.members import MemberScanner, Wanted

_PRIORITY = Wanted.named("priority")


def with_priority(body: bytes, priority: int) -> bytes:
    """Return a request body with this top-level `priority`; all other bytes stay the same.

    All members with this name are replaced, so that readers of the first and of the last one agree. A body that is
    incomplete, or not a JSON object, is returned unchanged.
    """
    scanner = MemberScanner(_PRIORITY)
    marks = scanner.feed(body)
    if not scanner.complete:
        return body
    value = b"%d" % priority
    if marks:
        bounds = [0, *marks, len(body)]
        return value.join(body[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    return _with_first(body, b'"priority":' + value)


def _with_first(body: bytes, member: bytes) -> bytes:
    """Return a JSON object with a member added as the first one."""
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip()[:1] == b"}" else b","
    return b"".join((body[:start], member, comma, body[start:]))


_MOST_BYTES, _MOST_ESCAPES, _MOST_STRINGS, _MOST_BRACKETS = 8 * 1024 * 1024, 2 * 1024 * 1024, 100_000, 500_000
"""Limits on a text to complete, since it blocks the event loop."""
_STRUCTURE = (b"{", b"}", b"[", b"]", b",")
_MOST_TAIL = 5
"""More parts between quotes than JSON can have after its last bracket or comma."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_CLOSERS, _OPENERS = bytes.maketrans(b"{[", b"}]"), bytes.maketrans(b"}]", b"{[")
_INCOMPLETE = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z"
    rb"|(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
"""The first bytes of a character at the end of a string: of its escape, its surrogate pair or its UTF-8; or nothing."""
_LONGEST_INCOMPLETE = len(r"\ud83d\ude0")
_check = msgspec.json.Decoder(msgspec.Raw).decode


def completed(body: bytes) -> bytes:
    """Return a truncated JSON text as a complete one.

    Open strings, arrays and objects are closed. A key without a value, and an incomplete literal or character, are
    dropped. A complete text is returned unchanged; a text that is not JSON does not become JSON, unless only what
    follows the last bracket or comma is wrong.
    """
    has_escapes = b"\\" in body
    if len(body) > _MOST_BYTES or (has_escapes and len(body) > _MOST_ESCAPES and body.count(b"\\") > _MOST_ESCAPES):
        return body
    masked = body.replace(b"\\\\", b"__").replace(b'\\"', b"__") if has_escapes else body
    if np.count_nonzero(np.frombuffer(masked, np.uint8) == ord('"')) > 2 * _MOST_STRINGS:
        return body
    parts = masked.split(b'"')  # odd parts are the content of strings
    closers = _closers(b"".join(parts[::2]))
    last = _last_structure(masked, parts) if closers else -1
    if last < 0:
        return body
    text, tail = body, body[last + 1 :]
    if len(parts) % 2 == 0:  # within a string
        incomplete = _INCOMPLETE.search(masked, len(body) - _LONGEST_INCOMPLETE)
        text = body[: incomplete.start() if incomplete else len(body)] + b'"'
        tail = body[last + 1 : len(body) - len(parts[-1])] + b'"'  # the content of the string does not matter
    innermost = closers[:1]  # of the open brackets, which `tail` is in
    if tail.strip() and _is_json(innermost.translate(_OPENERS) + tail + innermost):
        return text + closers
    return body[: last if body.startswith(b",", last) else last + 1] + closers


def _closers(outside: bytes) -> bytes:
    """Return the closing brackets for all open brackets, innermost first; empty if there are too many closing ones."""
    brackets = outside.translate(None, _NOT_BRACKETS)
    if not 0 < len(brackets) <= _MOST_BRACKETS:
        return b""
    codes = np.frombuffer(brackets, np.uint8)
    opens = (codes == ord("{")) | (codes == ord("["))
    depths = np.cumsum(np.where(opens, 1, -1), dtype=np.int32)
    if int(depths.min()) < 0 or not depths[-1]:
        return b""
    lowest_since = np.minimum.accumulate(depths[::-1])[::-1]
    unmatched: bytes = codes[opens & (lowest_since >= depths)].tobytes()
    return unmatched[::-1].translate(_CLOSERS)


def _last_structure(masked: bytes, parts: list[bytes]) -> int:
    """Return the position of the last bracket or comma outside of strings; -1 if it is too far from the end."""
    end = len(masked)
    for number in range(len(parts) - 1, max(len(parts) - _MOST_TAIL, 0) - 1, -1):
        part = parts[number]
        if number % 2 == 0:
            position = max(map(part.rfind, _STRUCTURE))
            if position >= 0:
                return end - len(part) + position
        end -= len(part) + 1
    return -1


def _is_json(text: bytes) -> bool:
    try:
        _check(text)
    except (ValueError, RecursionError):
        return False
    return True


MOST_MODELS = 2
_SPACE = b" \t\n\r"


class _Model(msgspec.Struct, gc=False):
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Model).decode


def model_values(body: bytes) -> list[tuple[int, int]] | None:
    """Return start and end of the last three values of `model`, in order; None for a body that is not a JSON object.

    msgspec returns the last of several members, so the part before it is decoded again for each further member.
    """
    found: list[tuple[int, int]] = []
    rest = body
    while True:
        try:
            model = _decode(rest).model
        except (ValueError, RecursionError):  # not JSON, not an object, not UTF-8, or nested too deep
            return None
        if isinstance(model, msgspec.UnsetType):
            return found[::-1]
        start = _address(model) - _address(rest)
        found.append((start, start + len(memoryview(model))))
        before = _before_member(rest, start)
        if before is None or len(found) > MOST_MODELS:
            return found[::-1]
        rest = before


def _address(data: bytes | msgspec.Raw) -> int:
    """Return the memory address of the bytes; a raw value is a view of the bytes that it was decoded from."""
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _before_member(body: bytes, value: int) -> bytes | None:
    """Return the object without the member with this value and all later members; None if it has no earlier `model`."""
    quote = body.rfind(b'"', 0, value)
    key = body.rfind(b'"', 0, quote)  # no spelling of the key has a quote
    if body.find(b'"model"', 0, key) < 0 and body.find(rb"\u00", 0, key) < 0:
        return None
    before = body[:key].rstrip(_SPACE)
    return before[:-1] + b"}" if before.endswith(b",") else None


_MODEL = Wanted.named("model")
_MODEL_OF_EVENT = Wanted.named("model", within=("response", "message"))
"""Some events of the Responses API have the model in `response`, and one of the Messages API has it in `message`."""
_DATA = b"data:"
_OTHER_FIELD = b"other"
_MAX_VALUE_BYTES = 64 * 1024


def with_model(body: bytes, model: str, *, partial: bool = False) -> bytes:
    """Return a request body with this value of its top-level `model`; all other bytes stay the same.

    Values that are not strings are replaced too. Two members are both replaced, so that readers of the first and of the
    last one agree; raises MalformedBodyError for more than two.

    A body without a top-level `model`, or that is not a JSON object, is returned unchanged. In a truncated body, a
    complete `model` is replaced only if `partial` is set.
    """
    spans = model_values(completed(body) if partial else body)
    if spans is None:
        spans = _scanned(body, partial=partial)
    if len(spans) > MOST_MODELS:
        raise MalformedBodyError('"model" is in the JSON body more than twice: send it once', param="model")
    if not spans or spans[-1][1] > len(body):
        return body
    value = msgspec.json.encode(model)
    marks = [0, *chain.from_iterable(spans), len(body)]
    view = memoryview(body)  # avoids copies of the parts
    return value.join(view[start:end] for start, end in zip(marks[::2], marks[1::2], strict=True))


def _scanned(body: bytes, *, partial: bool) -> list[tuple[int, int]]:
    """Return start and end of each value in an object that only lenient readers accept, such as one with NaN."""
    scanner = MemberScanner(_MODEL, members_left=sys.maxsize)  # every `model` must be replaced
    marks = scanner.feed(body)
    usable = scanner.complete or (partial and not scanner.invalid and len(marks) % 2 == 0)
    return list(zip(marks[::2], marks[1::2], strict=True)) if usable else []


def with_model_added(body: bytes, model: str) -> bytes:
    """Return a JSON object with `model` added as its first member; all other bytes stay the same."""
    return _with_first(body, b'"model":' + msgspec.json.encode(model))


class ModelRestorer:
    """Replaces the top-level `model` in the JSON object of a response, or of each event of a stream.

    In events, the `model` of a top-level `response` or `message` is replaced too, for APIs that stream typed events.
    Only strings of at most 64 KiB are replaced; other members and text stay the same. The output does not depend on the
    boundaries of pieces. Only an incomplete `model` value is held back.

    In an event stream, an object may span the `data:` lines of its event; a line after a complete object starts a new
    one. Data that is not an object, comments and other fields stay the same.
    """

    def __init__(self, model: str, *, event_stream: bool) -> None:
        self._replacement = msgspec.json.encode(model)
        self._event_stream = event_stream
        self._wanted = _MODEL_OF_EVENT if event_stream else _MODEL
        self._scanner = MemberScanner(self._wanted)
        self._in_value = False
        self._buffering = False
        self._buffer = bytearray()
        self._field = b""
        self._line_is_empty = True
        self._after_carriage_return = False

    def feed(self, piece: bytes, *, last: bool) -> bytes:
        """Return the bytes that can be passed on; with `last`, all remaining bytes."""
        output = _Output(piece)
        if self._event_stream:
            self._read_lines(piece, output)
        else:
            self._replace(self._scanner.feed(piece), output)
        if self._buffering:
            self._buffer += output.take_until(len(piece))
            if last or len(self._buffer) > _MAX_VALUE_BYTES:
                self._flush(output)
        return output.joined()

    def _read_lines(self, piece: bytes, output: "_Output") -> None:
        start = 0
        for line in piece.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            if content:
                self._read_content(content, start, output)
            if len(content) < len(line):
                self._end_line(line, start + len(content), output)
            start += len(line)

    def _read_content(self, content: bytes, start: int, output: "_Output") -> None:
        self._line_is_empty = False
        if self._field == _OTHER_FIELD:
            return
        if self._field != _DATA:
            missing = len(_DATA) - len(self._field)
            self._field += content[:missing]
            if self._field != _DATA:
                if not _DATA.startswith(self._field):
                    self._field = _OTHER_FIELD
                return
            if self._scanner.complete:
                self._scanner = MemberScanner(self._wanted)
            content = content[missing:]
            start += missing
        self._replace([start + mark for mark in self._scanner.feed(content)], output)

    def _end_line(self, line: bytes, end: int, output: "_Output") -> None:
        finishes_previous = self._after_carriage_return and line == b"\n" and self._line_is_empty
        self._after_carriage_return = line.endswith(b"\r")
        if finishes_previous:
            return
        if self._line_is_empty:
            self._scanner = MemberScanner(self._wanted)
            self._in_value = False
        elif self._field == _DATA and self._scanner.end_line():
            self._in_value = False
        if self._buffering:
            self._buffer += output.take_until(end)
            self._flush(output)
        self._field = b""
        self._line_is_empty = True

    def _replace(self, marks: list[int], output: "_Output") -> None:
        for mark in marks:
            if not self._in_value:
                output.append(output.take_until(mark))
                self._buffering = output.piece.startswith(b'"', mark)
            elif self._buffering:
                self._buffer += output.take_until(mark)
                if len(self._buffer) <= _MAX_VALUE_BYTES:
                    self._buffer[:] = self._replacement
                self._flush(output)
            self._in_value = not self._in_value

    def _flush(self, output: "_Output") -> None:
        output.append(bytes(self._buffer))
        self._buffer.clear()
        self._buffering = False


class _Output:
    """The output for one piece: parts, and the position up to which the piece has been processed."""

    __slots__ = ("_parts", "_position", "piece")

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self._parts: list[bytes] = []
        self._position = 0

    def append(self, part: bytes) -> None:
        self._parts.append(part)

    def take_until(self, end: int) -> bytes:
        taken = self.piece[self._position : end]
        self._position = end
        return taken

    def joined(self) -> bytes:
        if not self._parts and not self._position:
            return self.piece
        return b"".join((*self._parts, self.piece[self._position :]))
