# SPDX-License-Identifier: Apache-2.0
"""Guarded policies of flow control: a failure or an invalid result is counted and replaced with a default."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np

from epp.admission.flow_control.settings import BandSettings, FlowControlSettings
from epp.framework import Parameters
from epp.framework.arrays import Floats, ResultError
from epp.framework.candidates import Candidates
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
    as_bool,
    as_ceilings,
    as_fullness,
    as_number,
    as_numbers,
)
from epp.framework.plugin import Failure, Guard, Plugin
from epp.framework.request import Request

T = TypeVar("T")

_MOST_CEILING = 1.0
_ARRIVAL = 0.0
"""Key of all requests in order of arrival."""
_ORDERED = 64
"""Flows that are put into order of arrival at each dispatch, since there may be 100,000."""


class _Guarded(Plugin[Parameters]):
    """A policy behind a guard; equal if the policies are the same."""

    copied: ClassVar[tuple[str, ...]] = ()
    """Attributes that are copied from the policy."""

    def __init__(self, policy: Any, guard: Guard) -> None:
        super().__init__(name=policy.name, clock=policy.clock)
        self._policy = policy
        self._guard = guard
        for name in self.copied:
            setattr(self, name, getattr(policy, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Guarded) and other._policy is self._policy

    def __hash__(self) -> int:
        return hash(self._policy)

    def _call(self, method: Callable[[], T], *, otherwise: T) -> T:
        found = self._guard.call(self.role, self._policy, method)
        return otherwise if isinstance(found, Failure) else found


class GuardedEvictionFilter(_Guarded, EvictionFilter[Parameters]):
    """A filter; if it fails for a request, that request is not evicted."""

    copied = ("after_first_token",)

    def evictable(self, request: Request) -> bool:
        return self._call(lambda: as_bool(self._policy.evictable(request)), otherwise=False)


class GuardedEvictionOrder(_Guarded, EvictionOrder[Parameters]):
    """An order; if it fails, requests are ordered by priority, then the most recently dispatched first."""

    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        usual = under_way.request.priority, -under_way.dispatched_at
        return self._call(lambda: as_numbers(self._policy.key(under_way)), otherwise=usual)


def guarded(settings: FlowControlSettings, guard: Guard) -> FlowControlSettings:
    """Return the settings with guarded policies, which never raise."""

    def of_band(band: BandSettings) -> BandSettings:
        fairness = GuardedFairness(band.fairness, guard)
        return replace(band, ordering=GuardedOrdering(band.ordering, guard), fairness=fairness)

    eviction = settings.eviction
    return replace(
        settings,
        detector=GuardedDetector(settings.detector, guard),
        usage_limits=GuardedUsageLimits(settings.usage_limits, guard),
        default_band=of_band(settings.default_band),
        negative_band=of_band(settings.negative_band),
        bands=MappingProxyType({priority: of_band(band) for priority, band in settings.bands.items()}),
        eviction=eviction
        and replace(
            eviction,
            filter=GuardedEvictionFilter(eviction.filter, guard),
            order=GuardedEvictionOrder(eviction.order, guard),
        ),
    )


class GuardedDetector(_Guarded, SaturationDetector[Parameters]):
    """A detector; if it fails, all endpoints have room."""

    @property
    def oldest_metrics_seconds(self) -> float:
        limit: float = self._policy.oldest_metrics_seconds
        return limit

    def fullness(self, candidates: Candidates) -> Floats:
        count = len(candidates)
        found = self._guard.call(self.role, self._policy, lambda: as_fullness(self._policy.fullness(candidates), count))
        return np.zeros(count) if isinstance(found, Failure) else found

    def saturation(self, candidates: Candidates) -> float:
        return self._call(lambda: as_number(self._policy.saturation(candidates)), otherwise=0.0)


class GuardedUsageLimits(_Guarded, UsageLimitPolicy[Parameters]):
    """Usage limits; if they fail, endpoints may be used until they are full."""

    copied = ("reads_saturation",)

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        count = len(priorities)
        otherwise = [_MOST_CEILING] * count
        return self._call(
            lambda: as_ceilings(self._policy.ceilings(priorities, saturation), count), otherwise=otherwise
        )


class GuardedOrdering(_Guarded, OrderingPolicy[Parameters]):
    """An order of requests; if it fails for a request, that request is ordered by its arrival."""

    copied = ("in_order_of_arrival",)

    def key(self, queued: Queued) -> float:
        return self._call(lambda: as_number(self._policy.key(queued)), otherwise=queued.enqueued_at)


class GuardedFairness(_Guarded, FairnessPolicy[Parameters]):
    """Fairness between flows; if it fails, a band falls back to the order of arrival."""

    copied = ("in_order_of_arrival",)

    def order(self) -> FlowOrder:
        found = self._guard.call(self.role, self._policy, self._order)
        return HeadOrder() if isinstance(found, Failure) else _GuardedOrder(found, self._policy, self._guard)

    def _order(self) -> FlowOrder:
        order = self._policy.order()
        if not isinstance(order, FlowOrder):
            raise ResultError(f"returned {type(order).__name__} instead of a FlowOrder")
        return order


class _GuardedOrder(FlowOrder):
    """The order of a policy, until it fails."""

    def __init__(self, order: FlowOrder, policy: FairnessPolicy[Any], guard: Guard) -> None:
        self._order = order
        self._policy = policy
        self._guard = guard
        self._heads: dict[str, tuple[float, Queued]] = {}
        """Key and first request of each flow, from which a fallback order starts."""
        self._has_failed = False
        self._left: deque[str] = deque()
        """Flows that are not in order of arrival yet, after the policy has failed."""

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._heads[flow] = key, queued
        self._forward(lambda: self._order.head(flow, _ARRIVAL if self._has_failed else key, queued))

    def empty(self, flow: str) -> None:
        self._heads.pop(flow, None)
        self._forward(lambda: self._order.empty(flow))

    def first(self) -> str:
        if not self._has_failed:
            found = self._guard.call(FairnessPolicy.role, self._policy, self._first)
            if not isinstance(found, Failure):
                return found
            self._fall_back()
        ordered = 0
        while self._left and ordered < _ORDERED:
            flow = self._left.popleft()
            if flow in self._heads:
                self._order.head(flow, _ARRIVAL, self._heads[flow][1])
                ordered += 1
        return self._order.first()

    def dispatched(self, flow: str) -> None:
        self._forward(lambda: self._order.dispatched(flow))

    def _first(self) -> str:
        flow = self._order.first()
        if flow not in self._heads:
            raise ResultError("chose a flow without queued requests")
        return flow

    def _forward(self, act: Callable[[], None]) -> None:
        if self._has_failed:
            act()
        elif isinstance(self._guard.call(FairnessPolicy.role, self._policy, act), Failure):
            self._fall_back()

    def _fall_back(self) -> None:
        self._has_failed = True
        self._order = HeadOrder()
        self._left = deque(self._heads)
