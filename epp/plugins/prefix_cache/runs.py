# SPDX-License-Identifier: Apache-2.0
"""Chains of block hashes as runs, and the lanes that hold each run."""

from sys import byteorder

import msgspec

_TABLES = 64
"""Dictionaries of runs: the event loop waits while one grows, and one of all runs would take 40 milliseconds."""
_MOST_SETS_SHARED = 4096
"""Maximum sets of lanes kept as one object for all runs that have them."""


class Run(msgspec.Struct, eq=False, gc=False):
    """Consecutive blocks of a chain. The object identifies its last block: a split makes a new object of the beginning.

    A run refers only to the run before it, so that no garbage collection is necessary.
    """

    parent: "Run | None"
    """The previous run; None at the start."""
    first: int
    """Hash of the first block, which covers all blocks before it."""
    rest: bytes
    """Hashes after the first, 8 bytes each."""
    mask: int
    """Lanes that hold the run, as bits."""

    def __len__(self) -> int:
        """Return the number of blocks."""
        return 1 + len(self.rest) // 8

    def common(self, chain: bytes, depth: int) -> int:
        """Return the number of blocks that a chain from `depth` on shares with the run; the first is known to match."""
        begin = 8 * depth + 8
        if chain.startswith(self.rest, begin):
            return len(self)
        theirs = chain[begin : begin + len(self.rest)]
        if self.rest.startswith(theirs):
            return 1 + len(theirs) // 8
        differing = int.from_bytes(theirs, "little") ^ int.from_bytes(self.rest[: len(theirs)], "little")
        lowest_bit = (differing & -differing).bit_length() - 1
        return 1 + lowest_bit // 64


class Runs:
    """Runs by the hash of their first block. A block takes 8 bytes, a run about 200 more."""

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks in all runs."""
        self._tables: tuple[dict[int, Run], ...] = tuple({} for _ in range(_TABLES))
        self._shared: dict[int, int] = {}

    def child(self, parent: Run | None, first: int) -> Run | None:
        """Return the run with this first block after `parent`, which is None at the start of a chain."""
        run = self._tables[first % _TABLES].get(first)
        return run if run is not None and run.parent is parent else None

    def extend(self, parent: Run | None, chain: bytes, depth: int, lane: int) -> tuple[Run | None, bool]:
        """Return the run that continues a chain after `parent`, and whether the lane did not hold it before.

        A missing run is added; a run that the chain shares only in part is split. None if another chain has the hash.
        """
        first = int.from_bytes(chain[8 * depth : 8 * depth + 8], byteorder)
        run = self._tables[first % _TABLES].get(first)
        if run is None:
            run = Run(parent, first, chain[8 * depth + 8 :], self._interned(1 << lane))
            self._put(run)
            self.blocks += len(run)
            return run, True
        if run.parent is not parent:
            return None, False
        count = run.common(chain, depth)
        if count < len(run):
            run = self._split(run, count)
        if run.mask >> lane & 1:
            return run, False
        run.mask = self._interned(run.mask | 1 << lane)
        return run, True

    def release(self, run: Run, lane: int) -> None:
        """Remove a lane that holds the run, and the run with its last lane."""
        others = run.mask ^ 1 << lane
        run.mask = self._interned(others)
        if others:
            return
        self.blocks -= len(run)
        table = self._tables[run.first % _TABLES]
        if table.get(run.first) is run:
            del table[run.first]

    def cut(self, run: Run, count: int, lane: int) -> Run:
        """Release all but the first `count` blocks for a lane; return the run of these."""
        if run.mask == 1 << lane:
            self.blocks -= len(run) - count
            run.rest = run.rest[: 8 * (count - 1)]
            return run
        head = self._split(run, count)
        self.release(run, lane)
        return head

    def _split(self, run: Run, count: int) -> Run:
        """Split off the first `count` blocks, fewer than all, as a new run, and return it."""
        before, first, rest = run.rest[: 8 * (count - 1)], run.rest[8 * (count - 1) : 8 * count], run.rest[8 * count :]
        head = Run(run.parent, run.first, before, run.mask)
        run.parent, run.first, run.rest = head, int.from_bytes(first, byteorder), rest
        self._put(head)
        self._put(run)
        return head

    def _put(self, run: Run) -> None:
        self._tables[run.first % _TABLES][run.first] = run

    def _interned(self, mask: int) -> int:
        """Return one object for equal sets of lanes: in a large pool a set takes more memory than a run."""
        if len(self._shared) >= _MOST_SETS_SHARED:
            self._shared.clear()
        return self._shared.setdefault(mask, mask)
