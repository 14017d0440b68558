# SPDX-License-Identifier: Apache-2.0
"""Records the prompt blocks sent to each slot, up to a limit for each."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

BYTES_PER_ENTRY = 320
"""Most memory of one block recorded for one slot.

Measured with tracemalloc on CPython 3.11 (64 bit): the largest ratio of traced bytes to entries while one slot, or two
that share every block in a pool of 1,000, were kept full by chains of 860 new blocks, each chain touched once more
from a fresh list. Slots of 7,800, 31,250 and 44,000 entries: 219, 239 and 310 bytes alone; 246, 259 and 312 shared. It
covers the block's hash (twice when touched), its place in the slot's order and its row in the shared table; the spread
is the slack of dict tables.
"""


class PrefixIndex:
    """Block hashes by slot, least recently used first, and for each hash a bit mask of the slots that hold it."""

    __slots__ = ("_holders", "_orders")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._orders: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        """Distinct blocks recorded."""
        return len(self._holders)

    def entries(self, slot: int) -> int:
        """Blocks recorded for one slot."""
        return len(self._orders.get(slot, ()))

    def match(self, hashes: Sequence[int], slots: int) -> NDArray[np.int32]:
        """Return, for each of the slots 0 .. slots-1, the number of leading blocks that it holds without a gap."""
        matched = np.zeros(slots, dtype=np.int32)
        if not hashes:
            return matched
        alive = (1 << slots) - 1
        for depth, block in enumerate(hashes):
            still = alive & self._holders.get(block, 0)
            if still != alive:
                if depth:
                    _mark(matched, alive ^ still, depth)
                if not still:
                    return matched
                alive = still
        _mark(matched, alive, len(hashes))
        return matched

    def record(self, slot: int, hashes: Sequence[int], limit: int) -> None:
        """Record the chain as the slot's most recently used, then evict down to `limit` blocks.

        The head of the chain counts as more recent than its tail: like an engine, the index loses tails first.
        """
        order = self._orders.setdefault(slot, {})
        bit = 1 << slot
        for block in reversed(hashes[:limit]):
            if block in order:
                del order[block]
            else:
                self._holders[block] = self._holders.get(block, 0) | bit
            order[block] = None
        excess = len(order) - limit
        if excess > 0:
            # In one pass: the front of such a dict is a run of dead entries, slow to skip.
            for block in list(islice(order, excess)):
                del order[block]
                self._release(block, bit)

    def forget(self, slot: int) -> None:
        """Drop the blocks of a slot."""
        bit = 1 << slot
        for block in self._orders.pop(slot, ()):
            self._release(block, bit)

    def _release(self, block: int, bit: int) -> None:
        held = self._holders[block]
        if held == bit:
            del self._holders[block]
        else:
            self._holders[block] = held ^ bit


def _mark(matched: NDArray[np.int32], mask: int, depth: int) -> None:
    """Write the depth for every slot in the mask."""
    while mask:
        lowest = mask & -mask
        matched[lowest.bit_length() - 1] = depth
        mask ^= lowest
