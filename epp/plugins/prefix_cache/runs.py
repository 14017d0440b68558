# SPDX-License-Identifier: Apache-2.0
"""A tree of chains of blocks: blocks that follow each other, and are held by the same lanes, are one run."""

from array import array
from sys import byteorder

from epp.plugins.prefix_cache.holders import Holders
from epp.plugins.prefix_cache.int_table import IntTable

NONE = -1


class Runs:
    """Runs by number. What a run begins with is found by hash; equal hashes mean equal chains up to there.

    A block takes 8 bytes, a run about 50 more. The number of a run stands for its end: a split gives the beginning
    another number.
    """

    __slots__ = ("_by_first", "_codes", "_first", "_free", "_holders", "_parents", "_rest", "blocks")

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks in all runs."""
        self._by_first = IntTable()
        self._first = array("Q")
        self._rest: list[bytes] = []  # the hashes after the first
        self._parents = array("i")
        self._codes = array("i")
        self._free = array("i")
        self._holders = Holders()

    def child(self, parent: int, first: int) -> int:
        """Return the run with this first block after another run, or NONE as at the start; NONE if there is none."""
        run = self._by_first.get(first, NONE)
        return run if run >= 0 and self._parents[run] == parent else NONE

    def parent(self, run: int) -> int:
        """Return the run before; NONE at the start."""
        return self._parents[run]

    def size(self, run: int) -> int:
        """Return the number of blocks."""
        return 1 + len(self._rest[run]) // 8

    def common(self, run: int, chain: bytes, depth: int) -> int:
        """Return how many blocks a chain has in common with the run from a depth on; the first one is known to be."""
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
        return self._holders.mask(self._codes[run])

    def reach(self, parent: int, chain: bytes, depth: int, lane: int) -> tuple[int, bool]:
        """Return the run with which a chain goes on after another, and whether the lane holds it only now.

        One that the chain leaves on the way is split, one that does not exist added. NONE where another chain has
        the same hash.
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
        if code == lane or self._holders.mask(code) >> lane & 1:
            return run, False
        self._codes[run] = self._holders.plus(code, lane)
        return run, True

    def release(self, run: int, lane: int) -> None:
        """Remove a lane that holds the run; without any it is gone."""
        if self._codes[run] != lane:
            self._codes[run] = self._holders.minus(self._codes[run], lane)
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
        """Make the first `count` blocks, fewer than all, a run of their own, and return it."""
        rest = self._rest[run]
        code = self._holders.again(self._codes[run])
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
