# SPDX-License-Identifier: Apache-2.0
"""Chains of block hashes as runs, and the lanes that hold each run."""

from array import array
from sys import byteorder

_MOST_AVERAGE = 48
"""Average entries of a bucket above which a bucket is added: a search takes 0.1 microseconds."""
_MOST_SETS_SHARED = 4096
"""Maximum sets of lanes kept as one object for all runs that have them."""


class IntTable:
    """Hash table from 64-bit to 32-bit integers that grows by one bucket at a time (linear hashing).

    No call rehashes the whole table, and an entry takes 12 bytes. Keys are hashes or consecutive numbers.
    """

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
        number = key & self._mask
        if number >= len(self._keys):
            number &= self._mask >> 1
        needle = key.to_bytes(8, byteorder)
        at = self._keys[number].find(needle)
        if at < 0:
            return default
        if at & 7 and (at := _find(self._keys[number], needle, at)) < 0:
            return default
        return self._values[number][at >> 3]

    def put(self, key: int, value: int) -> None:
        number = self._number(key)
        at = _find(self._keys[number], key.to_bytes(8, byteorder))
        if at >= 0:
            self._values[number][at >> 3] = value
        else:
            self._append(number, key, value)

    def add(self, key: int, value: int) -> None:
        """Put a key that is absent."""
        self._append(self._number(key), key, value)

    def increment(self, key: int) -> None:
        """Add one to the value of a key, 0 if it is absent."""
        number = self._number(key)
        at = _find(self._keys[number], key.to_bytes(8, byteorder))
        if at >= 0:
            self._values[number][at >> 3] += 1
        else:
            self._append(number, key, 1)

    def pop(self, key: int, default: int = -1) -> int:
        number = self._number(key)
        keys, values = self._keys[number], self._values[number]
        at = _find(keys, key.to_bytes(8, byteorder)) >> 3
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

    def _append(self, number: int, key: int, value: int) -> None:
        self._keys[number] += key.to_bytes(8, byteorder)
        self._values[number].append(value)
        self._count += 1
        if self._count > _MOST_AVERAGE * len(self._keys):
            self._split()

    def _split(self) -> None:
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


def _find(keys: bytearray, needle: bytes, start: int = 0) -> int:
    """Return the position of a key; negative if absent."""
    at = keys.find(needle, start)
    while at > 0 and at & 7:  # a match across two keys
        at = keys.find(needle, at + 1)
    return at


NONE = -1


class Runs:
    """Runs of block hashes by number; a run is found by the hash of its first block, which covers all blocks before it.

    A block takes 8 bytes, a run about 50 more. The number of a run identifies its end: a split gives a new number to
    the beginning.
    """

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks in all runs."""
        self._by_first = IntTable()
        self._first = array("Q")
        self._rest: list[bytes] = []  # hashes after the first
        self.parents = array("i")
        """The previous run; NONE at the start."""
        self.masks: list[int] = []
        """Lanes that hold the run, as bits."""
        self._free = array("i")
        self._shared: dict[int, int] = {}

    def child(self, parent: int, first: int) -> int:
        """Return the run with this first block after `parent`, which is NONE at the start of a chain; else NONE."""
        run = self._by_first.get(first, NONE)
        return run if run >= 0 and self.parents[run] == parent else NONE

    def size(self, run: int) -> int:
        return 1 + len(self._rest[run]) // 8

    def common(self, run: int, chain: bytes, depth: int) -> int:
        """Return the number of blocks that a chain from `depth` on shares with the run; the first is known to match."""
        rest = self._rest[run]
        begin = 8 * depth + 8
        if chain.startswith(rest, begin):
            return 1 + len(rest) // 8
        theirs = chain[begin : begin + len(rest)]
        if rest.startswith(theirs):
            return 1 + len(theirs) // 8
        low, high = 0, len(theirs) // 8  # equal, not equal
        while high - low > 1:
            middle = (low + high) // 2
            if rest.startswith(theirs[: 8 * middle]):
                low = middle
            else:
                high = middle
        return 1 + low

    def extend(self, parent: int, chain: bytes, depth: int, lane: int) -> tuple[int, bool]:
        """Return the run that continues a chain after `parent`, and whether the lane did not hold it before.

        A missing run is added; a run that the chain shares only in part is split. NONE if another chain has the hash.
        """
        first = int.from_bytes(chain[8 * depth : 8 * depth + 8], byteorder)
        run = self._by_first.get(first, NONE)
        if run < 0:
            run = self._new(parent, first, chain[8 * depth + 8 :], self._interned(1 << lane))
            self._by_first.add(first, run)
            return run, True
        if self.parents[run] != parent:
            return NONE, False
        count = self.common(run, chain, depth)
        if count <= len(self._rest[run]) // 8:
            run = self._split(run, count)
        mask = self.masks[run]
        if mask >> lane & 1:
            return run, False
        self.masks[run] = self._interned(mask | 1 << lane)
        return run, True

    def release(self, run: int, lane: int) -> None:
        """Remove a lane that holds the run, and the run with its last lane."""
        others = self.masks[run] ^ 1 << lane
        if others:
            self.masks[run] = self._interned(others)
            return
        self.blocks -= self.size(run)
        first = self._first[run]
        if self._by_first.get(first) == run:
            self._by_first.pop(first)
        self._rest[run] = b""
        self._free.append(run)

    def cut(self, run: int, count: int, lane: int) -> int:
        """Release all but the first `count` blocks for a lane; return the run of these."""
        if self.masks[run] == 1 << lane:
            self.blocks -= self.size(run) - count
            self._rest[run] = self._rest[run][: 8 * (count - 1)]
            return run
        head = self._split(run, count)
        self.release(run, lane)
        return head

    def _split(self, run: int, count: int) -> int:
        """Split off the first `count` blocks, fewer than all, as a new run, and return it."""
        rest, first = self._rest[run], self._first[run]
        head = self._new(self.parents[run], first, rest[: 8 * (count - 1)], self.masks[run])
        self._by_first.put(first, head)
        self.parents[run] = head
        self._first[run] = first = int.from_bytes(rest[8 * (count - 1) : 8 * count], byteorder)
        self._by_first.put(first, run)
        self._rest[run] = rest[8 * count :]
        self.blocks -= count
        return head

    def _interned(self, mask: int) -> int:
        """Return one object for equal sets of lanes: in a large pool a set takes more memory than a run."""
        if len(self._shared) >= _MOST_SETS_SHARED:
            self._shared.clear()
        return self._shared.setdefault(mask, mask)

    def _new(self, parent: int, first: int, rest: bytes, mask: int) -> int:
        """Add a run that is not found by its first block yet."""
        if self._free:
            run = self._free.pop()
        else:
            run = len(self._rest)
            self._first.append(0)
            self._rest.append(b"")
            self.parents.append(NONE)
            self.masks.append(0)
        self._rest[run], self.parents[run], self.masks[run], self._first[run] = rest, parent, mask, first
        self.blocks += 1 + len(rest) // 8
        return run
