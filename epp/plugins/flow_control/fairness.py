# SPDX-License-Identifier: Apache-2.0
"""Which flow is next: none in particular, or each in turn."""

from collections import OrderedDict

from epp.framework import Parameters
from epp.framework.flow_control import FairnessPolicy, FlowOrder, HeadOrder, Queued


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """All flows are one: the request that the ordering policy puts first goes first, whoever sent it."""

    plugin_type = "global-strict-fairness-policy"
    in_order_of_arrival = True

    def order(self) -> FlowOrder:
        return HeadOrder()


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
