# SPDX-License-Identifier: Apache-2.0
"""Drops endpoints on nodes, or on devices, that serve as many requests as they may."""

from collections.abc import Sequence

import numpy as np

from epp.framework import (
    ACCELERATOR,
    LOAD_INPUTS,
    Candidates,
    Filter,
    FilterParameters,
    Mask,
    Natural,
    Request,
)
from epp.framework.accelerators.places import requests_on_device, requests_on_node
from epp.framework.result import DropCause
from epp.framework.snapshot import IN_FLIGHT


class NodeConcurrencyParameters(FilterParameters, frozen=True):
    """Most requests at the same time; both are off by default."""

    max_requests_per_node: Natural = 0
    """Requests at all endpoints of a node together at which none of them gets more; 0 for no limit."""
    max_requests_per_device: Natural = 0
    """Requests at all endpoints with a share of one physical device at which none of them gets more; 0 for no limit."""


class NodeConcurrencyFilter(Filter[NodeConcurrencyParameters]):
    """Keeps an endpoint if its node, and each of its devices, serves fewer requests than the limit.

    Requests at an endpoint are those in flight from this picker, or waiting and running as the engine reports them, if
    that is more. All endpoints of the pool count, candidates or not. An endpoint whose node or devices are unknown
    counts by itself. If no endpoint is left, the profile fails as saturated, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "node-concurrency-filter"
    drops = DropCause.SATURATION
    reads = (ACCELERATOR, IN_FLIGHT)
    may_read = LOAD_INPUTS

    @property
    def warnings(self) -> Sequence[str]:
        given = self.parameters
        if given.max_requests_per_node or given.max_requests_per_device:
            return ()
        return ("it has no limit and no effect: set maxRequestsPerNode or maxRequestsPerDevice, or remove it",)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        kept = np.ones(len(candidates), dtype=np.bool_)
        if most := self.parameters.max_requests_per_node:
            kept &= requests_on_node(candidates.snapshot)[candidates.slots] < most
        if most := self.parameters.max_requests_per_device:
            kept &= requests_on_device(candidates.snapshot)[candidates.slots] < most
        return kept

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        reasons = [""] * len(dropped)
        for place, most, counts in (
            ("a device", self.parameters.max_requests_per_device, requests_on_device(dropped.snapshot)),
            ("its node", self.parameters.max_requests_per_node, requests_on_node(dropped.snapshot)),
        ):
            for position, count in enumerate(counts[dropped.slots].tolist()):
                if most and count >= most:
                    reasons[position] = f"{place} serves {count:g} requests"
        return reasons
