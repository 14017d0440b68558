# SPDX-License-Identifier: Apache-2.0
"""Index of cached blocks, built from the KV events of engines."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from epp.pool.kv_events.events import (
    DEFAULT_TIER,
    KINDS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    Hash,
    hash_of,
    skip_reason,
)
from epp.pool.kv_events.holders import CachedBlocks, Lane
from epp.pool.kv_events.prompt_blocks import BlockHash, ExtraKeys
from epp.pool.kv_events.rows import Keys, RowTable

if TYPE_CHECKING:
    from epp.pool.kv_events.shared_index import SharedIndex

_MASK = 2**64 - 1
_MOST_BLOCK_SIZES = 4
"""Most block sizes of the engines of one pool."""
_MOST_WRITES = 32
"""Most writes of one call to `apply`; each takes up to half a millisecond in addition to the time for its blocks."""
_MOST_TIERS = 8
"""Most tiers; blocks in further tiers are ignored."""
_MOST_GROUPS = 64
"""Most groups of layers of one engine; each group has its own cache."""


class Message(NamedTuple):
    lane: Lane
    model: str
    events: Sequence[Event]


class _Batch:
    """Changes whose order does not matter: each block is stored or removed once in each cache."""

    def __init__(self) -> None:
        self.stored, self.stored_hashes, self.removed_hashes = array("Q"), array("Q"), array("Q")
        self.stored_in: list[tuple[Lane, str, int]] = []
        """Lane, tier and number of blocks, in the order of `stored`."""
        self.removed_from: list[tuple[Lane, str, int]] = []
        self.removals: list[tuple[Lane, str, list[int]]] = []
        """Lane, tier, and hashes of the engine in the order of `removed_hashes`, for a journal."""
        self._touched: dict[Lane, set[int]] = {}
        """Hashes by lane."""

    def touch(self, lane: Lane, hashes: Sequence[int]) -> bool:
        """Add the blocks of an event to the batch; return False, without adding any, if one was added before."""
        touched = self._touched.setdefault(lane, set())
        if not touched.isdisjoint(hashes):
            return False
        touched.update(hashes)
        return True

    def store(self, hashes: Sequence[int], keys: Sequence[int], known: dict[int, int]) -> None:
        """Add the first blocks of an event, one for each key, and put their keys into `known` by hash."""
        if len(keys) == 1:  # usual while an engine generates: faster without iterators
            known[hashes[0]] = keys[0]
            self.stored.append(keys[0])
            self.stored_hashes.append(hashes[0])
        else:
            known.update(zip(hashes, keys, strict=False))
            self.stored.extend(keys)
            self.stored_hashes.extend(hashes[: len(keys)])


class BlockIndex(CachedBlocks):
    """Blocks with the lanes that hold them, kept up to date by events.

    Engines identify blocks by their own hashes. The index computes a key from the tokens in events, and keeps it under
    the engine's hash for later events. A `journal` receives the changes in order. Not thread-safe.
    """

    def __init__(
        self, block_hash: BlockHash, *, capacity: int, secret: int, journal: "SharedIndex | None" = None
    ) -> None:
        super().__init__(capacity=capacity, secret=secret)
        self._hash = block_hash
        self._journal = journal
        self._first = lru_cache(1024)(block_hash.first)
        self._engine_blocks = RowTable(capacity, secret)
        """Keyed by the engine's hash."""
        self._keys: Keys = self._engine_blocks.column(np.uint64)
        self._tiers: set[str] = set()
        """Known tiers of engines."""
        self.block_sizes: set[int] = set()
        """Block sizes of engines that stored blocks, in tokens."""
        self.skipped_stores = Counter({("unknown", "unknown_parent"): 0})
        """Number of events by kind of cache and reason."""
        self.skipped_removals = Counter({("unknown", "unknown_group"): 0})
        self.removed_copies = self.removed_hashes = 0
        """Number of removed blocks with another copy in the same cache, and of other removed blocks."""

    def apply(self, messages: Sequence[Message], now: int) -> int:
        """Apply the events of messages, whose lanes must be in use, in order; return the number of messages applied.

        If the order requires many writes, the other messages are left for the next call. `now` is a time in any unit.
        """
        described = self._described(messages)
        own: dict[int, int] = {}
        batch, writes, applied = _Batch(), 0, 0
        for lane, model, events in messages:
            applied += 1
            scope = self._first(model)
            for event in events:
                if isinstance(event, AllBlocksCleared):
                    self._write(batch, now)
                    batch, writes = _Batch(), writes + 1
                    self.clear(lane)
                    continue
                tier = (event.medium or DEFAULT_TIER).lower()
                if self._skips(lane, event, tier):
                    continue
                hashes: Sequence[int] = _scoped(event.block_hashes, scope)
                if not batch.touch(lane, hashes):
                    self._write(batch, now)
                    batch, writes = _Batch(), writes + 1
                    batch.touch(lane, hashes)
                if isinstance(event, BlockRemoved):
                    if self._journal is not None:
                        batch.removals.append((lane, tier, [hash_of(each) for each in event.block_hashes]))
                    batch.removed_hashes.extend(hashes)
                    _extend(batch.removed_from, lane, tier, len(hashes))
                    continue
                known, hashes, keys = self._blocks_in(event, scope, hashes, own, described)
                batch.store(hashes, keys, own)
                _extend(batch.stored_in, lane, tier, len(keys))
                if self._journal is not None and keys:
                    self._journal.stored(lane, tier, known, keys)
            if writes >= _MOST_WRITES:
                break
        self._write(batch, now)
        return applied

    def unknown(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return the hashes in events whose keys are unknown: the engine's hash by scoped hash."""
        wanted: dict[int, int] = {}
        stored: set[int] = set()
        for _, model, events in messages:
            scope = self._first(model)
            for event in events:
                if isinstance(event, BlockRemoved):
                    wanted |= {hash_of(each) ^ scope: hash_of(each) for each in event.block_hashes}
                elif isinstance(event, BlockStored):
                    wanted |= {hash_of(each) ^ scope: hash_of(each) for each in _references(event)}
                    if event.token_ids:
                        stored.update(hash_of(each) ^ scope for each in event.block_hashes)
        hashes = np.fromiter(wanted, dtype=np.uint64, count=len(wanted))
        missing = hashes[self._engine_blocks.find(hashes) < 0].tolist()
        return {each: wanted[each] for each in missing if each not in stored}

    def learn(self, keys: Mapping[int, int], now: int) -> None:
        rows = self._engine_blocks.put(np.fromiter(keys, dtype=np.uint64, count=len(keys)), now)
        self._keys[rows[rows >= 0]] = np.fromiter(keys.values(), dtype=np.uint64, count=len(keys))[rows >= 0]

    def _skips(self, lane: Lane, event: BlockStored | BlockRemoved, tier: str) -> bool:
        """Return whether the index skips an event, and count a skipped one."""
        group, skipped = event.group_idx, self.skipped_removals
        is_usual = group is None and tier in self._tiers
        if is_usual and (isinstance(event, BlockRemoved) or event.block_size in self.block_sizes):
            return False
        if isinstance(event, BlockStored):
            skipped = self.skipped_stores
            if event.token_ids and (group in lane.kinds or len(lane.kinds) < _MOST_GROUPS):
                lane.kinds[group] = event.kv_cache_spec_kind or ""
        kind = lane.kinds.get(group)
        reason = skip_reason(event, kind)
        if not reason and not _admits(self._tiers, tier, _MOST_TIERS):
            reason = "too_many_tiers"
        if not reason and isinstance(event, BlockStored) and event.token_ids:
            is_known = _admits(self.block_sizes, event.block_size, _MOST_BLOCK_SIZES)
            reason = "" if is_known else "too_many_block_sizes"
        if reason:
            skipped[_label(kind), reason] += 1
        return bool(reason)

    def _described(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return the known keys of the blocks that stores refer to, by scoped hash."""
        wanted = {
            hash_of(each) ^ self._first(model)
            for _, model, events in messages
            for event in events
            if isinstance(event, BlockStored)
            for each in _references(event)
        }
        hashes = np.fromiter(wanted, dtype=np.uint64, count=len(wanted))
        rows = self._engine_blocks.find(hashes)
        known = rows >= 0
        return dict(zip(hashes[known].tolist(), self._keys[rows[known]].tolist(), strict=True))

    def _blocks_in(
        self,
        event: BlockStored,
        scope: int,
        hashes: Sequence[int],
        own: Mapping[int, int],
        described: Mapping[int, int],
    ) -> tuple[BlockStored, Sequence[int], Sequence[int]]:
        """Return an event with the hashes and keys of its blocks; without token ids, only the known blocks.

        There are no keys if the parent of the blocks is unknown.
        """
        if event.token_ids:
            parent: int | None = self._first(event.lora_name) if event.lora_name else scope
            if event.parent_block_hash is not None:
                above = hash_of(event.parent_block_hash) ^ scope
                parent = own.get(above, described.get(above))
            if parent is None:
                self.skipped_stores[_label(event.kv_cache_spec_kind), "unknown_parent"] += 1
                return event, hashes, []
            extras = [_strings(each, event.lora_name) for each in event.extra_keys] if event.extra_keys else ()
            found = self._hash.chain(parent, array("I", event.token_ids).tobytes(), event.block_size, extras)
            return event, hashes, found if len(found) <= len(hashes) else found[: len(hashes)]
        keys = [own.get(each, described.get(each, 0)) for each in hashes]
        known = [number for number, key in enumerate(keys) if key]
        part = msgspec.structs.replace(
            event,
            block_hashes=[event.block_hashes[number] for number in known],
            block_size=event.block_size or max(self.block_sizes, default=0),
        )
        return part, [hashes[number] for number in known], [keys[number] for number in known]

    def _write(self, batch: _Batch, now: int) -> None:
        keys, hashes = np.array(batch.stored, dtype=np.uint64), np.array(batch.stored_hashes, dtype=np.uint64)
        if len(keys):
            self.store(keys, batch.stored_in, now)
            rows = self._engine_blocks.put(hashes, now)
            self._keys[rows[rows >= 0]] = keys[rows >= 0]
        removed = np.array(batch.removed_hashes, dtype=np.uint64)
        if len(removed):
            rows = self._engine_blocks.find(removed)
            keys = np.where(rows < 0, np.uint64(0), self._keys[rows])
            copies = self.withdraw(keys, batch.removed_from)
            if self._journal is not None:
                gone, start = (keys != 0) & self.lacking(keys, batch.removed_from), 0  # blocks without a copy
                for lane, tier, names in batch.removals:
                    chosen = np.flatnonzero(gone[start : start + len(names)])
                    if len(chosen):
                        self._journal.removed(lane, tier, keys[start + chosen].tolist(), [names[at] for at in chosen])
                    start += len(names)
            self.removed_copies += copies
            self.removed_hashes += len(removed) - copies
            rows = np.unique(rows[rows >= 0])
            self._engine_blocks.remove(rows[self.blocks.find(self._keys[rows]) < 0])

    def _retire(self, lane: Lane) -> None:
        if self._journal is not None:
            self._journal.cleared(lane)
        super()._retire(lane)


def _admits(known: set[Any], value: object, most: int) -> bool:
    """Add a value to a set of at most `most` values; return whether the set has the value."""
    if len(known) < most:
        known.add(value)
    return value in known


def _label(kind: str | None) -> str:
    """Return the name of a kind of cache in metrics."""
    return kind if kind in KINDS else "other" if kind else "unknown"


def _scoped(hashes: Sequence[Hash], scope: int) -> list[int]:
    """Return the hashes of an event, scoped by the model."""
    if len(hashes) == 1 and isinstance(only := hashes[0], int):
        return [only & _MASK ^ scope]
    return [hash_of(each) ^ scope for each in hashes]


def _references(event: BlockStored) -> Sequence[Hash]:
    """Return the blocks in an event that earlier events described: the parent, or all blocks without token ids."""
    if not event.token_ids:
        return event.block_hashes
    return () if event.parent_block_hash is None else (event.parent_block_hash,)


def _extend(places: list[tuple[Lane, str, int]], lane: Lane, tier: str, count: int) -> None:
    """Add blocks to the last place, or to a new one."""
    if places and (last := places[-1])[0] is lane and last[1] == tier:
        places[-1] = lane, tier, last[2] + count
    else:
        places.append((lane, tier, count))


def _strings(keys: Sequence[Any] | None, lora_name: str | None) -> ExtraKeys:
    """Return the strings among the extra keys of a block, without the name of the adapter, which is in the chain."""
    texts = [each[0] if isinstance(each, list) and each else each for each in keys or ()]
    found = [text for text in texts if isinstance(text, str)]
    if lora_name in found:
        found.remove(lora_name)
    return found
