# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints near the peer, and GPUs linked to each other."""

import msgspec
import numpy as np

from epp.framework import ACCELERATOR, TOPOLOGY, Candidates, Category, Floats, Parameters, Request, Scorer, Share
from epp.framework.accelerators.places import CLOSEST, device_closeness, shared_devices
from epp.framework.candidates import LEVELS, closeness


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
    cluster: Share = 0.0
    """In the peer's cluster."""
    pcie_root: Share = 0.0
    """With a device at the PCIe root of one of the peer's."""
    clique: Share = 0.0
    """With a device in the NVLink clique or compute domain of one of the peer's, on any host."""


class TopologyAffinityScorerParameters(Parameters, frozen=True):
    """Score by distance from the peer."""

    weights: TopologyWeights = msgspec.field(default_factory=TopologyWeights)
    """Score for each level."""
    topology_producer_name: str = ""
    """Accepted for compatibility, without effect: each endpoint has one location."""


class TopologyAffinityScorer(Scorer[TopologyAffinityScorerParameters]):
    """The weight of the closest level (host, rack, zone, region, cluster) shared with the peer, else 0.

    A shared PCIe root or NVLink clique counts instead if its weight is higher; by default both weights are 0. The peer
    is the endpoint picked by the first profile of this request; without one, 0 for all.
    """

    plugin_type = "topology-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "shares no level with the peer, or there is no peer"

    def setup(self) -> None:
        far = 0.0
        weights = self.parameters.weights
        self._worth = np.array([*(getattr(weights, level) for level in LEVELS), far])
        self.reads = (TOPOLOGY, ACCELERATOR) if weights.pcie_root or weights.clique else (TOPOLOGY,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        peer = candidates.peer
        if peer is None:
            return np.zeros(len(candidates))
        worth: Floats = self._worth[closeness(candidates, peer)]
        if ACCELERATOR in self.reads:
            weights = self.parameters.weights
            for shared, weight in zip(
                shared_devices(candidates, peer), (weights.pcie_root, weights.clique), strict=True
            ):
                worth = np.maximum(worth, shared * weight)
        return worth


class GpuTopologyScorer(Scorer):
    """`(25 * (3 - tier) + intra * 24 / 100) / 99` by the connection of the endpoint's devices to those of the peer.

    The peer is the endpoint picked by the first profile of this request; without one, 0 for all. Tiers: 0 for a direct
    link, as TensorFusion reports it, or an NVLink clique or compute domain in common; 1 for the same NUMA node or PCIe
    root; 2 across NUMA nodes of one machine; 3 otherwise, or if unknown. `intra`, 0..100, orders endpoints of one tier:
    links by their share of the highest bandwidth, a PCIe root before a NUMA node, one machine before two. For several
    devices, the slowest connection counts.
    """

    plugin_type = "gpu-topology-scorer"
    category = Category.AFFINITY
    zero_means = "has no known connection to the peer, or there is no peer"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        peer = candidates.peer
        return np.zeros(len(candidates)) if peer is None else device_closeness(candidates, peer) / CLOSEST
