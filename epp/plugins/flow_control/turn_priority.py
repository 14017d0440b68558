# SPDX-License-Identifier: Apache-2.0
"""Order of flows by the number of turns that their sessions have taken, and by the wait of their first requests."""

from collections.abc import Callable
from typing import TypeAlias

from epp.framework.flow_control import FlowOrder, Queued
from epp.framework.heap import Heap

Turn: TypeAlias = Callable[[str, float], int]
"""Returns the turn of a request of a flow that arrived at this time: 1 for the first one."""


class TurnPriority(FlowOrder):
    """Order by `turn + weight * wait_seconds` of the first request, highest first.

    All waits grow alike, so the order only changes with arrivals and with turns: `weight * arrival - turn` is the key.
    """

    def __init__(self, turn: Turn, weight: float) -> None:
        self._turn = turn
        self._weight = weight
        self._heads: dict[str, Queued] = {}
        self._flows: Heap[str, tuple[float, ...], str] = Heap()

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._heads[flow] = queued
        self.changed(flow)

    def empty(self, flow: str) -> None:
        self._heads.pop(flow, None)
        self._flows.discard(flow)

    def first(self) -> str:
        first = self._flows.first()
        assert first is not None  # noqa: S101  it is called only while there is one
        return first[1]

    def dispatched(self, flow: str) -> None:
        """Do nothing: turns are counted as requests are routed, queued or not."""

    def changed(self, flow: str) -> None:
        """Update the turn of a flow, if it waits here."""
        queued = self._heads.get(flow)
        if queued is not None:
            turn = self._turn(flow, queued.enqueued_at)
            key = self._weight * queued.enqueued_at - turn
            self._flows.push((key, queued.number), flow, flow)
