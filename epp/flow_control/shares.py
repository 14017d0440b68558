# SPDX-License-Identifier: Apache-2.0
"""What each flow of a band takes of its limits, and which requests give way to one of a flow that takes less."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Generic, NamedTuple

from typing_extensions import TypeVar

T = TypeVar("T")

_FEW = 64
_MOST_GIVE_WAY = 32
"""Requests that give way to one with a long body."""


class _Entry(NamedTuple, Generic[T]):
    number: int
    size_bytes: int
    waiting: T


class Shares(Generic[T]):
    """All that waits at one priority, by flow; numbers are unique, and grow."""

    __slots__ = ("_by_bytes", "_by_requests", "_flows")

    def __init__(self) -> None:
        self._flows: dict[str, OrderedDict[int, _Entry[T]]] = {}
        """What waits by number, oldest first."""
        self._by_requests = _Largest()
        self._by_bytes = _Largest()

    def add(self, flow: str, number: int, size_bytes: int, waiting: T) -> None:
        """Take in a request."""
        self._flows.setdefault(flow, OrderedDict())[number] = _Entry(number, size_bytes, waiting)
        self._note(flow, self._by_bytes.of(flow) + size_bytes)

    def remove(self, flow: str, number: int) -> None:
        """Forget a request."""
        entry = self._flows[flow].pop(number)
        self._note(flow, self._by_bytes.of(flow) - entry.size_bytes)

    def newest_of_longest(self) -> T:
        """Return the last to come of the flow with most requests; there has to be one."""
        return next(self._newest(self._by_requests.first())).waiting

    def newest_of_largest(self) -> T:
        """Return the last to come of the flow with most bytes; there has to be one."""
        return next(self._newest(self._by_bytes.first())).waiting

    def giving_way(self, flow: str, size_bytes: int, *, place: bool, lacking_bytes: int) -> list[T] | None:
        """Return which requests go so that one more of a flow may come; None where that would not be fair.

        For a place that is the last to come of the flow with most requests, and for the bytes that are lacking, those
        of the flow with most bytes. A flow that gives way keeps as much as that of the newcomer has then.
        """
        found: list[_Entry[T]] = []
        longest = self._by_requests.first()
        if place:
            if self._by_requests.of(longest) - 1 < self._by_requests.of(flow) + 1:
                return None
            found.append(next(self._newest(longest)))
            lacking_bytes -= found[0].size_bytes
        if lacking_bytes <= 0:
            return [each.waiting for each in found]
        largest = self._by_bytes.first()
        own = self._by_bytes.of(flow) + size_bytes
        left = self._by_bytes.of(largest)
        begun = len(found) if largest == longest else 0
        left -= sum(each.size_bytes for each in found[:begun])
        for entry in islice(self._newest(largest), begun, _MOST_GIVE_WAY):
            left -= entry.size_bytes
            if left < own:
                return None
            found.append(entry)
            lacking_bytes -= entry.size_bytes
            if lacking_bytes <= 0:
                return [each.waiting for each in found]
        return None

    def _newest(self, flow: str) -> Iterator[_Entry[T]]:
        return reversed(self._flows.get(flow, OrderedDict()).values())

    def _note(self, flow: str, size_bytes: int) -> None:
        requests = len(self._flows[flow])
        if requests:
            self._by_requests.set(flow, requests, size_bytes)
            self._by_bytes.set(flow, size_bytes, requests)
        else:
            del self._flows[flow]
            self._by_requests.discard(flow)
            self._by_bytes.discard(flow)


class _Largest:
    """The flow that takes most of a limit; of several, that which takes most of the other limit.

    What a flow took before leaves a stale entry that is dropped on the way up, or once these are as many as flows.
    """

    __slots__ = ("_heap", "_takes")

    def __init__(self) -> None:
        self._takes: dict[str, tuple[int, int]] = {}
        """Negative numbers, so that the largest is the first in the heap."""
        self._heap: list[tuple[tuple[int, int], str]] = []

    def of(self, flow: str) -> int:
        """Return what a flow takes; 0 for one that is not known."""
        return -self._takes.get(flow, (0, 0))[0]

    def set(self, flow: str, takes: int, of_other: int) -> None:
        """Note what a flow takes of this limit, and of the other one."""
        self._takes[flow] = key = -takes, -of_other
        heapq.heappush(self._heap, (key, flow))
        if len(self._heap) > 2 * len(self._takes) + _FEW:
            self._heap = [(each, name) for name, each in self._takes.items()]
            heapq.heapify(self._heap)

    def discard(self, flow: str) -> None:
        """Forget a flow."""
        del self._takes[flow]

    def first(self) -> str:
        """Return the flow; empty where there is none."""
        heap = self._heap
        while heap:
            key, flow = heap[0]
            if self._takes.get(flow) == key:
                return flow
            heapq.heappop(heap)
        return ""
