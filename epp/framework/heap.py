# SPDX-License-Identifier: Apache-2.0
"""A heap in which any entry may move or go, each at the cost of a few steps."""

from collections.abc import Iterator
from typing import Generic

from typing_extensions import TypeVar

T = TypeVar("T")
K = TypeVar("K", float, tuple[float, ...], default=float)
N = TypeVar("N", int, str, default=int)


class Heap(Generic[T, K, N]):
    """Entries by key, the least first, and by name where keys are equal; each has a name of its own, such as a number.

    Each change takes time in proportion to the logarithm of the number of entries. Removed entries leave no marks that
    would have to be cleared later.
    """

    __slots__ = ("_entries", "_places")

    def __init__(self) -> None:
        self._entries: list[tuple[K, N, T]] = []
        """Each before the two at twice its index and one or two."""
        self._places: dict[N, int] = {}
        """Index of each, by name."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: N) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[T]:
        return (each[2] for each in self._entries)

    def push(self, key: K, name: N, entry: T) -> None:
        """Add an entry, or put it in place of the one of this name."""
        place, pushed = self._places.get(name), (key, name, entry)
        if place is None:
            self._entries.append(pushed)
            self._up(len(self._entries) - 1, pushed)
        else:
            self._put(place, pushed)

    def discard(self, name: N) -> None:
        """Take out the entry of this name, if it is there."""
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._entries.pop()
        if place < len(self._entries):
            self._put(place, last)

    def first(self) -> tuple[K, T] | None:
        """Return the key and the entry at the top; None where there is none."""
        if not self._entries:
            return None
        key, _, entry = self._entries[0]
        return key, entry

    def _put(self, place: int, entry: tuple[K, N, T]) -> None:
        if place and entry < self._entries[(place - 1) >> 1]:
            self._up(place, entry)
        else:
            self._down(place, entry)

    def _up(self, place: int, entry: tuple[K, N, T]) -> None:
        entries, places = self._entries, self._places
        while place:
            above = entries[(place - 1) >> 1]
            if above < entry:
                break
            entries[place] = above
            places[above[1]] = place
            place = (place - 1) >> 1
        entries[place] = entry
        places[entry[1]] = place

    def _down(self, place: int, entry: tuple[K, N, T]) -> None:
        entries, places = self._entries, self._places
        count = len(entries)
        while (child := 2 * place + 1) < count:
            below = entries[child]
            if child + 1 < count and entries[child + 1] < below:
                child += 1
                below = entries[child]
            if entry < below:
                break
            entries[place] = below
            places[below[1]] = place
            place = child
        entries[place] = entry
        places[entry[1]] = place
