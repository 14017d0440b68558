"""Makes a whole JSON document of one that was cut off: what is open is closed, what is half said is dropped."""

import re

_TOKEN = re.compile(
    rb"""
      (?P<string>"[^"\\]*(?:\\.[^"\\]*)*(?P<closed>")?)   # one that is not closed runs to the end
    | (?P<open>[{\[])
    | (?P<close>[}\]])
    | (?P<colon>:)
    | (?P<comma>,)
    | (?P<word>[^\s{}\[\],:"]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {b"{": b"}", b"[": b"]"}
_HALF_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_CHARACTER = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")


def completed(body: bytes) -> bytes:
    """Return the longest beginning of a JSON text that can be closed, closed.

    A string value that was cut keeps what is there of it; a key without its value, and a number or word that may go
    on, are left out. A text that was not cut off is returned as it is, and so is one that is no JSON.
    """
    scan = _Scan(len(body))
    for token in _TOKEN.finditer(body):
        if not scan.take(token):
            break
    if scan.broken:
        return body
    if scan.in_string_value:
        return _closed_string(body) + b"".join(reversed(scan.closers))
    return body[: scan.kept] + scan.kept_closers if scan.kept_closers else body


class _Scan:
    """Where one is in a JSON text, and the last place at which all that is open can be closed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._expects_value = True
        self.closers: list[bytes] = []
        self.kept = 0
        self.kept_closers = b""
        self.in_string_value = False
        self.broken = False

    def take(self, token: re.Match[bytes]) -> bool:
        """Go on over one token; false when the text ends in it, or is no JSON."""
        kind = token.lastgroup
        if kind == "colon":
            self._expects_value = True
        elif kind == "comma":
            self._expects_value = self.closers[-1:] == [b"]"]
        elif kind == "open":
            self.closers.append(_CLOSERS[token[0]])
            self._expects_value = token[0] == b"["
            self._keep(token)
        elif kind == "close":
            self.broken = not self.closers or self.closers.pop() != token[0]
            self._value_ends(token)
        elif kind == "word":
            return token.end() < self._size and self._value_ends(token)
        else:
            return self._take_string(token)
        return not self.broken

    def _take_string(self, token: re.Match[bytes]) -> bool:
        if token["closed"] is None:
            self.in_string_value = self._expects_value
            return False
        if self._expects_value:
            self._value_ends(token)
        return True  # a key says nothing without its value

    def _value_ends(self, token: re.Match[bytes]) -> bool:
        self._expects_value = False
        self._keep(token)
        return True

    def _keep(self, token: re.Match[bytes]) -> None:
        self.kept = token.end()
        self.kept_closers = b"".join(reversed(self.closers))


def _closed_string(body: bytes) -> bytes:
    """Close the string that the body ends in, without the escape or character that was cut in two."""
    escape = _HALF_ESCAPE.search(body)
    if escape is not None and _escapes(body, escape.start()):
        body = body[: escape.start()]
    character = _HALF_CHARACTER.search(body)
    if character is not None and not _whole(character[0]):
        body = body[: character.start()]
    return body + b'"'


def _escapes(body: bytes, at: int) -> bool:
    """Say whether the backslash there starts an escape: not if an odd number of them stands before it."""
    before = len(body[:at]) - len(body[:at].rstrip(b"\\"))
    return before % 2 == 0


def _whole(character: bytes) -> bool:
    try:
        character.decode()
    except UnicodeDecodeError:
        return False
    return True
