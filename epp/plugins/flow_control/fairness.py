# SPDX-License-Identifier: Apache-2.0
"""Which flow is next: none in particular, or each in turn."""

from collections import OrderedDict

from epp.framework import Parameters
from epp.framework.flow_control import FairnessPolicy, FlowOrder, Queued
from epp.framework.heap import Heap


class _Strict(FlowOrder):
    """The flow whose first request comes before those of all others."""

    def __init__(self) -> None:
        self._heads: Heap[str] = Heap()
        self._numbers: dict[str, int] = {}

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._forget(flow)
        self._numbers[flow] = queued.number
        self._heads.push(key, queued.number, flow)

    def empty(self, flow: str) -> None:
        self._forget(flow)
        self._numbers.pop(flow, None)

    def first(self) -> str:
        found = self._heads.first()
        if found is None:
            raise LookupError("no flow waits")
        return found[1]

    def dispatched(self, flow: str) -> None: ...

    def _forget(self, flow: str) -> None:
        number = self._numbers.get(flow)
        if number is not None:
            self._heads.discard(number)


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """All flows are one: the request that the ordering policy puts first goes first, whoever sent it."""

    plugin_type = "global-strict-fairness-policy"
    in_order_of_arrival = True

    def order(self) -> FlowOrder:
        return _Strict()


class _RoundRobin(FlowOrder):
    """The flow whose turn was longest ago; one that is new is the last."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, None] = OrderedDict()

    def head(self, flow: str, key: float, queued: Queued) -> None:  # noqa: ARG002  whatever it is
        self._turns.setdefault(flow)

    def empty(self, flow: str) -> None:
        self._turns.pop(flow, None)

    def first(self) -> str:
        return next(iter(self._turns))

    def dispatched(self, flow: str) -> None:
        self._turns.move_to_end(flow)


class RoundRobinFairness(FairnessPolicy[Parameters]):
    """Each flow in turn, one request at a time."""

    plugin_type = "round-robin-fairness-policy"

    def order(self) -> FlowOrder:
        return _RoundRobin()
