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
    Floats,
    Mask,
    Natural,
    Request,
    Snapshot,
)
from epp.framework.accelerators.places import device_use, node_numbers
from epp.framework.snapshot import IN_FLIGHT, RUNNING, WAITING


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
        requests = _requests(candidates.snapshot)
        if most := self.parameters.max_requests_per_node:
            nodes = node_numbers(candidates.snapshot)
            kept &= np.bincount(nodes, weights=requests)[nodes[candidates.slots]] < most
        if most := self.parameters.max_requests_per_device:
            kept &= _on_busiest_device(candidates.snapshot, requests)[candidates.slots] < most
        return kept


def _requests(snapshot: Snapshot) -> Floats:
    """Return the number of requests at each slot; 0 for free slots."""
    engine = snapshot.column(WAITING) + snapshot.column(RUNNING)
    found = np.zeros(snapshot.capacity)
    found[snapshot.slots] = np.fmax(engine, snapshot.column(IN_FLIGHT))[snapshot.slots]
    return found


def _on_busiest_device(snapshot: Snapshot, requests: Floats) -> Floats:
    """Return the number of requests on the busiest device of each slot."""
    use = device_use(snapshot)
    busiest = requests.copy()
    if len(use.slots):
        np.maximum.at(busiest, use.slots, np.bincount(use.devices, weights=requests[use.slots])[use.devices])
    return busiest
