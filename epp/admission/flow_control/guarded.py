# SPDX-License-Identifier: Apache-2.0
"""Guarded policies of flow control: a failure or an invalid result is counted, and replaced by a default."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from epp.admission.flow_control.eviction import EvictionSettings
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
from epp.framework.guard import Failure, Guard
from epp.framework.plugin import Plugin
from epp.framework.request import Request

R = TypeVar("R", bound=Plugin[Any])
T = TypeVar("T")

_MOST_CEILING = 1.0
_ARRIVAL = 0.0
"""The key of all requests when they are in order of arrival."""
_ORDERED = 64
"""Flows that are put into order of arrival at each dispatch: there may be 100,000."""


def guarded_eviction(settings: EvictionSettings, guard: Guard) -> EvictionSettings:
    """Return the settings with guarded policies, which never raise."""
    return replace(
        settings,
        filter=GuardedEvictionFilter(settings.filter, guard),
        order=GuardedEvictionOrder(settings.order, guard),
    )


class _Guarded(Plugin[Parameters], Generic[R]):
    """A policy whose failures are counted and replaced; equal to another one that guards the same policy."""

    def __init__(self, policy: R, guard: Guard) -> None:
        super().__init__(name=policy.name, clock=policy.clock)
        self._policy = policy
        self._guard = guard

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other._policy is self._policy

    def __hash__(self) -> int:
        return hash(self._policy)

    def _result(self, method: Callable[[], T], otherwise: T) -> T:
        """Return the result of a method of the policy, or the other value if it fails."""
        found = self._guard.call(self.role, self._policy, method)
        return otherwise if isinstance(found, Failure) else found


class GuardedEvictionFilter(_Guarded[EvictionFilter[Any]], EvictionFilter[Parameters]):
    """A filter; a request for which it fails is not evicted."""

    def __init__(self, policy: EvictionFilter[Any], guard: Guard) -> None:
        super().__init__(policy, guard)
        self.after_first_token = policy.after_first_token

    def evictable(self, request: Request) -> bool:
        return self._result(lambda: as_bool(self._policy.evictable(request)), otherwise=False)


class GuardedEvictionOrder(_Guarded[EvictionOrder[Any]], EvictionOrder[Parameters]):
    """An order; on failure, requests are ordered by priority, then the most recently dispatched first."""

    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        otherwise = (under_way.request.priority, -under_way.dispatched_at)
        return self._result(lambda: as_numbers(self._policy.key(under_way)), otherwise)


def guarded(settings: FlowControlSettings, guard: Guard) -> FlowControlSettings:
    """Return the settings with guarded policies, which never raise."""
    bands: Mapping[int, BandSettings] = {
        priority: _guarded_band(band, guard) for priority, band in settings.bands.items()
    }
    return replace(
        settings,
        detector=GuardedDetector(settings.detector, guard),
        usage_limits=GuardedUsageLimits(settings.usage_limits, guard),
        default_band=_guarded_band(settings.default_band, guard),
        negative_band=_guarded_band(settings.negative_band, guard),
        bands=MappingProxyType(dict(bands)),
        eviction=None if settings.eviction is None else guarded_eviction(settings.eviction, guard),
    )


def _guarded_band(band: BandSettings, guard: Guard) -> BandSettings:
    return replace(band, ordering=GuardedOrdering(band.ordering, guard), fairness=GuardedFairness(band.fairness, guard))


class GuardedDetector(_Guarded[SaturationDetector[Any]], SaturationDetector[Parameters]):
    """A detector; if it fails, all endpoints have room."""

    @property
    def oldest_metrics_seconds(self) -> float:
        return self._policy.oldest_metrics_seconds

    def fullness(self, candidates: Candidates) -> Floats:
        count = len(candidates)
        return self._result(lambda: as_fullness(self._policy.fullness(candidates), count), np.zeros(count))

    def saturation(self, candidates: Candidates) -> float:
        return self._result(lambda: as_number(self._policy.saturation(candidates)), 0.0)


class GuardedUsageLimits(_Guarded[UsageLimitPolicy[Any]], UsageLimitPolicy[Parameters]):
    """Usage limits; if they fail, endpoints may be used until they are full."""

    def __init__(self, policy: UsageLimitPolicy[Any], guard: Guard) -> None:
        super().__init__(policy, guard)
        self.reads_saturation = policy.reads_saturation

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        count = len(priorities)
        return self._result(
            lambda: as_ceilings(self._policy.ceilings(priorities, saturation), count), [_MOST_CEILING] * count
        )


class GuardedOrdering(_Guarded[OrderingPolicy[Any]], OrderingPolicy[Parameters]):
    """An order of requests; if it fails for a request, that request is ordered by its arrival."""

    def __init__(self, policy: OrderingPolicy[Any], guard: Guard) -> None:
        super().__init__(policy, guard)
        self.in_order_of_arrival = policy.in_order_of_arrival

    def key(self, queued: Queued) -> float:
        return self._result(lambda: as_number(self._policy.key(queued)), queued.enqueued_at)


class GuardedFairness(_Guarded[FairnessPolicy[Any]], FairnessPolicy[Parameters]):
    """Fairness between flows; a band falls back to the order of arrival if the policy fails."""

    def __init__(self, policy: FairnessPolicy[Any], guard: Guard) -> None:
        super().__init__(policy, guard)
        self.in_order_of_arrival = policy.in_order_of_arrival

    def order(self) -> FlowOrder:
        """Return an order of the policy that falls back to the order of arrival."""
        found = self._guard.call(FairnessPolicy.role, self._policy, _order, self._policy)
        return HeadOrder() if isinstance(found, Failure) else _GuardedOrder(found, self._policy, self._guard)


class _GuardedOrder(FlowOrder):
    """The order of a policy, until it fails."""

    def __init__(self, order: FlowOrder, policy: FairnessPolicy[Any], guard: Guard) -> None:
        self._order = order
        self._policy = policy
        self._guard = guard
        self._heads: dict[str, tuple[float, Queued]] = {}
        """Key and first request of each flow, for a fallback order to start from."""
        self._has_failed = False
        self._left: deque[str] = deque()
        """Flows that are still to be put into order of arrival, once the policy has failed."""

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._heads[flow] = key, queued
        if self._has_failed:
            self._order.head(flow, _ARRIVAL, queued)
        else:
            self._check(self._guard.call(FairnessPolicy.role, self._policy, self._order.head, flow, key, queued))

    def empty(self, flow: str) -> None:
        self._heads.pop(flow, None)
        if self._has_failed:
            self._order.empty(flow)
        else:
            self._check(self._guard.call(FairnessPolicy.role, self._policy, self._order.empty, flow))

    def first(self) -> str:
        if not self._has_failed:
            found = self._guard.call(FairnessPolicy.role, self._policy, self._first)
            if not isinstance(found, Failure):
                return found
            self._fall_back()
        self._order_some()
        return self._order.first()

    def dispatched(self, flow: str) -> None:
        if self._has_failed:
            self._order.dispatched(flow)
        else:
            self._check(self._guard.call(FairnessPolicy.role, self._policy, self._order.dispatched, flow))

    def _first(self) -> str:
        flow = self._order.first()
        if flow not in self._heads:
            raise ResultError("chose a flow without queued requests")
        return flow

    def _check(self, outcome: Failure | None) -> None:
        if isinstance(outcome, Failure):
            self._fall_back()

    def _fall_back(self) -> None:
        self._has_failed = True
        self._order = HeadOrder()
        self._left = deque(self._heads)

    def _order_some(self) -> None:
        """Put some flows into order of arrival, the oldest first."""
        ordered = 0
        while self._left and ordered < _ORDERED:
            flow = self._left.popleft()
            if flow in self._heads:
                self._order.head(flow, _ARRIVAL, self._heads[flow][1])
                ordered += 1


def _order(policy: FairnessPolicy[Any]) -> FlowOrder:
    order = policy.order()
    if not isinstance(order, FlowOrder):
        raise ResultError(f"returned {type(order).__name__} instead of a FlowOrder")
    return order
