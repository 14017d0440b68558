# SPDX-License-Identifier: Apache-2.0
"""Chains of block hashes as runs, and the sets of slots that hold them."""

from array import array
from sys import byteorder

_MOST_AVERAGE = 48
"""Average entries of a bucket above which a bucket is added: a search takes 0.1 microseconds."""


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
        """Split a bucket in two."""
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
    while at > 0 and at & 7:  # a match across two keys
        at = keys.find(needle, at + 1)
    return at >> 3


class LaneSets:
    """Sets of lanes by code: a single lane is its own code, a larger set has a negative one.

    Codes are counted references: methods that take a code consume one use, methods that return a code add one.
    """

    __slots__ = ("_codes", "_free", "_masks", "_uses")

    def __init__(self) -> None:
        self._masks: list[int] = []
        self._uses: list[int] = []
        self._codes: dict[int, int] = {}
        self._free: list[int] = []

    def mask(self, code: int) -> int:
        """Return a set as bits."""
        return 1 << code if code >= 0 else self._masks[~code]

    def share(self, code: int) -> int:
        """Add a use of the code, and return it."""
        if code < 0:
            self._uses[~code] += 1
        return code

    def with_lane(self, code: int, lane: int) -> int:
        """Return the code of the set with one more lane."""
        return self._replaced(code, self.mask(code) | 1 << lane)

    def without_lane(self, code: int, lane: int) -> int:
        """Return the code of the set without a lane; the set has other lanes."""
        return self._replaced(code, self.mask(code) ^ 1 << lane)

    def _replaced(self, code: int, mask: int) -> int:
        other = self._code_of(mask)
        if code < 0:
            self._uses[~code] -= 1
            if not self._uses[~code]:
                del self._codes[self._masks[~code]]
                self._masks[~code] = 0
                self._free.append(~code)
        return other

    def _code_of(self, mask: int) -> int:
        if not mask & (mask - 1):
            return mask.bit_length() - 1
        code = self._codes.get(mask)
        if code is not None:
            self._uses[~code] += 1
            return code
        if self._free:
            number = self._free.pop()
            self._masks[number], self._uses[number] = mask, 1
        else:
            number = len(self._masks)
            self._masks.append(mask)
            self._uses.append(1)
        self._codes[mask] = ~number
        return ~number


NONE = -1


class Runs:
    """Runs of block hashes by number; a run is found by the hash of its first block, which covers all blocks before it.

    A block takes 8 bytes, a run about 50 more. The number of a run identifies its end: a split gives a new number to
    the beginning.
    """

    __slots__ = ("_by_first", "_codes", "_first", "_free", "_lane_sets", "_parents", "_rest", "blocks")

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks in all runs."""
        self._by_first = IntTable()
        self._first = array("Q")
        self._rest: list[bytes] = []  # hashes after the first
        self._parents = array("i")
        self._codes = array("i")
        self._free = array("i")
        self._lane_sets = LaneSets()

    def child(self, parent: int, first: int) -> int:
        """Return the run with this first block after `parent`, which is NONE at the start of a chain; else NONE."""
        run = self._by_first.get(first, NONE)
        return run if run >= 0 and self._parents[run] == parent else NONE

    def parent(self, run: int) -> int:
        """Return the previous run; NONE at the start."""
        return self._parents[run]

    def size(self, run: int) -> int:
        """Return the number of blocks."""
        return 1 + len(self._rest[run]) // 8

    def common(self, run: int, chain: bytes, depth: int) -> int:
        """Return the number of blocks that a chain from `depth` on shares with the run; the first is known to match."""
        rest = self._rest[run]
        begin = 8 * depth + 8
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

    def mask(self, run: int) -> int:
        """Return the lanes that hold a run, as bits."""
        return self._lane_sets.mask(self._codes[run])

    def reach(self, parent: int, chain: bytes, depth: int, lane: int) -> tuple[int, bool]:
        """Return the run that continues a chain after `parent`, and whether the lane did not hold it before.

        A missing run is added; a run that the chain shares only in part is split. NONE if another chain has the hash.
        """
        first = int.from_bytes(chain[8 * depth : 8 * depth + 8], byteorder)
        run = self._by_first.get(first, NONE)
        if run < 0:
            return self._new(parent, first, chain[8 * depth + 8 :], lane), True
        if self._parents[run] != parent:
            return NONE, False
        count = self.common(run, chain, depth)
        if count < self.size(run):
            run = self._split(run, count)
        code = self._codes[run]
        if code == lane or self._lane_sets.mask(code) >> lane & 1:
            return run, False
        self._codes[run] = self._lane_sets.with_lane(code, lane)
        return run, True

    def release(self, run: int, lane: int) -> None:
        """Remove a lane that holds the run, and the run with its last lane."""
        if self._codes[run] != lane:
            self._codes[run] = self._lane_sets.without_lane(self._codes[run], lane)
            return
        self.blocks -= self.size(run)
        first = self._first[run]
        if self._by_first.get(first) == run:
            self._by_first.pop(first)
        self._rest[run] = b""
        self._free.append(run)

    def cut(self, run: int, count: int, lane: int) -> int:
        """Release all but the first `count` blocks for a lane; return the run of these."""
        if self._codes[run] == lane:
            self.blocks -= self.size(run) - count
            self._rest[run] = self._rest[run][: 8 * (count - 1)]
            return run
        head = self._split(run, count)
        self.release(run, lane)
        return head

    def _split(self, run: int, count: int) -> int:
        """Split off the first `count` blocks, fewer than all, as a new run, and return it."""
        rest = self._rest[run]
        code = self._lane_sets.share(self._codes[run])
        head = self._new(self._parents[run], self._first[run], rest[: 8 * (count - 1)], code)
        self._parents[run] = head
        self._set_first(run, int.from_bytes(rest[8 * (count - 1) : 8 * count], byteorder))
        self._rest[run] = rest[8 * count :]
        self.blocks -= count
        return head

    def _new(self, parent: int, first: int, rest: bytes, code: int) -> int:
        if self._free:
            run = self._free.pop()
            self._rest[run] = rest
            self._parents[run] = parent
            self._codes[run] = code
        else:
            run = len(self._rest)
            self._first.append(0)
            self._rest.append(rest)
            self._parents.append(parent)
            self._codes.append(code)
        self._set_first(run, first)
        self.blocks += 1 + len(rest) // 8
        return run

    def _set_first(self, run: int, first: int) -> None:
        self._first[run] = first
        self._by_first.put(first, run)
