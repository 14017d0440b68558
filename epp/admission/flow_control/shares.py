# SPDX-License-Identifier: Apache-2.0
"""Usage of a band's limits by flow, and the requests to evict for a flow with a smaller share."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Generic, NamedTuple

from typing_extensions import TypeVar

from epp.framework.heap import Heap

T = TypeVar("T")

_MOST_GIVE_WAY = 32
"""Requests to evict for one with a long body."""


class _Entry(NamedTuple, Generic[T]):
    number: int
    size_bytes: int
    waiting: T


class Shares(Generic[T]):
    """All that waits at one priority, by flow; numbers are unique, and grow."""

    __slots__ = ("_flows", "_largest", "_longest", "_size_bytes")

    def __init__(self) -> None:
        self._flows: dict[str, OrderedDict[int, _Entry[T]]] = {}
        """What waits by number, oldest first."""
        self._size_bytes: dict[str, int] = {}
        """Of what waits, by flow."""
        self._longest: Heap[str, tuple[float, ...], str] = Heap()
        """Flows, the one with most requests first; of several, the one with most bytes. Keys are negative for that."""
        self._largest: Heap[str, tuple[float, ...], str] = Heap()
        """The same the other way round."""

    def add(self, flow: str, number: int, size_bytes: int, waiting: T) -> None:
        """Take in a request."""
        self._flows.setdefault(flow, OrderedDict())[number] = _Entry(number, size_bytes, waiting)
        self._note(flow, size_bytes)

    def remove(self, flow: str, number: int) -> None:
        """Forget a request."""
        entry = self._flows[flow].pop(number)
        self._note(flow, -entry.size_bytes)

    def newest_of_longest(self) -> T:
        """Return the last to come of the flow with most requests; there has to be one."""
        return next(self._newest(_name_of_first(self._longest))).waiting

    def newest_of_largest(self) -> T:
        """Return the last to come of the flow with most bytes; there has to be one."""
        return next(self._newest(_name_of_first(self._largest))).waiting

    def giving_way(self, flow: str, size_bytes: int, *, place: bool, lacking_bytes: int) -> list[T] | None:
        """Return which requests go so that one more of a flow may come; None where that would not be fair.

        For a place that is the last to come of the flow with most requests, and for the bytes that are lacking, those
        of the flow with most bytes. A flow that gives way keeps as much as that of the newcomer has then.
        """
        found: list[_Entry[T]] = []
        longest = _name_of_first(self._longest)
        if place:
            if self._requests_of(longest) - 1 < self._requests_of(flow) + 1:
                return None
            found.append(next(self._newest(longest)))
            lacking_bytes -= found[0].size_bytes
        if lacking_bytes <= 0:
            return [each.waiting for each in found]
        largest = _name_of_first(self._largest)
        own = self._size_bytes.get(flow, 0) + size_bytes
        left = self._size_bytes.get(largest, 0)
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

    def _requests_of(self, flow: str) -> int:
        return len(self._flows.get(flow, ()))

    def _note(self, flow: str, more_bytes: int) -> None:
        requests, size_bytes = len(self._flows[flow]), self._size_bytes.get(flow, 0) + more_bytes
        if requests:
            self._size_bytes[flow] = size_bytes
            self._longest.push((-requests, -size_bytes), flow, flow)
            self._largest.push((-size_bytes, -requests), flow, flow)
        else:
            del self._flows[flow], self._size_bytes[flow]
            self._longest.discard(flow)
            self._largest.discard(flow)


def _name_of_first(flows: Heap[str, tuple[float, ...], str]) -> str:
    """Return the flow; empty where there is none."""
    found = flows.first()
    return "" if found is None else found[1]
