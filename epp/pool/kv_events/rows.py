# SPDX-License-Identifier: Apache-2.0
"""A bounded hash table from 64-bit keys to rows of columns, with operations on arrays of keys."""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Rows: TypeAlias = NDArray[np.int32]
"""Indices into the columns of a table; -1 for a key that is not in it."""

_NONE = -1
_MIX, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1
"""2**64 divided by the golden ratio: products of consecutive numbers are far apart."""
_FIRST_BUCKETS = 64
_KEYS_PER_BUCKET = 1.25
_SAMPLES = 8
"""Number of rows that are compared for each evicted row."""
_FEWEST_SAMPLES = 256


class RowTable:
    """Rows by key, in chains by bucket; a full table evicts the least recently used rows of a sample.

    Buckets are added gradually (linear hashing), so that no call rehashes the whole table. Columns have their full
    length from the start, but the operating system allocates memory only for rows in use.
    """

    def __init__(self, capacity: int, secret: int) -> None:
        """Hold up to `capacity` keys; `secret` determines the buckets of keys."""
        self.capacity = capacity
        self.count = 0
        self.admitted = self.evicted = 0
        """Number of keys that were added, and of keys that were evicted."""
        self._secret = np.uint64((2 * secret + 1) * _MIX & _MASK)  # odd, and large even if the secret is small
        self._random = np.random.default_rng(secret)
        self._columns: list[NDArray[Any]] = []
        self.keys: Keys = self.column(np.uint64)
        """Key of each row; 0 for a free row."""
        self.used: NDArray[np.uint32] = self.column(np.uint32)
        """Time of the last use, in any unit."""
        self._next: Rows = np.zeros(capacity, dtype=np.int32)
        self._heads: Rows = np.zeros(self._buckets_for(capacity), dtype=np.int32)
        self._heads[:_FIRST_BUCKETS] = _NONE
        self._buckets = self._base = _FIRST_BUCKETS
        self._free: list[Rows] = []
        self.end = 0
        """Index after the last row that was ever used."""

    def column(self, kind: type[Any]) -> NDArray[Any]:
        """Add a column with a value for each row; the value of free rows is 0."""
        # NumPy would request pages of 2 MiB, and the first use of each takes two milliseconds.
        memory = mmap(-1, max(1, self.capacity) * np.dtype(kind).itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        column = np.frombuffer(memory, dtype=kind)[: self.capacity]
        self._columns.append(column)
        return column

    def find(self, keys: Keys) -> Rows:
        rows = self._heads[self._bucket(keys)]
        wrong = np.flatnonzero((rows >= 0) & (self.keys[rows] != keys))
        while len(wrong):
            follow = self._next[rows[wrong]]
            rows[wrong] = follow
            wrong = wrong[(follow >= 0) & (self.keys[follow] != keys[wrong])]
        return rows

    def put(self, keys: Keys, now: int) -> Rows:
        """Return the row of each key, and add missing keys. Keys may repeat, and must not be 0."""
        rows = self.find(keys)
        missing = np.unique(keys[rows < 0])
        if len(missing):
            self.used[rows[rows >= 0]] = now  # protects these rows from eviction
            self._evict(self.count + len(missing) - self.capacity, now)
            self._grow(self.count + len(missing))
            added = missing[: self.capacity - self.count]
            rows = self._free_rows(len(added))
            self.keys[rows], self.used[rows] = added, now
            self.count += len(rows)
            self.admitted += len(rows)
            self._link(rows)
            rows = self.find(keys)
        self.used[rows[rows >= 0]] = now
        return rows

    def remove(self, rows: Rows) -> None:
        """Remove rows, which are unique and have keys."""
        if not len(rows):
            return
        buckets = np.unique(self._bucket(self.keys[rows]))
        for column in self._columns:
            column[rows] = 0
        members = self._members(buckets)
        self._heads[buckets] = _NONE
        self._link(members[self.keys[members] != 0])
        self._free.append(rows)
        self.count -= len(rows)

    def _bucket(self, keys: Keys) -> NDArray[np.int64]:
        hashes = (keys * self._secret).byteswap().view(np.int64)  # the highest bits depend on all bits of a key
        buckets = hashes & (2 * self._base - 1)
        return np.where(buckets < self._buckets, buckets, hashes & (self._base - 1))

    def _buckets_for(self, keys: int) -> int:
        return max(_FIRST_BUCKETS, int(keys / _KEYS_PER_BUCKET))

    def _free_rows(self, count: int) -> Rows:
        found: list[Rows] = []
        while count and self._free:
            rows = self._free.pop()
            if len(rows) > count:
                self._free.append(rows[count:])
                rows = rows[:count]
            found.append(rows)
            count -= len(rows)
        found.append(np.arange(self.end, self.end + count, dtype=np.int32))
        self.end += count
        return np.concatenate(found)

    def _members(self, buckets: NDArray[np.int64]) -> Rows:
        """Return all rows in the chains of these buckets, which are unique."""
        found: list[Rows] = []
        rows = self._heads[buckets]
        while len(rows := rows[rows >= 0]):
            found.append(rows)
            rows = self._next[rows]
        return np.concatenate(found) if found else rows

    def _link(self, rows: Rows) -> None:
        """Put rows at the beginning of the chains of their keys."""
        if not len(rows):
            return
        homes = self._bucket(self.keys[rows])
        order = np.argsort(homes, kind="stable")
        rows, homes = rows[order], homes[order]
        firsts = np.flatnonzero(np.diff(homes, prepend=-1))
        self._next[rows[:-1]] = rows[1:]
        self._next[rows[np.append(firsts[1:], len(rows)) - 1]] = self._heads[homes[firsts]]
        self._heads[homes[firsts]] = rows[firsts]

    def _evict(self, excess: int, now: int) -> None:
        """Remove `excess` keys that were not used at the time `now`."""
        if excess <= 0 or not self.end:
            return
        sample = np.unique(self._random.integers(0, self.end, max(_FEWEST_SAMPLES, excess * _SAMPLES), dtype=np.int32))
        sample = sample[(self.keys[sample] != 0) & (self.used[sample] != now)]
        oldest = sample[np.argsort(self.used[sample], kind="stable")[:excess]]
        self.evicted += len(oldest)
        self.remove(oldest)

    def _grow(self, count: int) -> None:
        """Add buckets for `count` keys."""
        wanted = min(self._buckets_for(count), len(self._heads))
        while self._buckets < wanted:
            base = self._base
            split = np.arange(self._buckets - base, min(wanted - base, base))
            rows = self._members(split)
            self._heads[split] = self._heads[split + base] = _NONE
            self._buckets += len(split)
            if self._buckets == 2 * base:
                self._base = self._buckets
            self._link(rows)
