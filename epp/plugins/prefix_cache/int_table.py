# SPDX-License-Identifier: Apache-2.0
"""A table of 64-bit keys and 32-bit values in about 16 bytes an entry: a dict of ints takes 100."""

from array import array
from sys import byteorder

_MOST_AVERAGE = 48
"""Entries in a bucket at which another one is added: a search through 8 bytes each, which takes 0.1 microseconds."""


class IntTable:
    """Linear hashing: it grows by one bucket at a time, so that no call takes long. Keys are hashes, or run on."""

    __slots__ = ("_count", "_keys", "_mask", "_values")

    def __init__(self) -> None:
        self._count = 0
        self._mask = 0
        """The least 2^n - 1 with a bit for every bucket number."""
        self._keys = [bytearray()]
        self._values = [array("i")]

    def __len__(self) -> int:
        return self._count

    def get(self, key: int, default: int = -1) -> int:
        """Return the value of a key."""
        number = key & self._mask
        if number >= len(self._keys):
            number &= self._mask >> 1
        at = _find(self._keys[number], key.to_bytes(8, byteorder))
        return default if at < 0 else self._values[number][at]

    def put(self, key: int, value: int) -> None:
        """Set the value of a key."""
        number = self._number(key)
        needle = key.to_bytes(8, byteorder)
        at = _find(self._keys[number], needle)
        if at >= 0:
            self._values[number][at] = value
            return
        self._keys[number] += needle
        self._values[number].append(value)
        self._count += 1
        if self._count > _MOST_AVERAGE * len(self._keys):
            self._split()

    def pop(self, key: int, default: int = -1) -> int:
        """Remove a key and return its value."""
        number = self._number(key)
        keys, values = self._keys[number], self._values[number]
        at = _find(keys, key.to_bytes(8, byteorder))
        if at < 0:
            return default
        found = values[at]
        last = values.pop()
        if at < len(values):
            values[at] = last
            keys[8 * at : 8 * at + 8] = keys[-8:]
        del keys[-8:]
        self._count -= 1
        return found

    def _number(self, key: int) -> int:
        number = key & self._mask
        return number if number < len(self._keys) else number & (self._mask >> 1)

    def _split(self) -> None:
        """Add a bucket, and share out the entries of the one that it is split from."""
        added = len(self._keys)
        if added > self._mask:
            self._mask = 2 * self._mask + 1
        source = added & (self._mask >> 1)
        keys, values = memoryview(self._keys[source]).cast("Q"), self._values[source]
        shared = ((bytearray(), array("i")), (bytearray(), array("i")))
        for key, value in zip(keys, values, strict=True):
            its_keys, its_values = shared[key & self._mask == added]
            its_keys += key.to_bytes(8, byteorder)
            its_values.append(value)
        (self._keys[source], self._values[source]), (last_keys, last_values) = shared
        self._keys.append(last_keys)
        self._values.append(last_values)


def _find(keys: bytearray, needle: bytes) -> int:
    """Return the number of the entry; negative for none."""
    at = keys.find(needle)
    while at > 0 and at & 7:  # across two keys
        at = keys.find(needle, at + 1)
    return at >> 3
