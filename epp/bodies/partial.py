# SPDX-License-Identifier: Apache-2.0
"""Completion of truncated JSON: open strings and brackets are closed, incomplete members dropped."""

import re

_TOKEN = re.compile(
    rb"""
      (?P<string>"[^"\\]*(?:\\.[^"\\]*)*(?P<closed>")?)   # an unclosed one runs to the end
    | (?P<open>[{\[])
    | (?P<close>[}\]])
    | (?P<colon>:)
    | (?P<comma>,)
    | (?P<word>[^\s{}\[\],:"]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {b"{": b"}", b"[": b"]"}
_INCOMPLETE_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_INCOMPLETE_CHARACTER = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")


def completed(body: bytes) -> bytes:
    """Return a truncated JSON text as a complete one.

    A truncated string value is closed. A key without a value, and a number or literal that may be incomplete, are
    dropped. A complete text is returned unchanged, and so is one that is no JSON.
    """
    scan = _Scan(len(body))
    for token in _TOKEN.finditer(body):
        if not scan.feed(token):
            break
    if scan.invalid:
        return body
    if scan.in_string_value:
        return _closed_string(body) + b"".join(reversed(scan.closers))
    return body[: scan.cut] + scan.cut_closers if scan.cut_closers else body


class _Scan:
    """The state of a scan over tokens, and the last position at which the text can be cut and closed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._expects_value = True
        self.closers: list[bytes] = []
        self.cut = 0
        self.cut_closers = b""
        self.in_string_value = False
        self.invalid = False

    def feed(self, token: re.Match[bytes]) -> bool:
        """Process one token; return False where the text is truncated in it, or is no JSON."""
        kind = token.lastgroup
        if kind == "colon":
            self._expects_value = True
        elif kind == "comma":
            self._expects_value = self.closers[-1:] == [b"]"]
        elif kind == "open":
            self.closers.append(_CLOSERS[token[0]])
            self._expects_value = token[0] == b"["
            self._mark_cut(token)
        elif kind == "close":
            self.invalid = not self.closers or self.closers.pop() != token[0]
            self._end_value(token)
        elif kind == "word":
            return token.end() < self._size and self._end_value(token)
        else:
            return self._feed_string(token)
        return not self.invalid

    def _feed_string(self, token: re.Match[bytes]) -> bool:
        if token["closed"] is None:
            self.in_string_value = self._expects_value
            return False
        if self._expects_value:
            self._end_value(token)
        return True  # the text cannot be cut after a key

    def _end_value(self, token: re.Match[bytes]) -> bool:
        self._expects_value = False
        self._mark_cut(token)
        return True

    def _mark_cut(self, token: re.Match[bytes]) -> None:
        self.cut = token.end()
        self.cut_closers = b"".join(reversed(self.closers))


def _closed_string(body: bytes) -> bytes:
    """Close the string that the body ends in, without an incomplete escape or character."""
    escape = _INCOMPLETE_ESCAPE.search(body)
    if escape is not None and _starts_escape(body, escape.start()):
        body = body[: escape.start()]
    character = _INCOMPLETE_CHARACTER.search(body)
    if character is not None and not _is_complete(character[0]):
        body = body[: character.start()]
    return body + b'"'


def _starts_escape(body: bytes, at: int) -> bool:
    """Whether the backslash at this position starts an escape: an even number of them precedes it."""
    before = len(body[:at]) - len(body[:at].rstrip(b"\\"))
    return before % 2 == 0


def _is_complete(character: bytes) -> bool:
    try:
        character.decode()
    except UnicodeDecodeError:
        return False
    return True
