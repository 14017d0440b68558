# SPDX-License-Identifier: Apache-2.0
"""The KV cache: reference-counted blocks; full ones are found by the hash of their prefix."""

from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

BlockHash: TypeAlias = bytes | int
"""The hash of a block and all before it."""


class KVCache:
    """`num_blocks` blocks, each free, held by one owner or shared by several.

    A free block keeps its content until it is taken again, least recently freed first; the blocks of one owner are
    freed last block first, because a prefix is worth more than the blocks after it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._tables: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks without an owner, those with content included."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks held by at least one owner; free blocks with content are not among them."""
        return self._num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """The used share of the cache, 0..1."""
        return self.used_blocks / self._num_blocks

    @property
    def hashes(self) -> AbstractSet[BlockHash]:
        """Prefix hashes of the blocks that can be found."""
        return self._block_of.keys()

    def blocks_of(self, owner: int) -> tuple[int, ...]:
        """Return the numbers of the blocks that `owner` holds, in order; `KeyError` for an unknown owner."""
        return tuple(self._tables[owner])

    def admit(self, owner: int, *, prefix: Sequence[BlockHash], blocks: int) -> int | None:
        """Give `owner` its first blocks, sharing those of its prefix that are cached.

        `prefix` are the chained hashes that may be shared (at most `blocks`). Returns the number of leading ones that
        were found; None, with nothing changed, when the blocks do not fit. `ValueError` for a known owner.
        """
        if owner in self._tables:
            raise ValueError(f"owner {owner} is in the cache already; release it first")
        hits = self._cached(prefix)
        if blocks - sum(1 for block in hits if self._references[block]) > len(self._free):
            return None
        for block in hits:
            self._references[block] += 1
            self._free.pop(block, None)
        found = len(hits)
        self._tables[owner] = hits
        self.grow(owner, blocks)
        return found

    def matched(self, prefix: Sequence[BlockHash]) -> int:
        """Return the number of leading hashes that are found, by bisection: ends of prefixes are evicted first."""
        low, high = 0, len(prefix)
        while low < high:
            middle = (low + high) // 2
            if prefix[middle] in self._block_of:
                low = middle + 1
            else:
                high = middle
        return low

    def grow(self, owner: int, blocks: int) -> bool:
        """Let `owner` hold at least `blocks` blocks; return False, with nothing changed, if too few are free."""
        table = self._tables[owner]
        missing = blocks - len(table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _ = self._free.popitem(last=False)
            self._drop_content(block)
            self._references[block] = 1
            table.append(block)
        return True

    def commit(self, owner: int, index: int, block_hash: BlockHash) -> None:
        """Mark block `index` of `owner` as full, with its prefix hash: others may share it from now on.

        The first block with a given hash is the one that is found; a later duplicate stays private to its owner.
        """
        block = self._tables[owner][index]
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, owner: int) -> None:
        """Free all blocks that `owner` holds; `KeyError` for an unknown owner."""
        for block in reversed(self._tables.pop(owner)):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def _cached(self, prefix: Sequence[BlockHash]) -> list[int]:
        blocks: list[int] = []
        for block_hash in prefix:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _drop_content(self, block: int) -> None:
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]
