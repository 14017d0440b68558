# SPDX-License-Identifier: Apache-2.0
"""Policies of flow control: ordering, fairness between flows, eviction, usage limits and saturation by work."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    LOAD_INPUTS,
    METRICS_AT,
    Candidates,
    Floats,
    Parameters,
    Plugin,
    Positive,
    PositiveShare,
    Request,
    Stability,
    Tunable,
)
from epp.framework.expected_times import ttft_target_seconds
from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    FlowOrder,
    HeadOrder,
    OrderingPolicy,
    Queued,
    SaturationDetector,
    UnderWay,
    UsageLimitPolicy,
)
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer


class FcfsOrdering(OrderingPolicy[Parameters]):
    """First come, first served."""

    plugin_type = "fcfs-ordering-policy"
    in_order_of_arrival = True

    def key(self, queued: Queued) -> float:
        return 0.0


class EdfOrdering(OrderingPolicy[Parameters]):
    """Earliest deadline first: the time of arrival in the queue plus the TTL."""

    plugin_type = "edf-ordering-policy"

    def key(self, queued: Queued) -> float:
        return queued.deadline


class SloDeadlineOrdering(OrderingPolicy[Parameters]):
    """Earliest due time of the first token: arrival plus `x-llm-d-slo-ttft-ms`; without that header, last."""

    plugin_type = "slo-deadline-ordering-policy"

    def key(self, queued: Queued) -> float:
        return queued.request.received_at + ttft_target_seconds(queued.request.headers)


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """No fairness between flows: the ordering policy sorts the requests of all flows together."""

    plugin_type = "global-strict-fairness-policy"
    in_order_of_arrival = True

    def order(self) -> FlowOrder:
        return HeadOrder()


class _RoundRobin(FlowOrder):
    """Order by last dispatch, oldest first; a new flow is last."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, None] = OrderedDict()

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._turns.setdefault(flow)

    def empty(self, flow: str) -> None:
        self._turns.pop(flow, None)

    def first(self) -> str:
        return next(iter(self._turns))

    def dispatched(self, flow: str) -> None:
        self._turns.move_to_end(flow)


class RoundRobinFairness(FairnessPolicy[Parameters]):
    """One request of each flow, in rotation."""

    plugin_type = "round-robin-fairness-policy"

    def order(self) -> FlowOrder:
        return _RoundRobin()


class SheddableEvictionParameters(Parameters, frozen=True):
    """Progress up to which a request may be evicted."""

    after_first_token: bool = False
    """Also evict requests after their first token; their clients get a truncated response."""


class SheddableEviction(EvictionFilter[SheddableEvictionParameters]):
    """Requests of negative priority, until their first token."""

    plugin_type = "sheddable-eviction-filter"
    stability = Stability.ALPHA

    def setup(self) -> None:
        self.after_first_token = self.parameters.after_first_token

    def evictable(self, request: Request) -> bool:
        return request.priority < 0


class PriorityThenTimeEviction(EvictionOrder[Parameters]):
    """The lowest priority first; among equals, the request dispatched last, which loses the least work."""

    plugin_type = "priority-then-time-eviction-order-policy"
    stability = Stability.ALPHA

    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        return (under_way.request.priority, -under_way.dispatched_at)


class StaticUsageLimitParameters(Parameters, frozen=True):
    """One limit."""

    threshold: Annotated[PositiveShare, Tunable(0.3, 1)] = 1.0
    """Fullness of an endpoint at which it gets no further requests, 0..1."""


class StaticUsageLimit(UsageLimitPolicy[StaticUsageLimitParameters]):
    """The same ceiling for all priorities."""

    plugin_type = "static-usage-limit-policy"
    reads_saturation = False

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        return [self.parameters.threshold] * len(priorities)


class PriorityHoldbackParameters(Parameters, frozen=True):
    """Ceilings of the lowest and the highest priority."""

    min_ceiling: PositiveShare
    """Ceiling of the lowest priority, 0..1."""
    max_ceiling: PositiveShare = 1.0
    """Ceiling of the highest priority, 0..1."""
    shape: Literal["linear"] = "linear"
    """Growth of the ceilings between the two."""
    domain: Literal["rank", "value"] = "rank"
    """Scale of the growth: by the rank of a priority, or by its distance from the lowest one."""

    def __post_init__(self) -> None:
        if self.min_ceiling > self.max_ceiling:
            raise ValueError(f"minCeiling {self.min_ceiling:g} is above maxCeiling {self.max_ceiling:g}")


class PriorityHoldback(UsageLimitPolicy[PriorityHoldbackParameters]):
    """Reserves capacity for higher priorities: the ceiling grows from `minCeiling` to `maxCeiling`.

    The priorities are those of the configuration, 0, and the request's own. A single priority has `maxCeiling`.
    """

    plugin_type = "priority-holdback-policy"
    reads_saturation = False
    stability = Stability.ALPHA

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
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

    `rank` is 0 for the highest priority, whose ceiling stays at 1. A priority whose ceiling is reached may still
    dispatch at one call in `round(saturation / (1 - saturation))`, to prevent starvation before the pool is full.
    """

    plugin_type = "soft-reflective-ceiling-policy"
    stability = Stability.ALPHA

    def setup(self) -> None:
        self._calls = 0

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        last = max(1, len(priorities) - 1)
        share = min(max(saturation, 0.0), 1.0)
        found = [1.0 - rank * share / last for rank in range(len(priorities))]
        if saturation < 1.0:
            self._calls += 1
            if self._calls % max(1, round(share / (1.0 - share))) == 0:
                return [1.0 if saturation >= ceiling else ceiling for ceiling in found]
        return found


_PRODUCER = "endpointRatesProducerName"


class WorkSecondsDetectorParameters(Parameters, frozen=True):
    """A limit in seconds, and the source of rates."""

    max_seconds: Annotated[Positive, Tunable(0.05, 30, log=True)] = 1.0
    """Expected seconds of work in front of a new request at which an endpoint is full."""
    endpoint_rates_producer_name: str = "endpoint-rates-producer"
    """Name of a declared endpoint-rates-producer."""


class WorkSecondsDetector(SaturationDetector[WorkSecondsDetectorParameters]):
    """The fullness of an endpoint is `(queue + wait) / maxSeconds`: the seconds of work ahead of a new request.

    These are the terms of `work-seconds-scorer` that do not depend on the request, with the rates of
    `endpoint-rates-producer`. `wait` is `uncached prompt tokens in flight there / prefill rate`. `queue` is the time to
    get a place in the batch, `requests ahead * mean output tokens * ITL / running`, or 0 with free places. Rates are
    those of the producer's `baseModel`, else of the last requested model.
    """

    plugin_type = "work-seconds-detector"
    reads = (IN_FLIGHT_TOKENS, IN_FLIGHT)
    may_read = (*LOAD_INPUTS, ACCELERATOR, METRICS_AT)  # inputs of the rates

    @property
    def references(self) -> Mapping[str, str]:
        return {_PRODUCER: self.parameters.endpoint_rates_producer_name}

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        producer = plugins[_PRODUCER]
        if not isinstance(producer, EndpointRatesProducer):
            raise ValueError(  # noqa: TRY004  the error type of `connect`
                f"{_PRODUCER}: plugin {producer.name!r} (type {producer.plugin_type}) does not publish rates; name an "
                "endpoint-rates-producer"
            )
        self._producer = producer

    def fullness(self, candidates: Candidates) -> Floats:
        rates = self._producer.pool_rates(candidates.snapshot)
        return rates.ttft_seconds(candidates, np.zeros(len(candidates))) / self.parameters.max_seconds
