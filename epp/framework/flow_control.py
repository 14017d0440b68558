# SPDX-License-Identifier: Apache-2.0
"""Roles of flow control: saturation, usage limits, ordering, fairness and eviction."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf

import msgspec

from epp.framework.arrays import Floats, ResultError
from epp.framework.candidates import Candidates
from epp.framework.flow_results import as_bool, as_ceilings, as_fullness, as_number, as_numbers
from epp.framework.plugin import P, Plugin, Role
from epp.framework.request import Request


class Queued(msgspec.Struct, frozen=True, eq=False):
    """A request that waits for room."""

    request: Request
    number: int
    """In the order of arrival; unique."""
    enqueued_at: float
    """Seconds on the clock."""
    deadline: float
    """When it has waited too long, in seconds on the clock; infinite for never."""


class SaturationDetector(Plugin[P], role=Role(title="Saturation detectors")):
    """Says how full endpoints are."""

    counts_own_requests: bool = False
    """Whether the end of a request makes room at once, as opposed to the next report of its endpoint."""

    @property
    def oldest_metrics_seconds(self) -> float:
        """The age up to which metrics count; infinite where they count at any age, or for nothing."""
        return inf

    @abstractmethod
    def fullness(self, candidates: Candidates) -> Floats:
        """Return one number for each candidate: its load as a share of its limit; from 1 on it is full."""

    def saturation(self, candidates: Candidates) -> float:
        """Return how full all of them are together: the mean; 1 for none."""
        return float(self.fullness(candidates).mean()) if len(candidates) else 1.0

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that there is one number for each candidate, and one for all of them."""
        as_fullness(self.fullness(candidates), len(candidates))
        as_number(self.saturation(candidates))
        super().rehearse(request, candidates)


class UsageLimitPolicy(Plugin[P], role=Role(title="Usage limits")):
    """Leaves room for requests of higher priority."""

    reads_saturation: bool = True
    """Whether the ceilings depend on how full the pool is."""

    @abstractmethod
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return for each priority, highest first, the fullness from which an endpoint has no room for it.

        `saturation` is that of the pool; 0 for a policy that does not read it.
        """

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that there is one number for each priority."""
        for priorities in ([0], [1, 0, -1]):
            as_ceilings(self.ceilings(priorities, 0.0), len(priorities))
        super().rehearse(request, candidates)


class OrderingPolicy(Plugin[P], role=Role(title="Ordering within a flow")):
    """Chooses which request of a flow is next."""

    in_order_of_arrival: bool = False
    """Whether all that wait in a flow go before one that comes."""

    @abstractmethod
    def key(self, queued: Queued) -> float:
        """Return a number by which requests are ordered, the least first; of equal ones, the first to come is first.

        Called once for each request, as it begins to wait.
        """

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that the key is a number."""
        as_number(self.key(_queued(request, 1)))
        super().rehearse(request, candidates)


class FlowOrder(ABC):
    """The flows of one priority in which requests wait, and which of them is next."""

    @abstractmethod
    def head(self, flow: str, key: float, queued: Queued) -> None:
        """Note the first request of a flow, and its key: the flow is new, or another request is its first now."""

    @abstractmethod
    def empty(self, flow: str) -> None:
        """Forget a flow: nothing waits there any more."""

    @abstractmethod
    def first(self) -> str:
        """Return the flow that is next; asked only while there is one, perhaps more than once before its turn."""

    @abstractmethod
    def dispatched(self, flow: str) -> None:
        """Note that a flow has had its turn; `head` or `empty` follows."""


class FairnessPolicy(Plugin[P], role=Role(title="Fairness between flows")):
    """Chooses the flow whose request is next."""

    in_order_of_arrival: bool = False
    """Whether what waits in other flows goes before a request that comes, where the order within flows says so too."""

    @abstractmethod
    def order(self) -> FlowOrder:
        """Return an order without flows, for one priority."""

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that the order chooses among the flows in which requests wait."""
        order, flows = self.order(), {"probe-1", "probe-2"}
        if not isinstance(order, FlowOrder):
            raise ResultError(f"returned {type(order).__name__} instead of a FlowOrder")
        for number, flow in enumerate(sorted(flows), 1):
            order.head(flow, 0.0, _queued(request, number))
        while flows:
            flow = order.first()
            if flow not in flows:
                raise ResultError(f"chose flow {flow!r}, in which nothing waits")
            flows.remove(flow)
            order.dispatched(flow)
            order.empty(flow)
        super().rehearse(request, candidates)


class UnderWay(msgspec.Struct, frozen=True, eq=False):
    """A request that an endpoint is working on."""

    request: Request
    dispatched_at: float
    """Seconds on the clock."""


class EvictionFilter(Plugin[P], role=Role(title="Evictable requests")):
    """Says which requests under way may be ended to make room for those of higher priority."""

    after_first_token: bool = False
    """Whether they may be ended when they have been answered in part."""

    @abstractmethod
    def evictable(self, request: Request) -> bool:
        """Return whether a request may be ended; called once, as it leaves for its endpoint."""

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that the answer is true or false."""
        as_bool(self.evictable(request))
        super().rehearse(request, candidates)


class EvictionOrder(Plugin[P], role=Role(title="Order of eviction")):
    """Chooses which of them is ended first."""

    @abstractmethod
    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        """Return numbers by which requests are ordered, the least first; called once, like `evictable`."""

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Check that the key is several numbers."""
        as_numbers(self.key(UnderWay(request, 0.0)))
        super().rehearse(request, candidates)


def _queued(request: Request, number: int) -> Queued:
    return Queued(request, number, enqueued_at=0.0, deadline=60.0)
