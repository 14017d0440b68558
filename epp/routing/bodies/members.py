# SPDX-License-Identifier: Apache-2.0
"""Positions of the values of wanted members in a JSON object that arrives in pieces.

Nothing is decoded, and only the state of the scan is kept. Escaped quotes are first replaced with a filler of the same
length, so that each remaining quote opens or closes a string and can be found with fast byte searches.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

_MAX_KEY_BYTES = 64
MOST_MEMBERS = 512
"""Largest number of wanted members of an object, plus members that are read byte by byte, such as keys with escapes."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN, _CLOSE = b"{}"
_OPENERS = b"{["
_SPACE = b" \t\n\r"
_SCALAR = b"+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

SPACES = re.compile(rb"[ \t\n\r]*+")
_SCALARS = re.compile(rb"[-+.0-9A-Za-z]*+")
_TO_BRACKETS = re.compile(rb'[^"{}\[\]]*+(?:"[^"]*+"[^"{}\[\]]*+)*+([{\[]++|[}\]]++|"|\Z)')


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names of members to find.

    Attributes:
        key: matches a wanted key between its quotes, in any spelling.
        within: matches a key of the outermost object whose value, if it is an object, is searched too.
        run: matches several members at once, for speed: unwanted members with their commas, followed either by the last
            member with the closing bracket of the object, or by a wanted member with its comma, if its value is a
            string; the group `value` matches the string.
    """

    key: re.Pattern[bytes]
    within: re.Pattern[bytes]
    run: re.Pattern[bytes]

    @classmethod
    def named(cls, *names: str, within: Sequence[str] = ()) -> Self:
        """Find names of at most ten lower-case ASCII characters, so that any spelling fits into 64 bytes."""
        plain = "|".join(map(re.escape, names))
        known = "|".join(map(re.escape, (*names, *within)))
        space, string = r"[ \t\n\r]*+", r'"[^"]*+"'
        other = rf'{space}"(?!(?:{known})")[^"\\]*+"{space}:{space}(?:{string}|[-+.0-9A-Za-z]++|{_nested(7)}){space}'
        wanted = rf'{space}"(?:{plain})"{space}:{space}(?P<value>{string}){space},?+'
        # No member follows the bracket that ends the object.
        run = rf"(?:(?<!\}}){other}[,}}])*+(?:(?<!\}}){wanted})?+"
        return cls(_spelled(names), _spelled(within), re.compile(run.encode()))


def _spelled(names: Sequence[str]) -> re.Pattern[bytes]:
    spelled = ("".join(rf"(?:{re.escape(c)}|\\u00(?i:{ord(c):02x}))" for c in name) for name in names)
    return re.compile(("|".join(spelled) or "(?!)").encode())


def _nested(depth: int) -> str:
    inner = rf'(?:"[^"]*+"|{_nested(depth - 1)})' if depth > 1 else '"[^"]*+"'
    return rf'[{{\[][^"{{}}\[\]]*+(?:{inner}[^"{{}}\[\]]*+)*+[}}\]]'


@dataclass(slots=True, eq=False)
class MemberScanner:
    """Scans one JSON object, fed in pieces, for the start and end of the values of wanted members.

    Only members of the outermost object are searched, and members of objects that are the value of a `within` member.
    Their syntax is checked; for other values, only strings and the number of brackets are checked. The result does not
    depend on the boundaries of pieces, unless an object has too many members and is therefore invalid.
    """

    wanted: Wanted
    members_left: int = MOST_MEMBERS
    _state: "_State" = field(init=False)
    _escaped: bool = field(default=False, init=False)
    _depth: int = field(default=0, init=False)
    _key: bytes = field(default=b"", init=False)
    _is_wanted: bool = field(default=False, init=False)
    _enters: bool = field(default=False, init=False)
    _is_within: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._state = MemberScanner._before_object

    @property
    def complete(self) -> bool:
        """Whether the object has ended, followed only by whitespace."""
        return self._state is MemberScanner._after_object

    @property
    def invalid(self) -> bool:
        """Whether the bytes are not a JSON object; further bytes are ignored."""
        return self._state is MemberScanner._invalid

    def feed(self, piece: bytes) -> list[int]:
        """Return the positions in this piece where wanted values start and end, alternately.

        An end is the position after the value. A value may continue in the next piece, whose first mark is then its
        end. A number or literal ends when the next byte arrives.
        """
        marks: list[int] = []
        if piece:
            data = self._without_escaped_quotes(piece)
            position = 0
            while position < len(data):
                position = self._state(self, data, position, marks)
        return marks

    def end_line(self) -> bool:
        """Process a line end that was not fed, which is an error within a string.

        Return whether it ended a wanted value, which can be a number or literal.
        """
        if self.complete:
            return False
        if self._state in {MemberScanner._in_key, MemberScanner._in_string, MemberScanner._in_nested_string}:
            self._state = MemberScanner._invalid
            return False
        return bool(self.feed(b"\n"))

    def _without_escaped_quotes(self, piece: bytes) -> bytes:
        data = piece
        if self._escaped and piece[0] in b'"\\':
            data = b"_" + piece[1:]
        if b'\\"' in data:
            data = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escaped = data[-1] == _BACKSLASH and (len(data) - len(data.rstrip(b"\\"))) % 2 == 1
        return data

    def _before_object(self, data: bytes, position: int, _marks: list[int]) -> int:
        if data[position] in _SPACE:
            return skip(SPACES, data, position)
        self._state = MemberScanner._before_first_key if data[position] == _OPEN else MemberScanner._invalid
        return position + 1

    def _before_first_key(self, data: bytes, position: int, marks: list[int]) -> int:
        if data[position] in _SPACE:
            return skip(SPACES, data, position)
        if data[position] == _CLOSE:
            self._end_object()
            return position + 1
        return self._before_key(data, position, marks)

    def _before_key(self, data: bytes, position: int, marks: list[int]) -> int:
        if not self.members_left:
            self._state = MemberScanner._invalid
            return position
        run = self.wanted.run.match(data, position)
        if run and run.end() > position:
            return self._after_run(data, run, marks)
        if data[position] in _SPACE:
            return skip(SPACES, data, position)
        self.members_left -= 1
        self._key = b""
        self._state = MemberScanner._in_key if data[position] == _QUOTE else MemberScanner._invalid
        return position + 1

    def _after_run(self, data: bytes, run: re.Match[bytes], marks: list[int]) -> int:
        end = run.end()
        closing = data[end - 1]
        if run.end("value") >= 0:
            marks += run.span("value")
            self.members_left -= 1
            self._state = MemberScanner._before_key if closing == _COMMA else MemberScanner._after_value
        elif closing == _COMMA:
            self._state = MemberScanner._before_key
        else:
            self._end_object()
        return end

    def _end_object(self) -> None:
        self._state = MemberScanner._after_value if self._is_within else MemberScanner._after_object
        self._is_within = False

    def _in_key(self, data: bytes, position: int, _marks: list[int]) -> int:
        quote = data.find(b'"', position)
        end = len(data) if quote < 0 else quote
        # One byte more than the longest spelling of a wanted key suffices to reject a key.
        self._key = (self._key + data[position : min(end, position + _MAX_KEY_BYTES + 1)])[: _MAX_KEY_BYTES + 1]
        if quote < 0:
            return end
        self._is_wanted = self.wanted.key.fullmatch(self._key) is not None
        self._enters = not self._is_within and self.wanted.within.fullmatch(self._key) is not None
        self._state = MemberScanner._after_key
        return quote + 1

    def _after_key(self, data: bytes, position: int, _marks: list[int]) -> int:
        if data[position] in _SPACE:
            return skip(SPACES, data, position)
        self._state = MemberScanner._before_value if data[position] == _COLON else MemberScanner._invalid
        return position + 1

    def _before_value(self, data: bytes, position: int, marks: list[int]) -> int:
        byte = data[position]
        if byte in _SPACE:
            return skip(SPACES, data, position)
        if byte == _QUOTE:
            self._state = MemberScanner._in_string
        elif byte == _OPEN and self._enters:
            self._is_within = True
            self._state = MemberScanner._before_first_key
        elif byte in _OPENERS:
            self._depth = 1
            self._state = MemberScanner._in_nested
        elif byte in _SCALAR:
            self._state = MemberScanner._in_scalar
        else:
            self._state = MemberScanner._invalid
            return position
        if self._is_wanted:
            marks.append(position)
        return position + 1

    def _in_string(self, data: bytes, position: int, marks: list[int]) -> int:
        quote = data.find(b'"', position)
        return len(data) if quote < 0 else self._end_value(quote + 1, marks)

    def _in_scalar(self, data: bytes, position: int, marks: list[int]) -> int:
        end = skip(_SCALARS, data, position)
        return end if end == len(data) else self._end_value(end, marks)

    def _in_nested(self, data: bytes, position: int, marks: list[int]) -> int:
        depth = self._depth
        for found in _TO_BRACKETS.finditer(data, position):
            start, end = found.span(1)
            if start == end:
                break
            if data[start] == _QUOTE:  # not closed in this piece
                self._state = MemberScanner._in_nested_string
                break
            if data[start] in _OPENERS:
                depth += end - start
            elif end - start < depth:
                depth -= end - start
            else:
                return self._end_value(start + depth, marks)
        self._depth = depth
        return len(data)

    def _in_nested_string(self, data: bytes, position: int, _marks: list[int]) -> int:
        quote = data.find(b'"', position)
        if quote < 0:
            return len(data)
        self._state = MemberScanner._in_nested
        return quote + 1

    def _end_value(self, end: int, marks: list[int]) -> int:
        if self._is_wanted:
            marks.append(end)
        self._state = MemberScanner._after_value
        return end

    def _after_value(self, data: bytes, position: int, _marks: list[int]) -> int:
        byte = data[position]
        if byte in _SPACE:
            return skip(SPACES, data, position)
        if byte == _COMMA:
            self._state = MemberScanner._before_key
        elif byte == _CLOSE:
            self._end_object()
        else:
            self._state = MemberScanner._invalid
        return position + 1

    def _after_object(self, data: bytes, position: int, _marks: list[int]) -> int:
        end = skip(SPACES, data, position)
        if end < len(data):
            self._state = MemberScanner._invalid
        return end

    def _invalid(self, data: bytes, _position: int, _marks: list[int]) -> int:
        return len(data)


_State = Callable[[MemberScanner, bytes, int, list[int]], int]


def skip(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    found = pattern.match(data, position)
    return found.end() if found else position
