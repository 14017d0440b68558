"""Prefers endpoints near the one that serves the other leg of a disaggregated request."""

import msgspec
import numpy as np

from epp.framework import Candidates, Category, Floats, Parameters, Request, Scorer
from epp.framework.limits import Share
from epp.framework.snapshot import TOPOLOGY
from epp.framework.topology import LEVELS, closeness


class TopologyWeights(Parameters, frozen=True):
    """What each level is worth, 0..1; the defaults follow how fast KV caches move between such endpoints."""

    host: Share = 1.0
    """On the peer's host."""
    rack: Share = 0.2
    """In the peer's rack."""
    zone: Share = 0.05
    """In the peer's zone."""
    region: Share = 0.02
    """In the peer's region."""


class TopologyAffinityScorerParameters(Parameters, frozen=True):
    """What nearness is worth."""

    weights: TopologyWeights = msgspec.field(default_factory=TopologyWeights)
    """What each level is worth."""
    topology_producer_name: str = ""
    """Accepted for compatibility: an endpoint stands in one place, whoever says so."""


class TopologyAffinityScorer(Scorer[TopologyAffinityScorerParameters]):
    """The weight of the closest level (host, rack, zone, region) shared with the peer; 0 where none is.

    The peer is the endpoint picked for the leg that was chosen first; without one, 0 for all.
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
