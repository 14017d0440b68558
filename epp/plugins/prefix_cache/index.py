# SPDX-License-Identifier: Apache-2.0
"""Index of the prompt blocks sent to each slot, up to a limit for each slot."""

import sys
from array import array

import numpy as np
from numpy.typing import NDArray

from epp.plugins.prefix_cache.runs import NONE, IntTable, Runs

BYTES_PER_ENTRY = 64
"""Maximum memory of one block recorded for one slot; measured on CPython 3.11 (64 bit), chains take 31 to 62 bytes.

One case takes more, 65 bytes: every two of 1,000 slots share a separate chain of two blocks, as a set of slots takes
one bit for each slot of the pool.
"""

_MOST_EVICTED = 512
"""Maximum blocks evicted by one record beyond those it adds, if the limit was lowered; each takes two microseconds."""
_RUNS_CLEANED = 16
"""Runs of forgotten slots dropped by each record: more than it adds."""
_SLACK = 64
"""Records kept in addition to twice the number of distinct ones."""
_RECORDS_SCANNED = 16
"""Records checked for duplicates by each new record."""
_RECORDS_SEARCHED = 256
"""Number of latest records that `withdraw()` searches."""
_MOST_SETS = 64
"""Maximum sets of lanes whose slots are cached."""


class _Lane:
    """The blocks of one slot, until they are dropped; its number is a bit in masks."""

    __slots__ = ("blocks", "front", "head", "is_forgotten", "number", "records", "scan_at", "scanned")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks = 0
        self.records = array("i")
        """The last run of each recorded chain, in order, or NONE for a duplicate; valid from index `head`."""
        self.head = 0
        self.front = NONE
        """The last run of the oldest chain, if it was partly evicted."""
        self.scan_at = _SLACK
        """Number of records at which duplicates are dropped."""
        self.scanned = 0
        """Index after the last record to check for duplicates; these are dropped newest first."""
        self.is_forgotten = False


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
        self._to_scan: dict[_Lane, None] = {}
        """Lanes with many records, in scan order."""
        self._scan: _Lane | None = None
        self._seen: set[int] = set()
        """The lane whose records are checked, and the runs of those checked."""
        self._extra = IntTable()
        """Number of references beyond the first, if any, by lane and run."""

    def __len__(self) -> int:
        """Return the number of distinct blocks."""
        return self._runs.blocks

    def entries(self, slot: int) -> int:
        return self._lanes[slot].blocks if slot in self._lanes else 0

    def match(self, hashes: "array[int]", slots: int) -> NDArray[np.int32]:
        """Return, for each of the slots 0 .. slots-1, the number of leading blocks that it holds."""
        matched = np.zeros(slots, dtype=np.int32)
        runs, alive, depth, count = self._runs, self._live, 0, len(hashes)
        run = runs.child(NONE, hashes[0]) if count else NONE
        chain = hashes.tobytes() if run >= 0 else b""
        while run >= 0 and alive:
            still = alive & runs.masks[run]
            if depth and still != alive:
                self._mark(matched, alive, depth)
            alive = still
            common = runs.common(run, chain, depth)
            depth += common
            if depth == count or common < runs.size(run):
                break
            run = runs.child(run, hashes[depth])
        if depth and alive:
            self._mark(matched, alive, depth)
        return matched

    def record(self, slot: int, hashes: "array[int]", limit: int) -> None:
        """Record the chain as the slot's most recently used, then evict down to `limit` blocks.

        The head of the chain counts as more recent than its tail: like an engine, the index loses tails first. If the
        limit was lowered by much, later records complete the eviction.
        """
        if self._forgotten:
            self._clean()
        if self._to_scan:
            self._scan_records()
        lane = self._lanes.get(slot) or self._new_lane(slot)
        before = lane.blocks
        self._record(lane, hashes.tobytes()[: 8 * limit])
        if lane.blocks > limit:
            self._evict(lane, min(lane.blocks - limit, lane.blocks - before + _MOST_EVICTED))

    def withdraw(self, slot: int, hashes: "array[int]") -> None:
        """Remove the last record of a chain, and drop the blocks that are in no other chain of the slot.

        Only the latest records are searched. Nothing changes if the chain was partly evicted.
        """
        lane, runs = self._lanes.get(slot), self._runs
        run, last, depth, chain = NONE, NONE, 0, hashes.tobytes()
        while lane is not None and 8 * depth < len(chain):
            run = runs.child(last, hashes[depth])
            if run < 0 or not runs.masks[run] >> lane.number & 1:
                return
            common = runs.common(run, chain, depth)
            depth += common
            if common < runs.size(run):
                return
            last = run
        if lane is None or last < 0:
            return
        oldest = max(lane.head, len(lane.records) - _RECORDS_SEARCHED)
        for at in range(len(lane.records) - 1, oldest - 1, -1):
            if lane.records[at] == last:
                lane.records[at] = NONE
                if self._scan is lane:
                    self._seen.discard(last)
                self._evict_tail(lane, last, sys.maxsize)
                return

    def forget(self, *slots: int) -> None:
        """Drop the blocks of slots; later records free their memory in steps."""
        for slot in self._lanes.keys() & slots:
            lane = self._lanes.pop(slot)
            self._live ^= 1 << lane.number
            self._forgotten.append(lane)
            lane.is_forgotten = True

    def _record(self, lane: _Lane, chain: bytes) -> None:
        """Add a chain to the lane: it holds the runs, and a record refers to the last run."""
        runs, depth, before, held = self._runs, 0, NONE, True
        while 8 * depth < len(chain):
            run, is_new = runs.extend(before, chain, depth, lane.number)
            if run < 0:
                break
            size = runs.size(run)
            if is_new:
                lane.blocks += size
                if held and before >= 0:
                    self._extra.increment(lane.number << 32 | before)
            depth, before, held = depth + size, run, not is_new
        if before < 0 or (held and lane.records and lane.records[-1] == before):
            return
        if held:
            self._extra.increment(lane.number << 32 | before)
        lane.records.append(before)
        if len(lane.records) - lane.head > lane.scan_at:
            self._to_scan[lane] = None

    def _evict(self, lane: _Lane, excess: int) -> None:
        """Drop the least recently used blocks."""
        while excess > 0:
            run, lane.front = lane.front, NONE
            if run < 0:
                if lane.head == len(lane.records):
                    break  # hashes collided
                run = lane.records[lane.head]
                lane.head += 1
            excess = self._evict_tail(lane, run, excess)
        if 2 * lane.head > len(lane.records) + _SLACK:
            lane.scanned -= lane.head
            del lane.records[: lane.head]
            lane.head = 0

    def _evict_tail(self, lane: _Lane, run: int, excess: int) -> int:
        """Remove a reference to a run, drop blocks without references, and return the excess that remains."""
        runs = self._runs
        while run >= 0 and not self._drop_reference(lane, run):
            if not excess:
                lane.front = run
                break
            size = runs.size(run)
            if size > excess:
                lane.front = runs.cut(run, size - excess, lane.number)
                lane.blocks -= excess
                return 0
            parent = runs.parents[run]
            runs.release(run, lane.number)
            lane.blocks -= size
            excess -= size
            run = parent
        return excess

    def _drop_reference(self, lane: _Lane, run: int) -> bool:
        """Remove a reference; return false if it is the only one, which stays."""
        key = lane.number << 32 | run
        extra = self._extra.get(key, 0)
        if extra > 1:
            self._extra.put(key, extra - 1)
        elif extra:
            self._extra.pop(key)
        return extra > 0

    def _scan_records(self) -> None:
        """Check a few records of a lane with many records, and drop duplicates."""
        if self._scan is None:
            self._scan = next(iter(self._to_scan))
            self._scan.scanned = len(self._scan.records)
        lane = self._scan
        if lane.is_forgotten or lane.scanned <= lane.head:
            self._end_scan(lane)
            return
        least = max(lane.head, lane.scanned - _RECORDS_SCANNED)
        for at in range(lane.scanned - 1, least - 1, -1):
            run = lane.records[at]
            if run < 0:
                continue
            if run in self._seen:
                self._drop_reference(lane, run)
                lane.records[at] = NONE
            else:
                self._seen.add(run)
        lane.scanned = least

    def _end_scan(self, lane: _Lane) -> None:
        self._scan, self._seen = None, set()
        del self._to_scan[lane]
        if not lane.is_forgotten:
            records = np.frombuffer(lane.records, dtype=np.intc)[lane.head :]
            lane.records = array("i", records[records != NONE].tobytes())
            lane.head = 0
            lane.scan_at = 2 * len(lane.records) + _SLACK

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
            size = len(lane.records) - lane.head
            if lane.front < 0 and not size:
                self._free.append(lane.number)
                self._forgotten.pop()
                if not self._forgotten:
                    break
                continue
            run, lane.front = lane.front, NONE
            if run < 0:
                run = lane.records[lane.head]
                lane.head += 1
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
