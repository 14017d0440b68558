# SPDX-License-Identifier: Apache-2.0
"""The KV cache: reference-counted blocks; full ones are found by the hash of their prefix."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

BlockHash: TypeAlias = bytes | int
"""The hash of a block and all before it."""


class KVChanges(NamedTuple):
    """Differences between two states of a cache."""

    stored: dict[BlockHash, tuple[int, int]]
    """The owner that filled the block, and the place of the block among its own."""
    evicted: set[BlockHash]
    offloaded: set[BlockHash]
    """Blocks that host memory holds now, and did not before."""
    dropped: set[BlockHash]
    """Blocks that host memory holds no longer."""


class Found(NamedTuple):
    """Leading blocks of a prefix that need not be computed."""

    blocks: int
    copied: int = 0
    """Those of them that are copied from host memory."""


class KVCache:
    """`num_blocks` blocks, each free, held by one owner or shared by several.

    A free block keeps its content until it is taken again, least recently freed first; the blocks of one owner are
    freed last block first, because a prefix is worth more than the blocks after it. Content that is lost so moves to
    host memory, which has `num_host_blocks` blocks, and from there to the next owner that needs it; the block used
    longest ago is dropped if there are too many.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._num_blocks, self._num_host_blocks = num_blocks, num_host_blocks
        self._host: OrderedDict[BlockHash, None] = OrderedDict()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._tables: dict[int, list[int]] = {}
        self._changes: KVChanges | None = None

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
        return (self._num_blocks - len(self._free)) / self._num_blocks

    @property
    def hashes(self) -> AbstractSet[BlockHash]:
        """Prefix hashes of the blocks that can be found."""
        return self._block_of.keys()

    def take_changes(self) -> KVChanges | None:
        """Return the changes since the last call; None if there are none. The first call begins to record them."""
        changes = self._changes
        if changes is not None and not any(changes):
            return None
        self._changes = KVChanges({}, set(), set(), set())
        return changes

    def blocks_of(self, owner: int) -> tuple[int, ...]:
        """Return the numbers of the blocks that `owner` holds, in order; `KeyError` for an unknown owner."""
        return tuple(self._tables[owner])

    def admit(self, owner: int, *, prefix: Sequence[BlockHash], blocks: int) -> Found | None:
        """Give `owner` its first blocks, sharing those of its prefix that are cached.

        `prefix` are the chained hashes that may be shared (at most `blocks`). Returns the leading ones that were found,
        first those in this cache, then those in host memory; None, with nothing changed, when the blocks do not fit.
        `ValueError` for a known owner.
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
        copied = self._in_host(prefix[found:])
        self._tables[owner] = hits
        self.grow(owner, blocks)
        self.commit(owner, found, prefix[found : found + copied])
        return Found(found + copied, copied)

    def matched(self, prefix: Sequence[BlockHash]) -> Found:
        """Return the leading hashes that are found, by bisection: ends of prefixes are evicted first."""
        blocks, host = self._block_of, self._host
        here = bisect_left(prefix, 1, key=lambda each: each not in blocks)
        found = bisect_left(prefix, 1, here, key=lambda each: each not in blocks and each not in host)
        return Found(found, found - here)

    def grow(self, owner: int, blocks: int) -> bool:
        """Let `owner` hold at least `blocks` blocks; return False, with nothing changed, if too few are free."""
        table, free = self._tables[owner], self._free
        missing = blocks - len(table)
        if missing > len(free):
            return False
        for _ in range(missing):
            block, _ = free.popitem(last=False)
            if block in self._hash_of:
                self._drop_content(block)
            self._references[block] = 1
            table.append(block)
        return True

    def commit(self, owner: int, first: int, hashes: Sequence[BlockHash]) -> None:
        """Mark blocks of `owner`, from number `first` on, as full, with their prefix hashes: others may share them now.

        The first block with a given hash is the one that is found; a later duplicate stays private to its owner.
        """
        table, block_of, hash_of, changes = self._tables[owner], self._block_of, self._hash_of, self._changes
        for index, block_hash in enumerate(hashes, first):
            block = table[index]
            if block_hash in block_of or block in hash_of:
                continue
            block_of[block_hash] = block
            hash_of[block] = block_hash
            if changes is not None and block_hash not in changes.evicted:
                changes.stored[block_hash] = owner, index
            elif changes is not None:
                changes.evicted.remove(block_hash)

    def release(self, owner: int) -> None:
        """Free all blocks that `owner` holds; `KeyError` for an unknown owner."""
        references, free, hash_of = self._references, self._free, self._hash_of
        for block in reversed(self._tables.pop(owner)):
            references[block] -= 1
            if references[block] == 0:
                free[block] = None
                if block not in hash_of:
                    free.move_to_end(block, last=False)

    def _cached(self, prefix: Sequence[BlockHash]) -> list[int]:
        blocks: list[int] = []
        for block_hash in prefix:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _in_host(self, prefix: Sequence[BlockHash]) -> int:
        """Return how many leading blocks host memory holds; they are dropped last."""
        found = next((place for place, each in enumerate(prefix) if each not in self._host), len(prefix))
        for block_hash in reversed(prefix[:found]):
            self._host.move_to_end(block_hash)
        return found

    def _offload(self, block_hash: BlockHash) -> None:
        changes = self._changes or KVChanges({}, set(), set(), set())
        if block_hash not in self._host:
            self._host[block_hash] = None
            _note(block_hash, changes.offloaded, changes.dropped)
        self._host.move_to_end(block_hash)
        if len(self._host) > self._num_host_blocks:
            dropped, _ = self._host.popitem(last=False)
            _note(dropped, changes.dropped, changes.offloaded)

    def _drop_content(self, block: int) -> None:
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        changes = self._changes
        if changes is not None and changes.stored.pop(block_hash, None) is None:
            changes.evicted.add(block_hash)
        if self._num_host_blocks:
            self._offload(block_hash)


def _note(block_hash: BlockHash, change: set[BlockHash], opposite: set[BlockHash]) -> None:
    """Note a change of a block, or that the opposite one is undone."""
    if block_hash in opposite:
        opposite.remove(block_hash)
    else:
        change.add(block_hash)
