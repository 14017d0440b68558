# SPDX-License-Identifier: Apache-2.0
"""Policies of flow control that need no memory: ordering, fairness, eviction and usage limits."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from epp.framework import Parameters, PositiveShare, Request, Stability
from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    FlowOrder,
    OrderingPolicy,
    Queued,
    UnderWay,
    UsageLimitPolicy,
)
from epp.framework.flow_orders import HeadOrder
from epp.framework.latency_targets import ttft_target_seconds


class FcfsOrdering(OrderingPolicy[Parameters]):
    """First come, first served."""

    plugin_type = "fcfs-ordering-policy"
    in_order_of_arrival = True

    def key(self, queued: Queued) -> float:  # noqa: ARG002  numbers decide
        return 0.0


class EdfOrdering(OrderingPolicy[Parameters]):
    """The request that will first have waited too long: the time at which it began to wait, and its TTL."""

    plugin_type = "edf-ordering-policy"

    def key(self, queued: Queued) -> float:
        return queued.deadline


class SloDeadlineOrdering(OrderingPolicy[Parameters]):
    """The request whose first token is due first: when it came, and its `x-llm-d-slo-ttft-ms`; others are last."""

    plugin_type = "slo-deadline-ordering-policy"

    def key(self, queued: Queued) -> float:
        return queued.request.received_at + ttft_target_seconds(queued.request.headers)


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


class SheddableEvictionParameters(Parameters, frozen=True):
    """How far a request may have got."""

    after_first_token: bool = False
    """End requests also when they have been answered in part: their clients see a response that breaks off."""


class SheddableEviction(EvictionFilter[SheddableEvictionParameters]):
    """Requests of negative priority, until their first token."""

    plugin_type = "sheddable-eviction-filter"
    stability = Stability.ALPHA

    def setup(self) -> None:
        self.after_first_token = self.parameters.after_first_token

    def evictable(self, request: Request) -> bool:
        return request.priority < 0


class PriorityThenTimeEviction(EvictionOrder[Parameters]):
    """The lowest priority first; of equal ones the request that left last, as it has the least work to lose."""

    plugin_type = "priority-then-time-eviction-order-policy"
    stability = Stability.ALPHA

    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        return (under_way.request.priority, -under_way.dispatched_at)


class StaticUsageLimitParameters(Parameters, frozen=True):
    """One limit."""

    threshold: PositiveShare = 1.0
    """Fullness of an endpoint from which it gets no more requests, 0..1."""


class StaticUsageLimit(UsageLimitPolicy[StaticUsageLimitParameters]):
    """The same ceiling for all priorities."""

    plugin_type = "static-usage-limit-policy"
    reads_saturation = False

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:  # noqa: ARG002
        return [self.parameters.threshold] * len(priorities)


class PriorityHoldbackParameters(Parameters, frozen=True):
    """Ceilings of the lowest and the highest priority."""

    min_ceiling: PositiveShare
    """That of the lowest priority, 0..1."""
    max_ceiling: PositiveShare = 1.0
    """That of the highest, 0..1."""
    shape: Literal["linear"] = "linear"
    """How ceilings grow between the two."""
    domain: Literal["rank", "value"] = "rank"
    """What they grow with: the number of priorities below, or the distance to the lowest one."""

    def __post_init__(self) -> None:
        """Refuse a ceiling that falls; raises ValueError."""
        if self.min_ceiling > self.max_ceiling:
            raise ValueError(f"minCeiling {self.min_ceiling:g} is above maxCeiling {self.max_ceiling:g}")


class PriorityHoldback(UsageLimitPolicy[PriorityHoldbackParameters]):
    """Holds room back for higher priorities: the ceiling grows from `minCeiling` to `maxCeiling`.

    Priorities are those of the configuration, 0, and that of the request; where there is one only, it has
    `maxCeiling`.
    """

    plugin_type = "priority-holdback-policy"
    reads_saturation = False
    stability = Stability.ALPHA

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:  # noqa: ARG002
        given = self.parameters
        if len(priorities) == 1:
            return [given.max_ceiling]
        if given.domain == "rank":
            places = [float(rank) for rank in range(len(priorities) - 1, -1, -1)]
        else:
            places = [float(priority - priorities[-1]) for priority in priorities]
        span = given.max_ceiling - given.min_ceiling
        return [given.min_ceiling + span * place / places[0] for place in places]


class SoftReflectiveCeiling(UsageLimitPolicy[Parameters]):
    """Lowers the ceilings of lower priorities as the pool fills: `1 - rank * saturation / (priorities - 1)`.

    `rank` is 0 for the highest priority, whose ceiling stays at 1. A priority whose ceiling is reached still gets
    through at one call in `round(saturation / (1 - saturation))`, so that nobody starves before the pool is full.
    """

    plugin_type = "soft-reflective-ceiling-policy"
    stability = Stability.ALPHA

    def setup(self) -> None:
        self._calls = 0

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        last = max(1, len(priorities) - 1)
        share = min(max(saturation, 0.0), 1.0)
        found = [1.0 - rank * share / last for rank in range(len(priorities))]
        if saturation >= 1.0:
            return found
        self._calls += 1
        if self._calls % max(1, round(share / (1.0 - share))) == 0:
            return [1.0 if saturation >= ceiling else ceiling for ceiling in found]
        return found
