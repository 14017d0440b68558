# SPDX-License-Identifier: Apache-2.0
"""Policies of eviction behind a guard: where one fails, the request is spared, or ended as the usual order has it."""

from dataclasses import replace
from typing import Any

from epp.flow_control.eviction import EvictionSettings
from epp.framework import Parameters
from epp.framework.flow_control import EvictionFilter, EvictionOrder, UnderWay
from epp.framework.flow_results import as_bool, as_numbers
from epp.framework.request import Request
from epp.scheduling import Failure, Guard


def guarded_eviction(settings: EvictionSettings, guard: Guard) -> EvictionSettings:
    """Return the same settings with policies that never raise."""
    return replace(
        settings,
        filter=GuardedEvictionFilter(settings.filter, guard),
        order=GuardedEvictionOrder(settings.order, guard),
    )


class GuardedEvictionFilter(EvictionFilter[Parameters]):
    """A filter; a request for which it fails is spared."""

    def __init__(self, policy: EvictionFilter[Any], guard: Guard) -> None:
        super().__init__(name=policy.name, clock=policy.clock)
        self.after_first_token = policy.after_first_token
        self._policy = policy
        self._guard = guard

    def evictable(self, request: Request) -> bool:
        """Return what the filter says; false where it fails."""
        found = self._guard.call(EvictionFilter.role, self._policy, _evictable, self._policy, request)
        return not isinstance(found, Failure) and found


class GuardedEvictionOrder(EvictionOrder[Parameters]):
    """An order; a request without a usable key is placed by its priority, and the last dispatched first."""

    def __init__(self, policy: EvictionOrder[Any], guard: Guard) -> None:
        super().__init__(name=policy.name, clock=policy.clock)
        self._policy = policy
        self._guard = guard

    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        """Return that of the order."""
        found = self._guard.call(EvictionOrder.role, self._policy, _key, self._policy, under_way)
        return (under_way.request.priority, -under_way.dispatched_at) if isinstance(found, Failure) else found


def _evictable(policy: EvictionFilter[Any], request: Request) -> bool:
    return as_bool(policy.evictable(request))


def _key(policy: EvictionOrder[Any], under_way: UnderWay) -> tuple[float, ...]:
    return as_numbers(policy.key(under_way))
