# SPDX-License-Identifier: Apache-2.0
"""Which requests under way are ended to make room, and which of them first."""

from epp.framework import Parameters, Request, Stability
from epp.framework.flow_control import EvictionFilter, EvictionOrder, UnderWay


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
