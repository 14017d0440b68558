# SPDX-License-Identifier: Apache-2.0
"""Flows that are held back because their tenant's quota is used up."""

from itertools import islice
from math import inf

from epp.framework.heap import Heap
from epp.framework.quotas import Blocked


class ThrottledFlows:
    """By name, with the time at which each resumes by itself."""

    __slots__ = ("_blocked", "_ends", "_numbers")

    def __init__(self) -> None:
        self._blocked: dict[str, tuple[int, Blocked]] = {}
        self._ends: Heap[str] = Heap()
        """Those that end by themselves."""
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._blocked)

    def __contains__(self, flow: object) -> bool:
        return flow in self._blocked

    @property
    def next_end(self) -> float:
        """Time at which the first one resumes by itself, in seconds on the clock; infinite for never."""
        first = self._ends.first()
        return inf if first is None else first[0]

    def why(self, flow: str) -> Blocked | None:
        """Return what a flow is held for; None for one that is not."""
        found = self._blocked.get(flow)
        return None if found is None else found[1]

    def add(self, flow: str, blocked: Blocked) -> None:
        """Hold a flow that is not held."""
        self._numbers += 1
        self._blocked[flow] = self._numbers, blocked
        if blocked.until is not None:
            self._ends.push(blocked.until, self._numbers, flow)

    def discard(self, flow: str) -> bool:
        """Resume a flow; return whether it was held."""
        found = self._blocked.pop(flow, None)
        if found is None:
            return False
        self._ends.discard(found[0])
        return True

    def some(self, most: int) -> list[str]:
        """Return some of them, others each time."""
        flows = list(islice(self._blocked, most))
        for flow in flows:
            self._blocked[flow] = self._blocked.pop(flow)
        return flows

    def due(self, now: float) -> str | None:
        """Return a flow whose time has come; None without one."""
        first = self._ends.first()
        return None if first is None or first[0] > now else first[1]
