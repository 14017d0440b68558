# SPDX-License-Identifier: Apache-2.0
"""Which request of a flow is next."""

from epp.framework import Parameters
from epp.framework.flow_control import OrderingPolicy, Queued
from epp.framework.rates import ttft_target_seconds


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
