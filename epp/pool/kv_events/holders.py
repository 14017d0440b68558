# SPDX-License-Identifier: Apache-2.0
"""Blocks by key, with the endpoints whose caches hold them, by tier; all operations work on arrays."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.pool.kv_events.rows import Keys, Rows, RowTable

_MOST_COPIED = 1 << 20
"""Most blocks whose copies are counted: 22 bytes each."""


class Copies:
    """Number of further copies of a block in a cache, by a name for both; the least recently used are forgotten."""

    def __init__(self, secret: int) -> None:
        self.table = RowTable(_MOST_COPIED, secret)
        self._counts: NDArray[np.int32] = self.table.column(np.int32)

    def add(self, names: Keys, now: int) -> None:
        """Count one more copy of each block; `now` is a time in any unit."""
        rows = self.table.put(np.maximum(names, 1), now)
        np.add.at(self._counts, rows[rows >= 0], 1)

    def drop(self, names: Keys) -> NDArray[np.bool_]:
        """Count one copy less of each block; return a mask of the blocks that had a further copy."""
        rows = self.table.find(np.maximum(names, 1))
        found = rows >= 0
        np.subtract.at(self._counts, rows[found], 1)
        left = np.unique(rows[found])
        self.table.remove(left[self._counts[left] <= 0])
        return found


_BITS = 64
"""Number of lanes in one word of a set of holders."""
_SWEPT = 1 << 17
"""Rows from which one step removes freed lanes, in half a millisecond."""
HOST_TIER = "cpu"
SPECULATIVE = "speculative"
"""Tier of blocks that an engine is expected to store."""


class Lane:
    """The caches of one engine; its number is a bit position in sets of holders."""

    __slots__ = ("bit", "id", "kinds", "number", "salt", "word")

    def __init__(self, identifier: int) -> None:
        self.id = identifier
        self.number, self.word, self.bit = -1, 0, np.uint64(0)
        self.salt = 0
        """Unique number, which changes when the lane is cleared."""
        self.kinds: dict[int | None, str] = {}
        """Kinds of caches by group, from events of stored blocks."""


class Held(NamedTuple):
    """Leading blocks of a prompt that the caches of each lane hold."""

    blocks: NDArray[np.int32]
    """Blocks in any tier."""
    weighted: NDArray[np.float64]
    """Blocks, each counted with the weight of its best tier."""
    by_tier: Mapping[str, NDArray[np.int32]]
    """Blocks by best tier; empty if no lane holds any."""
    offloaded: NDArray[np.int32]
    """Blocks in the tier `cpu`."""


Places: TypeAlias = Sequence[tuple[Lane, str, int]]
"""Lanes, tiers and numbers of blocks, in the order of the blocks."""


class CachedBlocks:
    """Blocks with the lanes that hold them in each tier; the least recently used are evicted."""

    def __init__(self, *, capacity: int, secret: int) -> None:
        self.blocks = RowTable(capacity, secret)
        self._holders: dict[str, list[NDArray[np.uint64]]] = {}
        """Sets of lanes, by tier, word and row."""
        self._numbers = np.zeros(0, dtype=np.intp)
        """Number of each lane, by id; -1 if it is removed."""
        self._count = 0
        """Count of numbers in use."""
        self._free_ids: list[int] = []
        self._alive = np.zeros(0, dtype=np.uint64)
        """Lanes in use, by word."""
        self._free: list[int] = []
        self._leaving: list[int] = []
        """Numbers that the next sweep clears."""
        self._clearing: list[int] = []
        """Numbers that the current sweep clears."""
        self._swept = 0
        self._copies = Copies(secret)
        self._salts = count(1)

    def __len__(self) -> int:
        return self.blocks.count

    def add(self) -> Lane:
        """Return a new, empty lane."""
        if not self._free_ids:
            self._free_ids.append(len(self._numbers))
            self._numbers = np.append(self._numbers, -1)
        lane = Lane(self._free_ids.pop())
        self._number(lane)
        return lane

    def remove(self, lane: Lane) -> None:
        """Remove a lane: lookups ignore it from now on, and `sweep` frees the memory."""
        self._retire(lane)
        self._numbers[lane.id] = -1
        self._free_ids.append(lane.id)

    def clear(self, lane: Lane) -> None:
        self._retire(lane)
        self._number(lane)

    def match(self, keys: Keys, weights: Mapping[str, float], lanes: NDArray[np.intp], now: int | None) -> Held:
        """Return the leading blocks in the caches of lanes, given by id; the default weight of a tier is 1.

        The id -1 stands for an endpoint without a lane. If `now` is None, the blocks do not count as used.
        """
        blocks, weighted = np.zeros(len(lanes), dtype=np.int32), np.zeros(len(lanes))
        offloaded = blocks.copy()
        rows = self.blocks.find(keys)
        missing = np.flatnonzero(rows < 0)
        rows = rows[: missing[0]] if len(missing) else rows
        numbers = self._numbers_of(lanes)
        where = np.flatnonzero(numbers >= 0)
        if not len(rows) or not len(where) or not self._holders:
            return Held(blocks, weighted, {}, offloaded)
        numbers = numbers[where]
        if now is not None:
            self.blocks.used[rows] = now
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
        """Return the number of blocks that lanes hold; reads the whole index, so it is only for debug pages."""
        counts = np.zeros(len(self._alive) * _BITS, dtype=np.int64)
        for start in range(0, self.blocks.end, _SWEPT):
            rows = slice(start, min(start + _SWEPT, self.blocks.end))
            held = [np.stack([word[rows] for word in words], axis=1) for words in self._holders.values()]
            if held:
                counts += _bits(np.bitwise_or.reduce(held)).sum(axis=0, dtype=np.int64)
        numbers = self._numbers_of(lanes)
        return np.where(numbers < 0, 0, counts[numbers]) if len(counts) else np.zeros(len(lanes), dtype=np.int64)

    def _numbers_of(self, lanes: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.where(lanes < 0, -1, self._numbers[lanes]) if len(self._numbers) else np.full(len(lanes), -1)

    def store(self, keys: Keys, places: Places, now: int) -> None:
        """Add blocks to caches; `places` has lanes, tiers and numbers of blocks, in the order of `keys`."""
        rows = self.blocks.put(keys, now)
        for tier, word, chosen, bits in _by_word(places, rows >= 0):
            column, at = self._column(tier, word), rows[chosen]
            again = chosen[column[at] & bits != 0]
            if len(again):
                self._copies.add(_names(keys, places)[again], now)
            np.bitwise_or.at(column, at, bits)

    def withdraw(self, keys: Keys, places: Places) -> int:
        """Remove blocks from caches and forget unheld blocks; return the number of blocks with other copies."""
        rows, copies = self.blocks.find(keys), 0
        for tier, word, chosen, bits in _by_word(places, rows >= 0):
            column, at = self._column(tier, word), rows[chosen]
            last = np.ones(len(at), dtype=np.bool_)
            if self._copies.table.count:
                last = ~self._copies.drop(_names(keys, places)[chosen])
            copies += len(last) - int(last.sum())
            np.bitwise_and.at(column, at[last], ~bits[last])
        self._drop_unheld(np.unique(rows[rows >= 0]))
        return copies

    def lacking(self, keys: Keys, places: Places) -> NDArray[np.bool_]:
        rows = self.blocks.find(keys)
        found = np.ones(len(keys), dtype=np.bool_)
        for tier, word, at, bits in _by_word(places, rows >= 0):
            found[at] = self._column(tier, word)[rows[at]] & bits == 0
        return found

    def sweep(self) -> bool:
        """Free some memory of removed lanes; return whether there is more."""
        if not self._clearing:
            self._clearing, self._leaving, self._swept = self._leaving, [], 0
        if not self._clearing:
            return False
        masks = np.zeros(len(self._alive), dtype=np.uint64)
        for number in self._clearing:
            masks[number // _BITS] |= np.uint64(1 << number % _BITS)
        end = min(self._swept + _SWEPT, self.blocks.end)
        for words in self._holders.values():
            for word, mask in zip(words, masks, strict=True):
                if mask:
                    word[self._swept : end] &= ~mask
        in_use = self._swept + np.flatnonzero(self.blocks.keys[self._swept : end])
        self._drop_unheld(in_use.astype(np.int32))
        self._swept = end
        if end == self.blocks.end:
            self._free += self._clearing
            self._clearing = []
        return bool(self._clearing or self._leaving)

    def _number(self, lane: Lane) -> None:
        if not self._free:
            self._free.append(self._count)
            if self._count % _BITS == 0:
                self._alive = np.append(self._alive, np.uint64(0))
                for words in self._holders.values():
                    words.append(self.blocks.column(np.uint64))
            self._count += 1
        number = self._free.pop()
        lane.number, lane.word, lane.bit = number, number // _BITS, np.uint64(1 << number % _BITS)
        lane.salt = next(self._salts)
        self._numbers[lane.id] = lane.number
        self._alive[lane.word] |= lane.bit

    def _retire(self, lane: Lane) -> None:
        self._alive[lane.word] &= ~lane.bit
        self._leaving.append(lane.number)

    def _column(self, tier: str, word: int) -> NDArray[np.uint64]:
        if tier not in self._holders:
            self._holders[tier] = [self.blocks.column(np.uint64) for _ in self._alive]
        return self._holders[tier][word]

    def _drop_unheld(self, rows: Rows) -> None:
        """Forget the blocks that no lane holds; `rows` are unique."""
        held = np.zeros(len(rows), dtype=bool)
        for words in self._holders.values():
            for word in words:
                held |= word[rows] != 0
        self.blocks.remove(rows[~held])


def _names(keys: Keys, places: Places) -> Keys:
    """Return a name for each block in its cache."""
    salts = [xxhash.xxh64_intdigest(tier.encode(), lane.salt) for lane, tier, _ in places]
    return keys ^ np.repeat(np.array(salts, dtype=np.uint64), [number for *_, number in places])


def _by_word(
    places: Places, chosen: NDArray[np.bool_]
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
    """Return the number of sets that contain each lane, for each row; fast if neighbours in a row are equal."""
    every, size = sets.reshape(-1), sets.shape[1]
    is_start = np.ones(len(every), dtype=np.bool_)
    np.not_equal(every[1:], every[:-1], out=is_start[1:])
    is_start[::size] = True
    starts = np.flatnonzero(is_start)
    lengths = np.append(starts[1:], len(every)) - starts
    bits, lengths = _bits(every[starts, None]).astype(np.float32), lengths.astype(np.float32)
    rows = np.searchsorted(starts, np.arange(0, len(every) + 1, size)).tolist()
    return np.array([lengths[first:end] @ bits[first:end] for first, end in pairwise(rows)])
