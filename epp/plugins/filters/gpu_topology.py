# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints whose devices are closely connected to those of the endpoint that serves the other leg."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from epp.framework import ACCELERATOR, Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.accelerators.places import SAME_NUMA, device_closeness, tiers_of
from epp.framework.result import DropCause


class GpuTopologyFilterParameters(FilterParameters, frozen=True):
    """Limit of the tier."""

    max_allowed_tier: Annotated[int, Meta(ge=0, le=3)] = SAME_NUMA
    """Worst connection to the peer: 0 direct link or NVLink clique, 1 same NUMA node or PCIe root, 2 across NUMA nodes
    of one machine, 3 any."""


class GpuTopologyFilter(Filter[GpuTopologyFilterParameters]):
    """Keeps an endpoint if all its devices have a connection of `maxAllowedTier` or better to a device of the peer.

    The peer is the endpoint picked for the first leg of the request; without one, all endpoints are kept. Tiers are
    those of `gpu-topology-scorer`.
    """

    plugin_type = "gpu-topology-filter"
    drops = DropCause.CONSTRAINT
    reads = (ACCELERATOR,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        if candidates.peer is None:
            return np.ones(len(candidates), dtype=np.bool_)
        near: Mask = tiers_of(device_closeness(candidates, candidates.peer)) <= self.parameters.max_allowed_tier
        return near

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        if dropped.peer is None:
            return ()
        tiers = tiers_of(device_closeness(dropped, dropped.peer)).tolist()
        return [f"is connected to the peer in tier {tier:g}" for tier in tiers]
