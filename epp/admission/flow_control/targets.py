# SPDX-License-Identifier: Apache-2.0
"""Requests that wait and have a target for their first token, by the time at which it is due."""

from math import inf

from epp.admission.flow_control.band import Waiting
from epp.framework.heap import Heap
from epp.framework.rates import ttft_target_seconds
from epp.framework.request import Request


def due_at(request: Request) -> float:
    """Return when the first token of a request is due, in seconds on the clock; infinite without a target."""
    return request.received_at + ttft_target_seconds(request.headers)


class Targets:
    """Only requests that name a target are in it."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: Heap[Waiting] = Heap()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next(self) -> float:
        """When the next one is due; infinite for never."""
        first = self._due.first()
        return inf if first is None else first[0]

    def add(self, waiting: Waiting) -> None:
        """Take in a request; nothing where it has no target."""
        due = due_at(waiting.queued.request)
        if due < inf:
            self._due.push(due, waiting.number, waiting)

    def discard(self, waiting: Waiting) -> None:
        """Forget a request that waits no longer."""
        self._due.discard(waiting.number)

    def missed(self, now: float) -> Waiting | None:
        """Return a request that waits although it was due; None where there is none."""
        first = self._due.first()
        return None if first is None or first[0] > now else first[1]
