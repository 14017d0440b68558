# SPDX-License-Identifier: Apache-2.0
"""Prefer GPUs that are linked or near the peer; pack GPUs and nodes, or spread load, as TensorFusion does."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    RUNNING,
    TOPOLOGY,
    WAITING,
    AcceleratorTag,
    Candidates,
    Category,
    Count,
    Floats,
    Parameters,
    Request,
    Scorer,
    Share,
    Tunable,
    tag_numbers,
)
from epp.framework.accelerators.arrays import (
    PLACEMENT,
    UNKNOWN_SCORE,
    USAGE_INPUTS,
    EndpointPlacement,
    GpuUsageParameters,
    PlacementMode,
    estimated_share,
    used_share,
)
from epp.framework.accelerators.places import CLOSEST, device_closeness, device_use, node_numbers, shared_devices
from epp.framework.accelerators.tag import Sharing
from epp.framework.candidates import LEVELS, closeness

_WITHIN_BAND = 0.99
"""Largest part of a band that an endpoint's own value can fill, so that a higher band always scores higher."""


class NodeCompactParameters(GpuUsageParameters, frozen=True):
    """Combination of the node's value and the endpoint's."""

    combine: Literal["lexicographic", "weighted"] = "lexicographic"
    """`lexicographic`: the node decides, and the endpoint only within a band; `weighted`: the weighted sum of both."""
    bands: Count = 10
    """Number of equally wide bands within which nodes count as equally full; for `lexicographic`."""
    node_weight: Annotated[Share, Tunable(0, 1)] = 0.5
    """Weight of the node, the endpoint gets the rest; for `weighted`."""


class CompactFirstScorer(Scorer[GpuUsageParameters]):
    """`0.7 * vram + 0.3 * tflops` in use, divided by the sum of the weights: the fullest endpoint scores highest.

    The usage of each comes from the GPU allocator if it reports it, else from the engine: for memory the share of the
    KV cache in use; for TFLOPS running requests over `maxNumSeqs`, or GPU utilization if these are unknown. Values
    without a source are estimated from requests in flight. 0 for GPUs without capacity.
    """

    plugin_type = "compact-first-scorer"
    category = Category.AFFINITY
    zero_means = "is not in use, or its GPUs have no capacity"
    reads = (ACCELERATOR,)
    may_read = USAGE_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        used, empty = estimated_share(candidates, self.parameters)
        return np.where(empty, 0.0, used)


class LowLoadFirstScorer(Scorer[GpuUsageParameters]):
    """`0.7 * vram + 0.3 * tflops` free, divided by the sum of the weights: the emptiest endpoint scores highest.

    Usage has the same sources as for `compact-first-scorer`. 0 for GPUs without capacity.
    """

    plugin_type = "low-load-first-scorer"
    zero_means = "is fully in use, or its GPUs have no capacity"
    reads = (ACCELERATOR,)
    may_read = USAGE_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        used, empty = estimated_share(candidates, self.parameters)
        return np.where(empty, 0.0, 1.0 - used)


class NodeCompactGpuLowLoadScorer(Scorer[NodeCompactParameters]):
    """Prefers the fullest node, and the emptiest endpoint on it.

    The value of a node is the mean of `compact-first-scorer` over all endpoints of the pool on it; an endpoint on an
    unknown node counts as a separate node. The value of an endpoint is that of `low-load-first-scorer`. With
    `lexicographic`, `(band + 0.99 * endpoint) / (bands - 0.01)`, where `band` is the node's value in `bands` equal
    steps, counted from 0; with `weighted`, `nodeWeight * node + (1 - nodeWeight) * endpoint`. GPUs without capacity get
    0 and do not count for their node.
    """

    plugin_type = "node-compact-gpu-low-load-scorer"
    category = Category.BALANCE
    zero_means = "is fully in use on the emptiest node, or its GPUs have no capacity"
    reads = (ACCELERATOR,)
    may_read = USAGE_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        used, empty = estimated_share(candidates, self.parameters)
        node, endpoint = self._node_used(candidates), 1.0 - used
        if self.parameters.combine == "weighted":
            weight = self.parameters.node_weight
            scores = weight * node + (1.0 - weight) * endpoint
        else:
            bands = self.parameters.bands
            band = np.minimum(np.floor(node * bands), bands - 1)
            scores = (band + _WITHIN_BAND * endpoint) / (bands - 1 + _WITHIN_BAND)
        return np.where(empty, 0.0, np.clip(scores, 0.0, 1.0))

    def _node_used(self, candidates: Candidates) -> Floats:
        """Return the mean usage of each candidate's node; 0.5 if unknown."""
        snapshot = candidates.snapshot
        nodes = node_numbers(snapshot)
        used, empty = used_share(Candidates(snapshot, snapshot.slots), self.parameters)
        known = np.isfinite(used) & ~empty
        places = nodes[snapshot.slots[known]]
        counts = np.bincount(places, minlength=len(nodes))
        sums = np.bincount(places, weights=used[known], minlength=len(nodes))
        means: Floats = np.divide(sums, counts, out=np.full(len(nodes), UNKNOWN_SCORE), where=counts > 0)
        return means[nodes[candidates.slots]]


class PlacementTemplateParameters(NodeCompactParameters, frozen=True):
    """Template, and the mode without one."""

    template: str = ""
    """Name of a SchedulingConfigTemplate of TensorFusion; by default the template of each endpoint's GPUPool."""
    default_mode: Literal["CompactFirst", "LowLoadFirst", "NodeCompactGPULowLoad"] = "NodeCompactGPULowLoad"
    """Mode for endpoints without a template."""


class PlacementTemplateScorer(Scorer[PlacementTemplateParameters]):
    """Score by the placement mode of a SchedulingConfigTemplate.

    Each endpoint gets the score of `compact-first-scorer` if the mode of its template is CompactFirst, of
    `low-load-first-scorer` for LowLoadFirst, and of `node-compact-gpu-low-load-scorer` for NodeCompactGPULowLoad.
    """

    plugin_type = "placement-template-scorer"
    category = Category.BALANCE
    zero_means = "is last by the mode of its template, or its GPUs have no capacity"
    reads = (ACCELERATOR, PLACEMENT)
    may_read = USAGE_INPUTS

    def setup(self) -> None:
        given = self.parameters
        self._scorers: Mapping[str, Scorer[Any]] = {
            PlacementMode.COMPACT_FIRST: CompactFirstScorer(given, name=self.name, clock=self.clock),
            PlacementMode.LOW_LOAD_FIRST: LowLoadFirstScorer(given, name=self.name, clock=self.clock),
            PlacementMode.NODE_COMPACT: NodeCompactGpuLowLoadScorer(given, name=self.name, clock=self.clock),
        }

    @property
    def placement_template(self) -> str:
        return self.parameters.template

    def score(self, request: Request, candidates: Candidates) -> Floats:
        placements = candidates.snapshot.records(PLACEMENT)
        scores = np.zeros(len(candidates))
        for mode, scorer in self._scorers.items():
            has_mode = placements.derive_mask(self._is_mode, mode)[candidates.slots]
            if has_mode.any():
                scores = np.where(has_mode, scorer.score(request, candidates), scores)
        return scores

    def _is_mode(self, placement: EndpointPlacement, mode: str) -> bool:
        template = placement.template(self.parameters.template)
        return mode == (self.parameters.default_mode if template is None else template.mode)


class GpuNeighbourParameters(Parameters, frozen=True):
    """Effect of neighbours, by the way the device is shared: 0 for none, 1 for the strongest."""

    mig_weight: Share = 0.25
    """Effect on hardware partitions (MIG slices, AMD partitions) and cores, which share power, host and PCIe."""
    mps_weight: Share = 0.75
    """Effect on processes that compute at the same time (MPS)."""
    time_slicing_weight: Share = 1.0
    """Effect with time slicing, virtual GPUs, and devices shared in an unknown way."""


class GpuNeighbourScorer(Scorer[GpuNeighbourParameters]):
    """`1 - weight * load / max`, where `load` is that of the other endpoints on the same physical device.

    The load of an endpoint is its waiting and running requests, or, if it has not reported, the requests in flight from
    this picker. `max` is the largest `load` among the candidates; `weight` depends on the way the device is shared. For
    an endpoint on several devices, the busiest one counts. 1 for endpoints without neighbours, or with unknown devices.
    """

    plugin_type = "gpu-neighbour-scorer"
    zero_means = "shares a device with the busiest neighbours"
    reads = (ACCELERATOR,)
    may_read = (WAITING, RUNNING, IN_FLIGHT)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        snapshot = candidates.snapshot
        use = device_use(snapshot)
        engine = snapshot.column(WAITING) + snapshot.column(RUNNING)
        busy = np.where(np.isnan(engine), snapshot.column(IN_FLIGHT), engine)[use.slots]
        neighbours = np.bincount(use.devices, weights=busy)[use.devices] - busy
        loads = np.zeros(snapshot.capacity)
        np.maximum.at(loads, use.slots, neighbours)
        load = loads[candidates.slots]
        return 1.0 - tag_numbers(candidates, self._weight) * load / (load.max(initial=0.0) or 1.0)

    def _weight(self, tag: AcceleratorTag) -> float:
        match tag.partition.kind:
            case Sharing.MIG | Sharing.AMD | Sharing.CORES:
                return self.parameters.mig_weight
            case Sharing.MPS:
                return self.parameters.mps_weight
            case _:
                return self.parameters.time_slicing_weight


class TopologyWeights(Parameters, frozen=True):
    """Score for each level; the defaults follow the speed of KV cache transfers at that distance."""

    host: Share = 1.0
    """Score on the peer's host."""
    rack: Share = 0.2
    """Score in the peer's rack."""
    zone: Share = 0.05
    """Score in the peer's zone."""
    region: Share = 0.02
    """Score in the peer's region."""
    cluster: Share = 0.0
    """Score in the peer's cluster."""
    pcie_root: Share = 0.0
    """Score with a device at the PCIe root of one of the peer's devices."""
    clique: Share = 0.0
    """Score with a device in the NVLink clique or compute domain of one of the peer's devices, on any host."""


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
        weights = self.parameters.weights
        self._worth = np.array([*(getattr(weights, level) for level in LEVELS), 0.0])
        self.reads = (TOPOLOGY, ACCELERATOR) if weights.pcie_root or weights.clique else (TOPOLOGY,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        peer = candidates.peer
        if peer is None:
            return np.zeros(len(candidates))
        worth: Floats = self._worth[closeness(candidates, peer)]
        if ACCELERATOR in self.reads:
            weights = self.parameters.weights
            roots, cliques = shared_devices(candidates, peer)
            worth = np.maximum(worth, np.maximum(roots * weights.pcie_root, cliques * weights.clique))
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
