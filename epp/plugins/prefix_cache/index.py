# SPDX-License-Identifier: Apache-2.0
"""Index of the prompt blocks sent to each slot, up to a limit for each slot."""

import sys
from array import array
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from epp.plugins.prefix_cache.runs import Run, Runs

BYTES_PER_ENTRY = 320
"""Maximum memory of one block recorded for one slot, on CPython 3.11 (64 bit): that of a chain of one block.

The blocks of longer chains take less: 45 to 65 bytes in conversations with turns of 8 blocks, 12 to 16 bytes in chains
of 100.
"""

_LONGEST_CHAIN = 16_384
"""Maximum blocks of a chain that are recorded. CPython frees runs that refer to each other by recursion, and the stack
ends between 32,768 and 200,000 of them."""
_MOST_EVICTED = 512
"""Maximum blocks evicted by one record beyond those it adds, if the limit was lowered; each takes two microseconds."""
_RUNS_CLEANED = 16
"""Runs of forgotten slots dropped by each record: more than it adds."""
_ENDS_LISTED = 64
"""Chains listed for eviction at once: the first key of a dictionary is found slowly after others before it are gone."""
_MOST_SETS = 64
"""Maximum sets of lanes whose slots are cached."""


class _Lane:
    """The blocks of one slot, until they are dropped; its number is a bit in masks."""

    __slots__ = ("blocks", "ends", "extra", "number", "oldest")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks = 0
        self.ends: dict[Run, None] = {}
        """The last run of each recorded chain, least recently used first; the order of those in `oldest` is there."""
        self.oldest: list[Run] = []
        """Those of `ends` that are evicted next, in reverse order."""
        self.extra: dict[Run, int] = {}
        """Number of references beyond the first, if any, by run."""

    def add_end(self, run: Run) -> bool:
        """Make a run the most recently used last run of a chain; return whether it is a new one."""
        is_new = not self.remove_end(run)
        self.ends[run] = None
        return is_new

    def remove_end(self, run: Run) -> bool:
        """Make a run no longer the last run of a chain; return whether it was one."""
        if run not in self.ends:
            return False
        del self.ends[run]
        if run in self.oldest:
            self.oldest.remove(run)
        return True

    def add_oldest_end(self, run: Run) -> None:
        """Make a run the least recently used last run of a chain."""
        self.ends[run] = None
        self.oldest.append(run)

    def pop_oldest_end(self) -> Run | None:
        """Remove and return the last run of the least recently used chain; None if there are no chains."""
        if not self.oldest:
            self.oldest = list(islice(self.ends, _ENDS_LISTED))[::-1]
        if not self.oldest:
            return None
        run = self.oldest.pop()
        del self.ends[run]
        return run

    def refer(self, run: Run) -> None:
        """Add a reference to a run that has one."""
        self.extra[run] = self.extra.get(run, 0) + 1

    def drop_reference(self, run: Run) -> bool:
        """Remove a reference; return false if it is the only one, which stays."""
        extra = self.extra.pop(run, 0)
        if extra > 1:
            self.extra[run] = extra - 1
        return extra > 0


class PrefixIndex:
    """Chains of block hashes by slot, least recently used first.

    A slot that holds a block holds all earlier blocks of the chain. Recording a chain makes its blocks the most
    recently used blocks of the slot, with the first block first. The least recently used block is therefore the last
    block of the oldest record, unless something refers to it: a newer record that ends with the same run, or a
    following run.
    """

    def __init__(self) -> None:
        self._runs = Runs()
        self._lanes: dict[int, _Lane] = {}
        self._live = 0
        """Numbers of the lanes in use, as bits."""
        self._slots = np.zeros(0, dtype=np.intp)
        """Slot of each lane number."""
        self._members: dict[int, tuple[NDArray[np.intp], int]] = {}
        """Slots of sets of lanes, and the highest slot of each set."""
        self._free: list[int] = []
        self._forgotten: list[_Lane] = []

    def __len__(self) -> int:
        """Return the number of distinct blocks."""
        return self._runs.blocks

    def entries(self, slot: int) -> int:
        return self._lanes[slot].blocks if slot in self._lanes else 0

    def match(self, hashes: "array[int]", slots: int) -> NDArray[np.int32]:
        """Return, for each of the slots 0 .. slots-1, the number of leading blocks that it holds."""
        matched = np.zeros(slots, dtype=np.int32)
        runs, alive, depth, count = self._runs, self._live, 0, len(hashes)
        run = runs.child(None, hashes[0]) if count else None
        chain = b"" if run is None else hashes.tobytes()
        while run is not None and alive:
            still = alive & run.mask
            if depth and still != alive:
                self._mark(matched, alive, depth)
            alive = still
            common = run.common(chain, depth)
            depth += common
            if depth == count or common < len(run):
                break
            run = runs.child(run, hashes[depth])
        if depth and alive:
            self._mark(matched, alive, depth)
        return matched

    def record(self, slot: int, hashes: "array[int]", limit: int) -> None:
        """Record the chain as the slot's most recently used, then evict down to `limit` blocks.

        Only the first 16,384 blocks of a longer chain are recorded.
        The head of the chain counts as more recent than its tail: like an engine, the index loses tails first. If the
        limit was lowered by much, later records complete the eviction.
        """
        if self._forgotten:
            self._clean()
        lane = self._lanes.get(slot) or self._new_lane(slot)
        before = lane.blocks
        self._record(lane, hashes.tobytes()[: 8 * min(limit, _LONGEST_CHAIN)])
        if lane.blocks > limit:
            self._evict(lane, min(lane.blocks - limit, lane.blocks - before + _MOST_EVICTED))

    def withdraw(self, slot: int, hashes: "array[int]") -> None:
        """Remove the record of a chain, and drop the blocks that are in no other chain of the slot.

        Nothing changes if the chain was partly evicted.
        """
        lane = self._lanes.get(slot)
        if lane is None:
            return
        last: Run | None = None
        depth, chain = 0, hashes.tobytes()
        while 8 * depth < len(chain):
            run = self._runs.child(last, hashes[depth])
            if run is None or not run.mask >> lane.number & 1 or run.common(chain, depth) < len(run):
                return
            depth, last = depth + len(run), run
        if last is not None and lane.remove_end(last):
            self._evict_tail(lane, last, sys.maxsize)

    def forget(self, *slots: int) -> None:
        """Drop the blocks of slots; later records free their memory in steps."""
        for slot in self._lanes.keys() & slots:
            lane = self._lanes.pop(slot)
            self._live ^= 1 << lane.number
            self._forgotten.append(lane)

    def _record(self, lane: _Lane, chain: bytes) -> None:
        """Add a chain to the lane: the lane holds its runs, and the last run becomes the most recent last run."""
        last: Run | None = None
        depth, is_held = 0, True
        while 8 * depth < len(chain):
            run, is_new = self._runs.extend(last, chain, depth, lane.number)
            if run is None:
                break
            if is_new:
                lane.blocks += len(run)
                if is_held and last is not None:
                    lane.refer(last)
            depth, last, is_held = depth + len(run), run, not is_new
        if last is not None and lane.add_end(last) and is_held:
            lane.refer(last)

    def _evict(self, lane: _Lane, excess: int) -> None:
        """Drop the least recently used blocks."""
        while excess > 0 and (run := lane.pop_oldest_end()) is not None:  # there may be none if hashes collided
            excess = self._evict_tail(lane, run, excess)

    def _evict_tail(self, lane: _Lane, run: Run | None, excess: int) -> int:
        """Remove a reference to a run, drop blocks without references, and return the excess that remains."""
        while run is not None and not lane.drop_reference(run):
            size = len(run)
            if size > excess:
                end = self._runs.cut(run, size - excess, lane.number) if excess else run
                lane.add_oldest_end(end)
                lane.blocks -= excess
                return 0
            self._runs.release(run, lane.number)
            lane.blocks -= size
            excess -= size
            run = run.parent
        return excess

    def _new_lane(self, slot: int) -> _Lane:
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._slots)
            self._slots = np.append(self._slots, 0)
        self._slots[number] = slot
        self._members.clear()
        self._live |= 1 << number
        lane = self._lanes[slot] = _Lane(number)
        return lane

    def _clean(self) -> None:
        """Drop a few runs of forgotten slots."""
        for _ in range(_RUNS_CLEANED):
            lane = self._forgotten[-1]
            run = lane.pop_oldest_end()
            if run is None:
                self._free.append(lane.number)
                self._forgotten.pop()
                if not self._forgotten:
                    break
                continue
            self._evict_tail(lane, run, sys.maxsize)

    def _mark(self, matched: NDArray[np.int32], mask: int, depth: int) -> None:
        """Write the depth for every slot of the lanes in the mask."""
        if not mask & (mask - 1):
            slot = self._slots.item(mask.bit_length() - 1)
            if slot < len(matched):
                matched[slot] = depth
            return
        slots, greatest = self._members.get(mask) or self._slots_in(mask)
        matched[slots if greatest < len(matched) else slots[slots < len(matched)]] = depth

    def _slots_in(self, mask: int) -> tuple[NDArray[np.intp], int]:
        """Return the slots of a set of lanes, cached because lookups use the same sets repeatedly."""
        bits = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
        slots = self._slots[np.unpackbits(bits, bitorder="little").nonzero()[0]]
        if len(self._members) >= _MOST_SETS:
            self._members.clear()
        found = self._members[mask] = slots, int(slots.max())
        return found
