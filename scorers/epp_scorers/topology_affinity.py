# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints near the one that serves the other leg of a disaggregated request."""

import msgspec
import numpy as np

from epp.framework import TOPOLOGY, Candidates, Category, Floats, Parameters, Request, Scorer, Share
from epp.framework.topology import LEVELS, closeness


class TopologyWeights(Parameters, frozen=True):
    """Score for each level; the defaults follow the speed of KV cache transfers at that distance."""

    host: Share = 1.0
    """On the peer's host."""
    rack: Share = 0.2
    """In the peer's rack."""
    zone: Share = 0.05
    """In the peer's zone."""
    region: Share = 0.02
    """In the peer's region."""


class TopologyAffinityScorerParameters(Parameters, frozen=True):
    """Score by distance from the peer."""

    weights: TopologyWeights = msgspec.field(default_factory=TopologyWeights)
    """Score for each level."""
    topology_producer_name: str = ""
    """Accepted for compatibility, without effect: each endpoint has one location."""


class TopologyAffinityScorer(Scorer[TopologyAffinityScorerParameters]):
    """The weight of the closest level (host, rack, zone, region) shared with the peer; 0 if none is.

    The peer is the endpoint picked by the first profile of this request; without one, 0 for all.
    """

    plugin_type = "topology-affinity-scorer"
    category = Category.AFFINITY
    reads = (TOPOLOGY,)

    def setup(self) -> None:
        far = 0.0
        self._worth = np.array([*(getattr(self.parameters.weights, level) for level in LEVELS), far])

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        peer = candidates.peer
        if peer is None:
            return np.zeros(len(candidates))
        worth: Floats = self._worth[closeness(candidates, peer)]
        return worth
