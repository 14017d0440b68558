# SPDX-License-Identifier: Apache-2.0
"""A heap from which entries may be taken out anywhere, at once and for good."""

import heapq
from collections.abc import Iterator
from typing import Generic

from typing_extensions import TypeVar

T = TypeVar("T")
K = TypeVar("K", float, tuple[float, ...], default=float)

_FEW = 64


class Heap(Generic[T, K]):
    """Entries by key, the least first, and by number where keys are equal; numbers are unique.

    What is taken out other than from the top leaves a mark that is cleared on the way up, or once there are more marks
    than entries: so the memory that it takes stays in proportion.
    """

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[K, int, T]] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, number: int) -> bool:
        """Return whether the entry of this number is there."""
        return number in self._live

    def __iter__(self) -> Iterator[T]:
        """Yield the entries, in no order."""
        return (each[2] for each in self._entries if each[1] in self._live)

    def push(self, key: K, number: int, entry: T) -> None:
        """Add an entry."""
        self._live.add(number)
        heapq.heappush(self._entries, (key, number, entry))

    def discard(self, number: int) -> None:
        """Take out the entry of this number, if it is there."""
        self._live.discard(number)
        if len(self._entries) > 2 * len(self._live) + _FEW:
            self._entries = [each for each in self._entries if each[1] in self._live]
            heapq.heapify(self._entries)

    def first(self) -> tuple[K, T] | None:
        """Return the key and the entry at the top; None where there is none."""
        entries = self._entries
        while entries:
            key, number, entry = entries[0]
            if number in self._live:
                return key, entry
            heapq.heappop(entries)
        return None
