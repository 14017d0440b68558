# SPDX-License-Identifier: Apache-2.0
"""Index of the blocks that the caches of endpoints hold, by tier, as KV events report them."""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.pool.kv_events.block_keys import BlockHash, ExtraKeys
from epp.pool.kv_events.copies import Copies
from epp.pool.kv_events.events import DEFAULT_TIER, KINDS, BlockRemoved, BlockStored, Event, hash_of, skip_reason
from epp.pool.kv_events.rows import Keys, Rows, RowTable

_BITS = 64
"""Lanes in one word of a set of holders."""
_SWEPT = 1 << 17
"""Rows that one step clears of removed lanes: half a millisecond."""
_MOST_BLOCK_SIZES = 4
"""Sizes of blocks of the engines of one pool."""
_MOST_WRITES = 32
"""Writes of one call to `apply`, each of at most half a millisecond besides the time for its blocks."""
_MOST_TIERS = 8
"""Tiers that engines name; blocks of further ones are ignored."""
_MOST_GROUPS = 64
"""Groups of layers of one engine, each with a cache of its own."""
HOST_TIER = "cpu"
SPECULATIVE = "speculative"
"""Tier of blocks that an engine is expected to store."""


class Lane:
    """The caches of one engine. Its number is a bit in sets of holders."""

    __slots__ = ("bit", "id", "kinds", "number", "salt", "word")

    def __init__(self, identifier: int) -> None:
        self.id = identifier
        self.number, self.word, self.bit = -1, 0, np.uint64(0)
        self.salt = 0
        """Differs from that of any other lane, and from those before it was cleared."""
        self.kinds: dict[int | None, str] = {}
        """Kinds of caches by group, as events of stored blocks tell."""

    def renumber(self, number: int, salt: int) -> None:
        """Use another bit."""
        self.number, self.word, self.bit = number, number // _BITS, np.uint64(1 << number % _BITS)
        self.salt = salt


class Message(NamedTuple):
    """Events of one engine."""

    lane: Lane
    model: str
    events: Sequence[Event]


class Held(NamedTuple):
    """Leading blocks of a prompt in the caches of each lane."""

    blocks: NDArray[np.int32]
    """Blocks in any tier."""
    weighted: NDArray[np.float64]
    """The same, where a block counts with the weight of its best tier."""
    by_tier: Mapping[str, NDArray[np.int32]]
    """The same by best tier; empty where no lane holds any."""
    offloaded: NDArray[np.int32]
    """Blocks in the tier `cpu`."""


class Journal(ABC):
    """Is told the changes of an index by events, in order."""

    @abstractmethod
    def stored(self, lane: Lane, tier: str, event: BlockStored, keys: Sequence[int]) -> None:
        """Note blocks with these keys, the first ones of an event."""

    @abstractmethod
    def removed(self, lane: Lane, tier: str, keys: Sequence[int], hashes: Sequence[int]) -> None:
        """Note blocks that the cache has no copy of any more, by key and by the engine's hash."""

    @abstractmethod
    def cleared(self, lane: Lane) -> None:
        """Note that a lane is empty."""


class _Batch:
    """Changes whose order does not matter: each block is stored or removed once in each cache."""

    def __init__(self) -> None:
        self.stored, self.stored_hashes, self.removed_hashes = array("Q"), array("Q"), array("Q")
        self.stored_in: list[tuple[Lane, str, int]] = []
        """Lane, tier and number of blocks, in the order of `stored`."""
        self.removed_from: list[tuple[Lane, str, int]] = []
        self.removals: list[tuple[Lane, str, list[int]]] = []
        """For a journal: lane, tier, and the engine's hashes in the order of `removed_hashes`."""
        self._touched: dict[Lane, set[int]] = {}
        """Hashes by lane."""

    def touch(self, lane: Lane, hashes: Sequence[int]) -> bool:
        """Note blocks of an event; return False, and note none, if one of them was noted before."""
        touched = self._touched.setdefault(lane, set())
        if not touched.isdisjoint(hashes):
            return False
        touched.update(hashes)
        return True


class BlockIndex:
    """Blocks by key, with the lanes that hold them in each tier; the least recently used are evicted.

    Engines name blocks by hashes of their own. The index computes a key from the tokens in the events, and remembers it
    by the engine's hash, for later events. Not thread-safe.
    """

    def __init__(self, block_hash: BlockHash, *, capacity: int, secret: int, journal: Journal | None = None) -> None:
        self._hash = block_hash
        self._journal = journal
        self._first = lru_cache(1024)(block_hash.first)
        self._blocks = RowTable(capacity, secret)
        self._engine_blocks = RowTable(capacity, secret)
        """By the engine's hash."""
        self._keys: Keys = self._engine_blocks.column(np.uint64)
        self._holders: dict[str, list[NDArray[np.uint64]]] = {}
        """By tier, word and row: sets of lanes."""
        self._numbers = np.zeros(0, dtype=np.intp)
        """Number of each lane, by id; -1 if it is removed."""
        self._count = 0
        """Numbers in use."""
        self._free_ids: list[int] = []
        self._alive = np.zeros(0, dtype=np.uint64)
        """Lanes in use, by word."""
        self._free: list[int] = []
        self._leaving: list[int] = []
        """Numbers that the next sweep clears."""
        self._clearing: list[int] = []
        """Numbers that the present sweep clears."""
        self._swept = 0
        self._copies = Copies(secret)
        self._salts = count(1)
        self._tiers: set[str] = set()
        """Tiers that engines named."""
        self.block_sizes: set[int] = set()
        """Tokens in a block, of engines that stored any."""
        self.skipped_stores = Counter({("unknown", "unknown_parent"): 0})
        """Events by kind of cache and reason."""
        self.skipped_removals = Counter({("unknown", "unknown_group"): 0})
        self.removed_copies = self.removed_hashes = 0
        """Hashes in removals: of blocks that have another copy in the same cache, and of others."""

    def __len__(self) -> int:
        return self._blocks.count

    @property
    def admitted(self) -> int:
        """Blocks taken in."""
        return self._blocks.admitted

    @property
    def evicted(self) -> int:
        """Blocks evicted for lack of room."""
        return self._blocks.evicted

    def add(self) -> Lane:
        """Return a new lane, which is empty."""
        if not self._free_ids:
            self._free_ids.append(len(self._numbers))
            self._numbers = np.append(self._numbers, -1)
        lane = Lane(self._free_ids.pop())
        self._number(lane)
        return lane

    def remove(self, lane: Lane) -> None:
        """Remove a lane. Lookups do not see it any more; `sweep` frees the memory."""
        self._retire(lane)
        self._numbers[lane.id] = -1
        self._free_ids.append(lane.id)

    def clear(self, lane: Lane) -> None:
        """Forget the blocks of a lane."""
        self._retire(lane)
        self._number(lane)

    def apply(self, messages: Sequence[Message], now: int) -> int:
        """Apply the events of lanes that are not removed, in order; return the number of messages applied.

        The rest is left for another call where order takes many writes. `now` is a time in any unit.
        """
        parents = self._parents(messages)
        own: dict[int, int] = {}
        batch, writes, applied = _Batch(), 0, 0
        for lane, model, events in messages:
            applied += 1
            scope = self._first(model)
            for event in events:
                if not isinstance(event, BlockStored | BlockRemoved):
                    self._write(batch, now)
                    batch, writes = _Batch(), writes + 1
                    self.clear(lane)
                    continue
                tier = (event.medium or DEFAULT_TIER).lower()
                if self._skips(lane, event, tier):
                    continue
                hashes = [hash_of(each) ^ scope for each in event.block_hashes]
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
                keys = self._keys_of(event, scope, hashes, own, parents)
                own.update(zip(hashes, keys, strict=False))
                batch.stored.extend(keys)
                batch.stored_hashes.extend(hashes[: len(keys)])
                _extend(batch.stored_in, lane, tier, len(keys))
                if self._journal is not None and keys:
                    self._journal.stored(lane, tier, event, keys)
            if writes >= _MOST_WRITES:
                break
        self._write(batch, now)
        return applied

    def unknown(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return hashes in events whose keys are not known, and in the events: scoped, and the engine's."""
        wanted: dict[int, int] = {}
        stored: set[int] = set()
        for _, model, events in messages:
            scope = self._first(model)
            for event in events:
                if isinstance(event, BlockRemoved):
                    wanted |= {hash_of(each) ^ scope: hash_of(each) for each in event.block_hashes}
                elif isinstance(event, BlockStored):
                    stored.update(hash_of(each) ^ scope for each in event.block_hashes)
                    if event.parent_block_hash is not None:
                        parent = hash_of(event.parent_block_hash)
                        wanted[parent ^ scope] = parent
        hashes = np.fromiter(wanted, dtype=np.uint64, count=len(wanted))
        missing = hashes[self._engine_blocks.find(hashes) < 0].tolist()
        return {each: wanted[each] for each in missing if each not in stored}

    def learn(self, keys: Mapping[int, int], now: int) -> None:
        """Remember keys by scoped hash."""
        rows = self._engine_blocks.put(np.fromiter(keys, dtype=np.uint64, count=len(keys)), now)
        self._keys[rows[rows >= 0]] = np.fromiter(keys.values(), dtype=np.uint64, count=len(keys))[rows >= 0]

    def match(self, keys: Keys, weights: Mapping[str, float], lanes: NDArray[np.intp], now: int | None) -> Held:
        """Return the leading blocks in the caches of lanes, given by id; a tier without a weight counts 1.

        An id of -1 stands for an endpoint without a lane. Without a time, the blocks do not count as used.
        """
        blocks, weighted = np.zeros(len(lanes), dtype=np.int32), np.zeros(len(lanes))
        offloaded = blocks.copy()
        rows = self._blocks.find(keys)
        missing = np.flatnonzero(rows < 0)
        rows = rows[: missing[0]] if len(missing) else rows
        numbers = np.where(lanes < 0, -1, self._numbers[lanes]) if len(self._numbers) else np.full(len(lanes), -1)
        where = np.flatnonzero(numbers >= 0)
        if not len(rows) or not len(where) or not self._holders:
            return Held(blocks, weighted, {}, offloaded)
        numbers = numbers[where]
        if now is not None:
            self._blocks.touch(rows, now)
        tiers = sorted(self._holders, key=lambda tier: -weights.get(tier, 1.0))
        held = np.array([[word[rows] for word in self._holders[tier]] for tier in tiers])
        if HOST_TIER in self._holders:
            in_host = np.bitwise_and.accumulate(held[tiers.index(HOST_TIER)] & self._alive[:, None], axis=1)
            offloaded[where] = _run_counts(in_host).reshape(-1)[numbers]
        left = np.bitwise_or.reduce(held) & self._alive[:, None]
        np.bitwise_and.accumulate(left, axis=1, out=left)
        for number in range(len(tiers)):
            held[number] &= left
            left ^= held[number]
        counts = _run_counts(held.reshape(-1, len(rows))).reshape(len(tiers), -1)[:, numbers]
        by_tier = {tier: np.zeros(len(lanes), dtype=np.int32) for tier in tiers}
        for each, blocks_in_tier in zip(by_tier.values(), counts, strict=True):
            each[where] = blocks_in_tier
        blocks[where] = counts.sum(axis=0)
        weighted[where] = np.array([weights.get(tier, 1.0) for tier in tiers]) @ counts
        return Held(blocks, weighted, by_tier, offloaded)

    def blocks_of(self, lanes: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the number of blocks that lanes hold; reads the whole index, for a debug page."""
        counts = np.zeros(len(self._alive) * _BITS, dtype=np.int64)
        for start in range(0, self._blocks.end, _SWEPT):
            rows = slice(start, min(start + _SWEPT, self._blocks.end))
            held = [np.stack([word[rows] for word in words], axis=1) for words in self._holders.values()]
            if held:
                counts += _counts(np.bitwise_or.reduce(held))
        numbers = np.where(lanes < 0, -1, self._numbers[lanes]) if len(self._numbers) else np.full(len(lanes), -1)
        return np.where(numbers < 0, 0, counts[numbers]) if len(counts) else np.zeros(len(lanes), dtype=np.int64)

    def store(self, keys: Keys, places: Sequence[tuple[Lane, str, int]], now: int) -> None:
        """Add blocks to caches: lanes, tiers and numbers of blocks, in the order of `keys`."""
        rows = self._blocks.put(keys, now)
        for tier, word, chosen, bits in _by_word(places, rows >= 0):
            column, at = self._column(tier, word), rows[chosen]
            again = chosen[column[at] & bits != 0]
            if len(again):
                self._copies.add(_names(keys, places)[again], now)
            np.bitwise_or.at(column, at, bits)

    def withdraw(self, keys: Keys, places: Sequence[tuple[Lane, str, int]]) -> int:
        """Remove blocks from caches, and return how many stay, as copies; blocks without a holder are forgotten."""
        rows, copies = self._blocks.find(keys), 0
        for tier, word, chosen, bits in _by_word(places, rows >= 0):
            column, at = self._column(tier, word), rows[chosen]
            last = np.ones(len(at), dtype=np.bool_)
            if len(self._copies):
                last = ~self._copies.drop(_names(keys, places)[chosen])
            copies += len(last) - int(last.sum())
            np.bitwise_and.at(column, at[last], ~bits[last])
        self._drop_unheld(np.unique(rows[rows >= 0]))
        return copies

    def sweep(self) -> bool:
        """Free some memory of removed lanes; return whether there is more."""
        if not self._clearing:
            self._clearing, self._leaving, self._swept = self._leaving, [], 0
        if not self._clearing:
            return False
        masks = np.zeros(len(self._alive), dtype=np.uint64)
        for number in self._clearing:
            masks[number // _BITS] |= np.uint64(1 << number % _BITS)
        end = min(self._swept + _SWEPT, self._blocks.end)
        for words in self._holders.values():
            for word, mask in zip(words, masks, strict=True):
                if mask:
                    word[self._swept : end] &= ~mask
        in_use = self._swept + np.flatnonzero(self._blocks.keys[self._swept : end])
        self._drop_unheld(in_use.astype(np.int32))
        self._swept = end
        if end == self._blocks.end:
            self._free += self._clearing
            self._clearing = []
        return bool(self._clearing or self._leaving)

    def _number(self, lane: Lane) -> None:
        if not self._free:
            self._free.append(self._count)
            if self._count % _BITS == 0:
                self._alive = np.append(self._alive, np.uint64(0))
                for words in self._holders.values():
                    words.append(self._blocks.column(np.uint64))
            self._count += 1
        lane.renumber(self._free.pop(), next(self._salts))
        self._numbers[lane.id] = lane.number
        self._alive[lane.word] |= lane.bit

    def _retire(self, lane: Lane) -> None:
        if self._journal is not None:
            self._journal.cleared(lane)
        self._alive[lane.word] &= ~lane.bit
        self._leaving.append(lane.number)

    def _skips(self, lane: Lane, event: BlockStored | BlockRemoved, tier: str) -> bool:
        """Return whether an event is not for the index, and count it if so."""
        group, skipped = event.group_idx, self.skipped_removals
        is_usual = group is None and tier in self._tiers
        if is_usual and (isinstance(event, BlockRemoved) or event.block_size in self.block_sizes):
            return False
        if isinstance(event, BlockStored):
            skipped = self.skipped_stores
            if group in lane.kinds or len(lane.kinds) < _MOST_GROUPS:
                lane.kinds[group] = event.kv_cache_spec_kind or ""
        kind = lane.kinds.get(group)
        reason = skip_reason(event, kind)
        if not reason and not _admits(self._tiers, tier, _MOST_TIERS):
            reason = "too_many_tiers"
        if not reason and isinstance(event, BlockStored):
            is_known = _admits(self.block_sizes, event.block_size, _MOST_BLOCK_SIZES)
            reason = "" if is_known else "too_many_block_sizes"
        if reason:
            skipped[_label(kind), reason] += 1
        return bool(reason)

    def _parents(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return the keys of the parents that are known, by the engine's hash."""
        wanted = {
            hash_of(event.parent_block_hash) ^ self._first(model)
            for _, model, events in messages
            for event in events
            if isinstance(event, BlockStored) and event.parent_block_hash is not None
        }
        hashes = np.fromiter(wanted, dtype=np.uint64, count=len(wanted))
        rows = self._engine_blocks.find(hashes)
        known = rows >= 0
        return dict(zip(hashes[known].tolist(), self._keys[rows[known]].tolist(), strict=True))

    def _keys_of(
        self, event: BlockStored, scope: int, hashes: Sequence[int], own: Mapping[int, int], parents: Mapping[int, int]
    ) -> list[int]:
        """Return the keys of stored blocks; none if their parent is unknown."""
        parent: int | None = self._first(event.lora_name) if event.lora_name else scope
        if event.parent_block_hash is not None:
            above = hash_of(event.parent_block_hash) ^ scope
            parent = own.get(above, parents.get(above))
        if parent is None:
            self.skipped_stores[_label(event.kv_cache_spec_kind), "unknown_parent"] += 1
            return []
        extras = [_strings(each, event.lora_name) for each in event.extra_keys or ()]
        tokens = array("I", event.token_ids).tobytes()
        return self._hash.chain(parent, tokens, event.block_size, extras)[: len(hashes)]

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
                self._note_removals(self._journal, batch, keys)
            self.removed_copies += copies
            self.removed_hashes += len(removed) - copies
            rows = np.unique(rows[rows >= 0])
            self._engine_blocks.remove(rows[self._blocks.find(self._keys[rows]) < 0])

    def _note_removals(self, journal: Journal, batch: _Batch, keys: Keys) -> None:
        """Tell a journal the removed blocks that have no copy left."""
        rows, gone = self._blocks.find(keys), keys != 0
        for tier, word, at, bits in _by_word(batch.removed_from, rows >= 0):
            gone[at] &= self._column(tier, word)[rows[at]] & bits == 0
        start = 0
        for lane, tier, hashes in batch.removals:
            chosen = np.flatnonzero(gone[start : start + len(hashes)])
            if len(chosen):
                journal.removed(lane, tier, keys[start + chosen].tolist(), [hashes[each] for each in chosen])
            start += len(hashes)

    def _column(self, tier: str, word: int) -> NDArray[np.uint64]:
        if tier not in self._holders:
            self._holders[tier] = [self._blocks.column(np.uint64) for _ in self._alive]
        return self._holders[tier][word]

    def _drop_unheld(self, rows: Rows) -> None:
        """Forget those of different blocks that no lane holds."""
        held = np.zeros(len(rows), dtype=bool)
        for words in self._holders.values():
            for word in words:
                held |= word[rows] != 0
        self._blocks.remove(rows[~held])


def _admits(known: set[Any], value: object, most: int) -> bool:
    """Return whether a set of bounded size has a value, which is added if there is room."""
    if len(known) < most:
        known.add(value)
    return value in known


def _label(kind: str | None) -> str:
    """Return the kind of a cache as metrics name it."""
    return kind if kind in KINDS else "other" if kind else "unknown"


def _extend(places: list[tuple[Lane, str, int]], lane: Lane, tier: str, count: int) -> None:
    """Add blocks to the last place, or to a new one."""
    if places and places[-1][0] is lane and places[-1][1] == tier:
        count += places.pop()[2]
    places.append((lane, tier, count))


def _names(keys: Keys, places: Sequence[tuple[Lane, str, int]]) -> Keys:
    """Return a name for each block in its cache."""
    salts = [xxhash.xxh64_intdigest(tier.encode(), lane.salt) for lane, tier, _ in places]
    return keys ^ np.repeat(np.array(salts, dtype=np.uint64), [number for *_, number in places])


def _by_word(
    places: Sequence[tuple[Lane, str, int]], chosen: NDArray[np.bool_]
) -> Iterator[tuple[str, int, NDArray[np.intp], NDArray[np.uint64]]]:
    """Yield tier, word, and indices of the chosen blocks there, with the bits of their lanes."""
    counts = [count for *_, count in places]
    bits = np.repeat(np.array([lane.bit for lane, *_ in places], dtype=np.uint64), counts)
    kinds = {(tier, lane.word): 0 for lane, tier, _ in places}
    kinds = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.repeat(np.array([kinds[tier, lane.word] for lane, tier, _ in places], dtype=np.intp), counts)
    for (tier, word), number in kinds.items():
        at = np.flatnonzero(chosen & (kind_of == number))
        yield tier, word, at, bits[at]


def _bits(sets: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the bits of sets of lanes, in the last dimension."""
    return np.unpackbits(np.ascontiguousarray(sets).view(np.uint8), axis=-1, bitorder="little")


def _run_counts(sets: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return how many of the sets each lane is in, for each row; fast where neighbours in a row are equal."""
    every, size = sets.reshape(-1), sets.shape[1]
    is_start = np.ones(len(every), dtype=np.bool_)
    np.not_equal(every[1:], every[:-1], out=is_start[1:])
    is_start[::size] = True
    starts = np.flatnonzero(is_start)
    lengths = np.append(starts[1:], len(every)) - starts
    bits, lengths = _bits(every[starts, None]).astype(np.float32), lengths.astype(np.float32)
    rows = np.searchsorted(starts, np.arange(0, len(every) + 1, size)).tolist()
    return np.array([lengths[first:end] @ bits[first:end] for first, end in pairwise(rows)])


def _counts(sets: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return how many of the sets each lane is in."""
    counts: NDArray[np.intp] = _bits(sets).sum(axis=0, dtype=np.intp)
    return counts


def _strings(keys: Sequence[Any] | None, lora_name: str | None) -> ExtraKeys:
    """Return the strings among the extra keys of a block, without the name of the adapter, which is in the chain."""
    texts = [each[0] if isinstance(each, list) and each else each for each in keys or ()]
    found = [text for text in texts if isinstance(text, str)]
    if lora_name in found:
        found.remove(lora_name)
    return found
