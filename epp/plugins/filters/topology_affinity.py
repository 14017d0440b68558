"""Keeps the endpoints near the one that serves the other leg of a disaggregated request."""

from typing import Literal

import numpy as np

from epp.framework import TOPOLOGY, Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.topology import LEVELS, closeness


class TopologyAffinityFilterParameters(FilterParameters, frozen=True):
    """How near is near enough."""

    min_affinity: Literal["host", "rack", "zone", "region"] = "host"
    """The farthest level that is still near enough: `host`, `rack`, `zone` or `region`."""
    topology_producer_name: str = ""
    """Accepted for compatibility: an endpoint stands in one place, whoever says so."""


class TopologyAffinityFilter(Filter[TopologyAffinityFilterParameters]):
    """Keeps an endpoint if it shares with the peer a level that is `minAffinity` or closer.

    The peer is the endpoint picked for the leg that was chosen first. All stay where there is no peer, where nobody
    knows where the peer stands, and where nobody is near enough: nearness is worth less than an answer.
    """

    plugin_type = "topology-affinity-filter"
    may_empty = False
    reads = (TOPOLOGY,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        peer = candidates.peer
        everybody = np.ones(len(candidates), dtype=np.bool_)
        if peer is None:
            return everybody
        near = closeness(candidates, peer) <= LEVELS.index(self.parameters.min_affinity)
        return near if near.any() else everybody
