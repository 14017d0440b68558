# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of the wire format of Protobuf, for untrusted bytes."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_CONTINUES = 0x80
_LONGEST_VARINT = 10
_MORE_IN_UINT32, _LAST_IN_UINT32 = 4, 0x0F
"""For the longest numbers below 2^32: bytes after the first one, and the maximum of the last byte."""
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def varint(number: int) -> bytes:
    if number < _CONTINUES:
        return number.to_bytes()
    found = bytearray()
    while number >= _CONTINUES:
        found.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    found.append(number)
    return bytes(found)


def part(field: int, value: bytes) -> bytes:
    """Return a field with a string, bytes or a message."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(len(value)) + value


def number(field: int, value: int) -> bytes:
    """Return a field with a number or a boolean."""
    return varint(field << 3 | _VARINT) + varint(value)


class FieldReader:
    """Reads messages with at most `most` fields altogether; each takes a microsecond."""

    def __init__(self, most: int) -> None:
        self._left = most

    def fields(self, message: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Yield number and value of each field; numbers of fixed size are skipped.

        Raises ValueError for a malformed message, for groups, and for too many fields.
        """
        view, at, end = memoryview(message), 0, len(message)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise ValueError("it has too many fields")
            key, at = read_varint(view, at)
            kind = key & 7
            if kind == _VARINT:
                number, at = read_varint(view, at)
                yield key >> 3, number
                continue
            size = _FIXED.get(kind, 0)
            if kind == _LENGTH_DELIMITED:
                size, at = read_varint(view, at)
            elif not size:
                raise ValueError(f"it has a field of the wire type {kind}")
            if size > end - at:
                raise ValueError(f"a field of {size} bytes is cut off")
            if kind == _LENGTH_DELIMITED:
                yield key >> 3, view[at : at + size]
            at += size


def read_varint(view: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number at the index `at`, and the index after it; raises ValueError."""
    found = shift = 0
    for byte in view[at : at + _LONGEST_VARINT]:
        at += 1
        found |= (byte & ~_CONTINUES) << shift
        if byte < _CONTINUES:
            return found, at
        shift += 7
    raise ValueError("a number is cut off")


def count_varints(packed: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(packed, np.uint8) < _CONTINUES))


def read_uint32s(packed: bytes, most: int | None = None) -> NDArray[np.uint32]:
    """Return the packed numbers, or the first `most` of them; raises ValueError for a number of 2^32 or more."""
    data = np.frombuffer(packed, np.uint8)
    if not len(data):
        return data.astype(np.uint32)
    if data[-1] >= _CONTINUES:
        raise ValueError("a number is cut off")
    data = data[: most and most * (1 + _MORE_IN_UINT32)]
    ends = np.flatnonzero(data < _CONTINUES)[:most]
    if not len(ends):
        raise ValueError("a number is not below 2^32")
    at = np.append(0, ends[:-1] + 1)
    more = ends - at  # bytes after the first one
    if more.max() > _MORE_IN_UINT32 or (data[ends[more == _MORE_IN_UINT32]] > _LAST_IN_UINT32).any():
        raise ValueError("a number is not below 2^32")
    low = data & np.uint8(_CONTINUES - 1)
    found: NDArray[np.uint32] = low[at].astype(np.uint32)
    for place in range(1, int(more.max()) + 1):
        at = np.minimum(at + 1, ends)
        part = low[at].astype(np.uint32)
        part[more < place] = 0
        found |= part << np.uint32(7 * place)
    return found
