# SPDX-License-Identifier: Apache-2.0
"""The work of a simulated machine: requests, their progress, and the KV cache."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple, TypeAlias

import msgspec

BlockHash: TypeAlias = bytes | int
"""Hash of a block and all blocks before it."""


class KVChanges(NamedTuple):
    """Differences between two states of a cache: blocks of the cache, host memory and disk."""

    stored: dict[BlockHash, tuple[int, int]]
    """Owner that filled the block, and index of the block among those of the owner."""
    evicted: set[BlockHash]
    offloaded: set[BlockHash]
    """Blocks added to host memory."""
    dropped: set[BlockHash]
    """Blocks removed from host memory."""
    written: set[BlockHash]
    """Blocks added to the disk."""
    deleted: set[BlockHash]
    """Blocks removed from the disk."""

    @classmethod
    def none(cls) -> "KVChanges":
        return cls({}, set(), set(), set(), set(), set())


class Found(NamedTuple):
    """Leading blocks of a prefix that need not be computed."""

    blocks: int
    copied: int = 0
    """Number of blocks that are copied from host memory."""
    read: int = 0
    """Number of blocks that are read from the disk."""


class KVCache:
    """`num_blocks` blocks, each free, held by one owner or shared by several.

    A free block keeps its content until it is reused, least recently freed first; the blocks of one owner are freed in
    reverse order, because a prefix is worth more than the blocks after it. Evicted content moves to host memory
    (`num_host_blocks` blocks), and from there to the next owner that needs it. If host memory is full, its least
    recently used block moves to the disk (`num_disk_blocks` blocks), which drops blocks in the same order.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int = 0, num_disk_blocks: int = 0) -> None:
        self._num_blocks, self._num_host_blocks, self._num_disk_blocks = num_blocks, num_host_blocks, num_disk_blocks
        self._host: OrderedDict[BlockHash, None] = OrderedDict()
        self._disk: OrderedDict[BlockHash, None] = OrderedDict()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._tables: dict[int, list[int]] = {}
        self._changes: KVChanges | None = None

    @property
    def free_blocks(self) -> int:
        """Number of blocks without an owner, including those with content."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks held by at least one owner, 0..1, without free blocks with content."""
        return (self._num_blocks - len(self._free)) / self._num_blocks

    @property
    def hashes(self) -> AbstractSet[BlockHash]:
        """Prefix hashes of the blocks that can be found."""
        return self._block_of.keys()

    def take_changes(self) -> KVChanges | None:
        """Return the changes since the last call; None if there are none. The first call starts to record them."""
        changes = self._changes
        if changes is not None and not any(changes):
            return None
        self._changes = KVChanges.none()
        return changes

    def blocks_of(self, owner: int) -> tuple[int, ...]:
        """Return the numbers of the blocks that `owner` holds, in order; raises KeyError for an unknown owner."""
        return tuple(self._tables[owner])

    def admit(self, owner: int, *, prefix: Sequence[BlockHash], blocks: int) -> Found | None:
        """Give `owner` its first blocks, sharing those of its prefix that are cached.

        `prefix` are the chained hashes that may be shared (at most `blocks`). Returns the leading ones that were found,
        first those in this cache, then those in host memory or on the disk; None, without changes, if the blocks do not
        fit. Raises ValueError for a known owner.
        """
        if owner in self._tables:
            raise ValueError(f"owner {owner} is in the cache already; release it first")
        hits = [self._block_of[each] for each in takewhile(self._block_of.__contains__, prefix)]
        if blocks - sum(1 for block in hits if self._references[block]) > len(self._free):
            return None
        for block in hits:
            self._references[block] += 1
            self._free.pop(block, None)
        here = len(hits)
        copied, read = self._in_lower_tiers(prefix[here:])
        found = here + copied + read
        self._tables[owner] = hits
        self.grow(owner, blocks)
        self.commit(owner, here, prefix[here:found])
        return Found(found, copied, read)

    def matched(self, hashes: Sequence[BlockHash], blocks: int) -> Found:
        """Return the leading ones of the first `blocks` hashes, by bisection: ends of prefixes are evicted first."""
        block_of, host, disk = self._block_of, self._host, self._disk
        here = bisect_left(hashes, 1, 0, blocks, key=lambda each: each not in block_of)
        above = bisect_left(hashes, 1, here, blocks, key=lambda each: each not in block_of and each not in host)
        if not disk:
            return Found(above, above - here)
        found = bisect_left(hashes, 1, above, blocks, key=lambda each: each not in disk)
        return Found(found, above - here, found - above)

    def grow(self, owner: int, blocks: int) -> bool:
        """Let `owner` hold at least `blocks` blocks; return False, without changes, if too few are free."""
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
        """Mark blocks of `owner` from number `first` as full, with their prefix hashes, so that others can share them.

        Only the first block with a given hash is shared; a later duplicate stays private to its owner.
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
        """Free all blocks that `owner` holds; raises KeyError for an unknown owner."""
        references, free, hash_of = self._references, self._free, self._hash_of
        for block in reversed(self._tables.pop(owner)):
            references[block] -= 1
            if references[block] == 0:
                free[block] = None
                if block not in hash_of:
                    free.move_to_end(block, last=False)

    def _in_lower_tiers(self, prefix: Sequence[BlockHash]) -> tuple[int, int]:
        """Return the numbers of leading blocks in host memory and on the disk, and mark these as recently used."""
        host, disk = self._host, self._disk
        missing = (place for place, each in enumerate(prefix) if each not in host and each not in disk)
        found = next(missing, len(prefix))
        copied = 0
        for block_hash in reversed(prefix[:found]):
            copied += block_hash in host
            (host if block_hash in host else disk).move_to_end(block_hash)
        return copied, found - copied

    def _offload(self, block_hash: BlockHash) -> None:
        changes = self._changes or KVChanges.none()
        for tier, size, gained, lost in (
            (self._host, self._num_host_blocks, changes.offloaded, changes.dropped),
            (self._disk, self._num_disk_blocks, changes.written, changes.deleted),
        ):
            if block_hash not in tier:
                tier[block_hash] = None
                _record(block_hash, gained, lost)
            tier.move_to_end(block_hash)
            if len(tier) <= size:
                return
            block_hash, _ = tier.popitem(last=False)
            _record(block_hash, lost, gained)

    def _drop_content(self, block: int) -> None:
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        changes = self._changes
        if changes is not None and changes.stored.pop(block_hash, None) is None:
            changes.evicted.add(block_hash)
        if self._num_host_blocks or self._num_disk_blocks:
            self._offload(block_hash)


def _record(block_hash: BlockHash, change: set[BlockHash], opposite: set[BlockHash]) -> None:
    """Record a change of a block, or cancel the opposite one."""
    if block_hash in opposite:
        opposite.remove(block_hash)
    else:
        change.add(block_hash)


FinishReason = Literal["stop", "length", "abort"]


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the machine sees it.

    Attributes:
        request_id: unique in this machine, 0 or more.
        prompt_tokens: at least 1.
        output_tokens: length of the answer, at least 1.
        finish_reason: the reason for the end of the answer.
        block_hashes: chained hashes of all full blocks of prompt and output.
        transferred_tokens: leading prompt tokens whose KV cache was transferred from another server; the last token of
            a prompt is always computed here.
        lora_adapter: None for the base model.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["stop", "length"] = "stop"
    block_hashes: tuple[BlockHash, ...] = ()
    transferred_tokens: int = 0
    lora_adapter: str | None = None

    @property
    def kv_tokens(self) -> int:
        """Maximum tokens in the KV cache: the last output token is never fed back."""
        return self.prompt_tokens + self.output_tokens - 1


class Emission(msgspec.Struct, frozen=True):
    """One output token, number `index` from 0, at `at_seconds`; the last one has a finish reason.

    An aborted request gets one more emission, with the index of the missing token.
    """

    request_id: int
    index: int
    at_seconds: float
    cached_tokens: int
    finish_reason: FinishReason | None = None


class Occupation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Synthetic load, held until it is replaced.

    Attributes:
        running: requests in the batch; they slow every decode step.
        waiting: requests that only count in the gauge; real requests do not wait for them.
        kv_usage: share of the KV cache in use by them, 0..1, rounded down to blocks.
        lora_adapter: adapter of all of them; it uses a slot if any of them runs.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    lora_adapter: str | None = None


class OccupationError(ValueError):
    """The machine has no room for the synthetic load."""


@dataclass(slots=True)
class SimSequence:
    """A request and its progress."""

    request: SimRequest
    submitted_seconds: float
    known_tokens: int
    """Tokens of the prompt and the answer so far."""
    last_tokens: int
    """Tokens of the prompt and the whole answer."""
    computed_tokens: int = 0
    cached_tokens: int = 0
    last_emission_seconds: float = 0.0

    @property
    def emitted_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.known_tokens - self.request.prompt_tokens

    @property
    def decodes(self) -> bool:
        """Whether all tokens but the last are computed."""
        return self.known_tokens - self.computed_tokens == 1 and self.known_tokens > self.request.prompt_tokens


@dataclass(slots=True)
class SimStep:
    """A step, or several equal ones if all requests in the batch decode and none ends before the last step."""

    started_at: float
    seconds: float
    """Duration of one step."""
    tokens: tuple[tuple[int, int], ...]
    """Request ids, and tokens to compute in each."""
    repeats: int = 1
    ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends_at = self.started_at + self.repeats * self.seconds

    def done(self, now: float) -> int:
        """Return the number of steps that have ended, without the last one."""
        return min(self.repeats - 1, max(0, int((now - self.started_at) / self.seconds)))
