# SPDX-License-Identifier: Apache-2.0
"""An order of flows that any policy may use: that of their first requests."""

from epp.framework.flow_control import FlowOrder, Queued
from epp.framework.heap import Heap


class HeadOrder(FlowOrder):
    """The flow whose first request comes before those of all others: by its key, then by arrival."""

    def __init__(self) -> None:
        self._heads: Heap[str] = Heap()
        self._numbers: dict[str, int] = {}

    def head(self, flow: str, key: float, queued: Queued) -> None:
        """Note the first request of a flow."""
        self._forget(flow)
        self._numbers[flow] = queued.number
        self._heads.push(key, queued.number, flow)

    def empty(self, flow: str) -> None:
        """Forget a flow."""
        self._forget(flow)
        self._numbers.pop(flow, None)

    def first(self) -> str:
        """Return the flow that is next; raises LookupError for none."""
        found = self._heads.first()
        if found is None:
            raise LookupError("no flow waits")
        return found[1]

    def dispatched(self, flow: str) -> None:
        """Do nothing: turns do not count."""

    def _forget(self, flow: str) -> None:
        number = self._numbers.get(flow)
        if number is not None:
            self._heads.discard(number)
