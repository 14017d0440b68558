# SPDX-License-Identifier: Apache-2.0
"""Completion of truncated JSON: open strings and brackets are closed, incomplete members dropped."""

import re
from bisect import bisect_right
from operator import itemgetter

import numpy as np

from epp.framework.long_json import RUN_BYTES
from epp.framework.steps import Steps, joined_slices

_SPACES = re.compile(rb"[ \t\n\r]*+")
_WORD = re.compile(rb'[^ \t\n\r{}\[\],:"]++')
_MOST_STRINGS, _MOST_BRACKETS = 100_000, 500_000
"""A text with more is not completed: it would stop the event loop for long."""
_WINDOW_BYTES = 64 * 1024
_STRUCTURE = (b"{", b"}", b"[", b"]", b",")
_MOST_TAIL = 8
"""Strings or tokens after the last bracket or comma of JSON, with some to spare."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_CLOSERS = bytes.maketrans(b"{[", b"}]")
_INCOMPLETE_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_INCOMPLETE_CHARACTER = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")


def completed(body: bytes) -> bytes:
    """Return a truncated JSON text as a complete one.

    A truncated string value is closed. A key without a value, and a number or literal that may be incomplete, are
    dropped. A complete text is returned unchanged; one that is no JSON does not become JSON.
    """
    masked = _masked(body)
    if np.count_nonzero(np.frombuffer(masked, np.uint8) == ord('"')) > 2 * _MOST_STRINGS:
        return body
    parts = masked.split(b'"')  # those of odd number are within strings
    closers = _closers(b"".join(parts[::2]))
    last = _last_structure(masked, parts) if closers else -1
    if last < 0:
        return body
    cut = _cut(body, masked, last, closers)
    return body[: _string_end(body)] + b'"' + closers if cut is None else body[:cut] + closers


def completed_in_turns(body: bytes) -> Steps[bytes]:
    """Return the same for a long text, in turns of the event loop."""
    tail = _Tail(body)
    while not tail.done:
        if not tail.step():
            return body
        yield None
    closers = _closers(b"".join(tail.brackets))
    if not closers or tail.last < 0 or len(tail.quotes) >= _MOST_TAIL:
        return body
    yield None
    cut = tail.cut(closers)
    end = _string_end(body) if cut is None else cut
    closing = closers if cut is not None else b'"' + closers
    return (yield from joined_slices([memoryview(body)[:end], closing]))


class _Tail:
    """Goes through a text for its brackets, and for what follows the last one or the last comma."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._strings = 0
        self._brackets = 0
        self._in_string = False
        self.brackets: list[bytes] = []
        self.last = -1
        """Position of the last bracket or comma outside of strings; -1 for none."""
        self.quotes: list[int] = []
        """Positions of the quotes behind it, but for those beyond the first few."""

    @property
    def done(self) -> bool:
        """Whether it has been through."""
        return self._at >= len(self._body)

    def step(self) -> bool:
        """Go on by a slice; return whether the text is one that is completed."""
        end = self._at + RUN_BYTES
        window = self._body[self._at : end]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:
            window += self._body[end : end + 1]
        masked = _masked(window)
        self._strings += masked.count(b'"')
        if self._strings > 2 * _MOST_STRINGS:
            return False
        parts = masked.split(b'"')
        outside = b"".join(parts[int(self._in_string) :: 2]).translate(None, _NOT_BRACKETS)
        self._brackets += len(outside)
        if self._brackets > _MOST_BRACKETS:
            return False
        self.brackets.append(outside)
        self._find_last(parts)
        self._in_string ^= len(parts) % 2 == 0
        self._at += len(window)
        return True

    def _find_last(self, parts: list[bytes]) -> None:
        end = self._at + sum(map(len, parts)) + len(parts) - 1
        quotes: list[int] = []
        for number in range(len(parts) - 1, max(len(parts) - 1 - _MOST_TAIL, -1), -1):
            part = parts[number]
            if number % 2 == int(self._in_string):
                position = max(map(part.rfind, _STRUCTURE))
                if position >= 0:
                    self.last, self.quotes = end - len(part) + position, quotes[::-1]
                    return
            end -= len(part) + 1
            if number:
                quotes.append(end)
        self.quotes = [*self.quotes, *quotes[::-1]][:_MOST_TAIL]

    def cut(self, closers: bytes) -> int | None:
        """Return what `_cut` does, by a text where strings behind the last bracket or comma are empty."""
        starts, text = [], b"x"  # for all that is before
        outside = [self.last, *(quote + 1 for quote in self.quotes[1::2])]
        ends = [*self.quotes[::2], len(self._body)]
        for number, (start, end) in enumerate(zip(outside, ends, strict=False)):
            starts.append((len(text), start))
            closes = 2 * number + 1 < len(self.quotes)
            text += self._body[start:end] + (b'""' if closes else b'"' if 2 * number < len(self.quotes) else b"")
        cut = _cut(text, _masked(text), 1, closers)
        if cut is None:
            return None
        if cut == 1:
            return _stripped_end(self._body, self.last)
        number = bisect_right(starts, cut, key=itemgetter(0)) - 1
        return starts[number][1] + cut - starts[number][0]


def _stripped_end(body: bytes, end: int) -> int:
    """Return the end of a part of the body without the space at its end."""
    while end:
        window = body[max(end - _WINDOW_BYTES, 0) : end]
        left = len(window.rstrip())
        end -= len(window) - left
        if left:
            break
    return end


def _masked(text: bytes) -> bytes:
    """Return a text of the same length without escaped quotes and backslashes."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text


def _closers(outside: bytes) -> bytes:
    """Return the brackets that close all that are open, innermost first; nothing where one is closed too many."""
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
    """Return the position of the last bracket or comma outside of strings; -1 where it is too far from the end."""
    end = len(masked)
    for number in range(len(parts) - 1, max(len(parts) - _MOST_TAIL, 0) - 1, -1):
        part = parts[number]
        if number % 2 == 0:
            position = max(map(part.rfind, _STRUCTURE))
            if position >= 0:
                return end - len(part) + position
        end -= len(part) + 1
    return -1


def _cut(body: bytes, masked: bytes, last: int, closers: bytes) -> int | None:
    """Return the end of the last complete value, or of the last open bracket; None for an open string that is a value.

    `last` is the position of the last bracket or comma.
    """
    structure = body[last : last + 1]
    cut = len(body[:last].rstrip()) if structure == b"," else last + 1
    expects_value = structure == b"[" or (structure == b"," and closers.startswith(b"]"))
    position = last + 1
    for _ in range(_MOST_TAIL):
        position = _end(_SPACES, masked, position)
        token = masked[position : position + 1]
        if token == b":":
            position, expects_value = position + 1, True
            continue
        if token == b'"':
            position = masked.find(b'"', position + 1) + 1
            if not position:
                return None if expects_value else cut
            if not expects_value:  # a key
                continue
        else:
            position = _end(_WORD, masked, position)
            if position == len(masked):  # 12, or 123
                break
        cut, expects_value = position, False
    return cut


def _end(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()


def _string_end(body: bytes) -> int:
    """Return where to close the string that the body ends in: before an incomplete escape or character."""
    end = len(body)
    escape = _INCOMPLETE_ESCAPE.search(body, max(end - 5, 0))
    if escape is not None and _starts_escape(body, escape.start()):
        end = escape.start()
    character = _INCOMPLETE_CHARACTER.search(body, max(end - 3, 0), end)
    if character is not None and not _is_complete(character[0]):
        end = character.start()
    return end


def _starts_escape(body: bytes, at: int) -> bool:
    """Whether the backslash at this position starts an escape: an even number of them precedes it."""
    before = 0
    while at:
        window = body[max(at - _WINDOW_BYTES, 0) : at]
        left = len(window.rstrip(b"\\"))
        before += len(window) - left
        if left:
            break
        at -= len(window)
    return before % 2 == 0


def _is_complete(character: bytes) -> bool:
    try:
        character.decode()
    except UnicodeDecodeError:
        return False
    return True
