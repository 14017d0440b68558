# SPDX-License-Identifier: Apache-2.0
"""Completion of truncated JSON: open strings and brackets are closed, incomplete members dropped."""

import re

import numpy as np

_SPACES = re.compile(rb"[ \t\n\r]*+")
_WORD = re.compile(rb'[^ \t\n\r{}\[\],:"]++')
_MOST_BYTES, _MOST_STRINGS, _MOST_BRACKETS = 8 * 1024 * 1024, 100_000, 500_000
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
    if len(body) > _MOST_BYTES:
        return body
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
