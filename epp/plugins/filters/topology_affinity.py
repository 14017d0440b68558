# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints close to the one that serves the other leg of a disaggregated request."""

from typing import Literal

import numpy as np

from epp.framework import TOPOLOGY, Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.candidates import LEVELS, closeness


class TopologyAffinityFilterParameters(FilterParameters, frozen=True):
    """Distance limit."""

    min_affinity: Literal["host", "rack", "zone", "region", "cluster"] = "host"
    """Widest place that an endpoint must share with the peer."""
    topology_producer_name: str = ""
    """Accepted for compatibility: the topology of an endpoint has one source."""


class TopologyAffinityFilter(Filter[TopologyAffinityFilterParameters]):
    """Keeps an endpoint if it shares `minAffinity` or a narrower place with the peer.

    The peer is the endpoint picked for the first leg of the request. All endpoints are kept if there is no peer, if its
    place is unknown, or if none is close enough.
    """

    plugin_type = "topology-affinity-filter"
    may_empty = False
    drop_means = "is farther from the peer than minAffinity allows"
    reads = (TOPOLOGY,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        peer = candidates.peer
        everything = np.ones(len(candidates), dtype=np.bool_)
        if peer is None:
            return everything
        near = closeness(candidates, peer) <= LEVELS.index(self.parameters.min_affinity)
        return near if near.any() else everything
