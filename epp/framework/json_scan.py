# SPDX-License-Identifier: Apache-2.0
"""A scan of a JSON object for members, slice by slice.

msgspec reads every slice: what is open where it begins is put before it, and closed behind it.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework.json_cuts import string_cut
from epp.framework.steps import Text, Turns

Found: TypeAlias = Callable[[str, int, int], None]
"""Is told the name of a member, and where its value starts and ends, with the space around it."""

SLICE_BYTES = 64 * 1024
"""Where values and brackets may be many."""
RUN_BYTES = 256 * 1024
"""Of a string, or of whitespace."""
_SMALLEST = 16
"""Bytes that hold any number without two digits in a row, and any word."""
_MOST_KEY_BYTES = 1024
_FEW_MEMBERS = 64
_SEVERAL = 3

_SPACE = b" \t\n\r"
_QUOTE = 0x22
_COMMA, _COLON = b",:"
_OPEN_OBJECT, _CLOSE_OBJECT = b"{}"
_CLOSERS = bytes.maketrans(b"{[", b"}]")
_STRUCTURE = np.zeros(256, np.bool_)
_STRUCTURE[list(b",:[]{}")] = True
_DEPTH = np.zeros(256, np.int8)
_DEPTH[list(b"[{")] = 1
_DEPTH[list(b"]}")] = -1
_IS_SPACE = np.zeros(256, np.bool_)
_IS_SPACE[list(_SPACE)] = True
_DIGITS = re.compile(rb"[0-9]*+")
_TWO_DIGITS = re.compile(rb".*[0-9](?=[0-9])", re.DOTALL)
_SCALAR_END = re.compile(rb'[ \t\n\r"]')
_BYTE = re.compile(r"\(byte (\d+)\)")


class _Object(msgspec.Struct, gc=False):
    pass


_check_object = msgspec.json.Decoder(_Object).decode
_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_text = msgspec.json.Decoder(str).decode


def members(text: Text, names: AbstractSet[str], found: Found, several: Callable[[bytes], object] = len) -> Turns:
    """Call `found` with the members of these names of a JSON object, in order, however they are spelled.

    Of very many of one name in a slice, it is called with the first ones and the last, and `several` with others: the
    JSON of members without the brackets.

    Raises what msgspec does for a text that is no JSON object: DecodeError, ValidationError, RecursionError.
    """
    scan = _Scan(text, names, found, several)
    while not scan.done:
        scan.step()
        yield None


class _Scan:
    """Goes through a JSON object slice by slice."""

    def __init__(self, text: Text, names: AbstractSet[str], found: Found, several: Callable[[bytes], object]) -> None:
        self._text = memoryview(text)
        self._at = 0
        self._stack = b""  # brackets that are open, the outermost first
        self._before = b""  # what stands for the part of the innermost value that was read
        self._last = 0  # the last character of structure; 0 before the first, and after a value
        self._in_string = False
        self._is_key = False
        self._key = b""  # of the outermost object, where its colon has not come
        self._open: tuple[str, int] | None = None
        self._names = names
        self._found = found
        self._several = several
        self.done = False

    def step(self) -> None:
        """Read another slice."""
        if self._in_string:
            self._go_on_in_string()
            return
        window = self._window()
        if self._is_in_number:
            digits = _DIGITS.match(window)
            self._at += 0 if digits is None else digits.end()
            window = self._window()
            if window[:1] in (b" ", b"\t", b"\n", b"\r"):
                self._end_value()
        if not self._is_in_number and window[:1] in (b" ", b"\t", b"\n", b"\r"):
            self._skip_spaces()
            window = self._window()
            if window[:1] in (b" ", b"\t", b"\n", b"\r"):
                return
        self._read(window)

    def _window(self) -> bytes:
        return bytes(self._text[self._at : self._at + SLICE_BYTES])

    @property
    def _is_in_number(self) -> bool:
        return self._before.endswith(b"1")

    def _read(self, window: bytes) -> None:
        if not self._stack and not self._before and not window.startswith(b"{"):
            self._try(_check_object, _stand_in(window), self._at)
            raise msgspec.DecodeError("Input data was truncated")
        if len(self._stack) > 1 and not any(mark in window for mark in b'"[]{}:'):
            comma = window.rfind(b",")
            if comma >= 0:
                self._read_scalars(window[: comma + 1])
                return
        data = window.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in window else window
        codes = np.frombuffer(data, np.uint8)
        marks = np.flatnonzero(_STRUCTURE[codes])
        if b'"' in data:
            marks = marks[np.cumsum(codes == _QUOTE, dtype=np.int32)[marks] & 1 == 0]
        if len(marks):
            self._read_structure(window, data, codes, marks)
        elif self._at + len(window) == len(self._text):
            self._end(window)
        elif window.startswith(b'"'):
            self._begin_string()
        else:
            self._read_scalar(window)

    def _read_scalars(self, part: bytes) -> None:
        """Read a part that ends with a comma and has no other structure than commas: there may be many of them."""
        self._verify(part, _rest(self._stack, _COMMA) + _closed(self._stack))
        self._at += len(part)
        self._last = _COMMA
        self._before = _read_part(self._stack, _COMMA)

    def _skip_spaces(self) -> None:
        window = bytes(self._text[self._at : self._at + RUN_BYTES])
        self._at += len(window) - len(window.lstrip(_SPACE))

    def _end(self, window: bytes) -> None:
        """Read the last slice, which has no more structure."""
        self._verify(window, b"")
        self.done = True

    def _read_structure(self, window: bytes, data: bytes, codes: NDArray[np.uint8], marks: NDArray[np.intp]) -> None:
        kinds = codes[marks]
        changes = _DEPTH[kinds]
        depths = np.cumsum(changes, dtype=np.int32) + len(self._stack)
        cut = int(marks[-1]) + 1
        if int(depths.min()) < 0:
            self._verify(window[:cut], b"")
            raise msgspec.DecodeError("Input data was truncated")
        stack = self._stack_after(kinds, changes, depths)
        last = int(kinds[-1])
        self._verify(window[:cut], _rest(stack, last) + _closed(stack))
        is_top = ((depths == 1) & ((kinds == _COMMA) | (kinds == _COLON))) | (depths == 0)
        if is_top.any():
            self._collect(window, data, marks[is_top], kinds[is_top])
        self._stack = stack
        self._at += cut
        self._last = last if last in b",:" else 0
        self._before = _read_part(stack, last)

    def _stack_after(self, kinds: NDArray[np.uint8], changes: NDArray[np.int8], depths: NDArray[np.int32]) -> bytes:
        brackets = changes != 0
        if not brackets.any():
            return self._stack
        kinds, changes, depths = kinds[brackets], changes[brackets], depths[brackets]
        lowest_since = np.minimum.accumulate(depths[::-1])[::-1]
        opened: bytes = kinds[(changes > 0) & (lowest_since >= depths)].tobytes()
        return self._stack[: int(lowest_since[0])] + opened

    def _collect(self, window: bytes, data: bytes, tops: NDArray[np.intp], kinds: NDArray[np.uint8]) -> None:
        """Find wanted members between the commas and colons of the outermost object, and its end."""
        if self._open is not None:
            name, start = self._open
            self._found(name, start, self._at + int(tops[0]))
            self._open = None
        colons = np.flatnonzero(kinds == _COLON)
        if len(colons) > _FEW_MEMBERS and b"\\" not in data:
            colons = self._likely(np.frombuffer(data, np.uint8), tops, colons)
        for number in colons.tolist():
            name = self._name(window, data, int(tops[number]))
            if name not in self._names:
                continue
            start = self._at + int(tops[number]) + 1
            if number + 1 < len(tops):
                self._found(name, start, self._at + int(tops[number + 1]))
            else:
                self._open = name, start

    def _likely(self, codes: NDArray[np.uint8], tops: NDArray[np.intp], colons: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those colons that may follow a wanted name; of very many with the same one, the last and a few."""
        at = tops[colons]
        unclear = _IS_SPACE[codes[at - 1]]
        unclear[0] = True  # its key may be in the slice before, and what is before this one is not here
        kept = [colons[unclear]]
        for name in self._names:
            named = colons[~unclear]
            for back, code in enumerate(b'"%b"' % name.encode()[::-1], start=1):
                named = named[codes[tops[named] - back] == code]
            if len(named) > _FEW_MEMBERS:
                first, last = int(named[_SEVERAL - 1]), int(named[-1])
                self._several(codes[int(tops[first - 1]) + 1 : int(tops[last - 1])].tobytes())
                named = np.concatenate((named[:_SEVERAL], named[-1:]))
            kept.append(named)
        return np.sort(np.concatenate(kept))

    def _name(self, window: bytes, data: bytes, colon: int) -> str:
        end = data.rfind(b'"', 0, colon)
        start = data.rfind(b'"', 0, max(end, 0))
        key = self._key if start < 0 else window[start + 1 : end]
        self._key = b""
        if len(key) > _MOST_KEY_BYTES:
            return ""
        try:
            return _decode_text(b'"%b"' % key) if b"\\" in key else key.decode()
        except UnicodeDecodeError:
            return ""

    def _begin_string(self) -> None:
        is_object = self._stack.endswith(b"{")
        self._is_key = is_object and (self._last == _COMMA or self._before.endswith(b"{"))
        self._verify(b'""', (b":0" if self._is_key else b"") + _closed(self._stack))
        self._in_string = True
        self._key = b""
        self._at += 1

    def _go_on_in_string(self) -> None:
        window = bytes(self._text[self._at : self._at + RUN_BYTES + _SMALLEST])
        data = window.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in window else window
        quote = data.find(b'"')
        if quote >= 0:
            part = window[:quote]
        elif len(window) <= RUN_BYTES:  # the text ends in it
            self._try(_check, b'"%b' % window, self._at - 1)
            raise msgspec.DecodeError("Input data was truncated")
        else:
            part = window[: string_cut(window, RUN_BYTES)]
        self._try(_check, b'"%b"' % part + self._space_after(self._at + len(part)), self._at - 1)
        if self._is_key and len(self._key) <= _MOST_KEY_BYTES:
            self._key += part[: _MOST_KEY_BYTES + 1]
        self._at += len(part)
        if quote >= 0:
            self._at += 1
            self._in_string = False
            if self._is_key:
                self._before = b'{"k"'
                self._last = 0
            else:
                self._end_value()

    def _read_scalar(self, window: bytes) -> None:
        """Read a number or word, or a part of it."""
        end = _SCALAR_END.search(window)
        if end is not None and end.start():
            self._verify(window[: end.start()], _closed(self._stack))
            self._at += end.start()
            self._end_value()
            return
        digits = _TWO_DIGITS.match(window)
        if end is not None or digits is None:
            self._verify(window, b"")
            raise msgspec.DecodeError("Input data was truncated")
        part = window[: digits.end()]
        self._verify(part, _closed(self._stack))
        number = self._before + part if self._is_in_number else part
        exponent, fraction = b"e" in number.lower(), b"." in number
        self._at += len(part)
        self._end_value()
        self._before = self._before_value() + (b"1e1" if exponent else b"1.1" if fraction else b"1")

    def _before_value(self) -> bytes:
        return b"[" if self._stack.endswith(b"[") else b'{"k":'

    def _end_value(self) -> None:
        self._last = 0
        self._before = self._before_value() + b'""'

    def _verify(self, part: bytes, rest: bytes) -> None:
        """Raise an error where a part cannot follow what was read, its place counted from the start of the text."""
        outer = b"".join(b"[" if code == _OPEN_ARRAY else b'{"k":' for code in self._stack[:-1])
        before = outer + self._before
        after = rest + self._space_after(self._at + len(part))
        self._try(_check_object, before + part + after, self._at - len(before))

    def _space_after(self, position: int) -> bytes:
        """Return space in place of what is left: near the end of all, msgspec takes what is wrong for incomplete."""
        return b" " * min(len(self._text) - position, _SMALLEST)

    @staticmethod
    def _try(check: Callable[[bytes], Any], text: bytes, start: int) -> None:
        try:
            check(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(_BYTE.sub(lambda found: f"(byte {int(found[1]) + start})", str(error))) from error


_OPEN_ARRAY = b"["[0]


def _stand_in(window: bytes) -> bytes:
    """Return a short text of the type of one that is no object."""
    if window[:1].isdigit():
        return b"0"
    return {b"[": b"[]", b'"': b'""'}.get(window[:1], window[:_SMALLEST])


def _closed(stack: bytes) -> bytes:
    """Return the brackets that close all that are open."""
    return stack[::-1].translate(_CLOSERS)


def _rest(stack: bytes, last: int) -> bytes:
    """Return what completes the innermost value after this character of structure."""
    if last == _COLON:
        return b"0"
    if last == _COMMA:
        return b'"k":0' if stack.endswith(b"{") else b"0"
    return b""


def _read_part(stack: bytes, last: int) -> bytes:
    """Return what stands for the part of the innermost value up to this character of structure."""
    if not stack:
        return b"{}"
    is_object = stack.endswith(b"{")
    if last == _COLON:
        return b'{"k":'
    if last == _COMMA:
        return b'{"k":0,' if is_object else b"[0,"
    if last in b"[{":
        return bytes((last,))
    return b'{"k":""' if is_object else b'[""'
