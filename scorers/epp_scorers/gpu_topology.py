# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints whose devices have fast links to those of the endpoint that serves the other leg."""

import numpy as np

from epp.framework import ACCELERATOR, Candidates, Category, Floats, Request, Scorer
from epp.framework.accelerators.places import CLOSEST, device_closeness


class GpuTopologyScorer(Scorer):
    """`(25 * (3 - tier) + intra * 24 / 100) / 99` by the connection of the endpoint's devices to those of the peer.

    The peer is the endpoint picked by the first profile of this request; without one, 0 for all. Tiers: 0 for a direct
    link, as TensorFusion reports it, or an NVLink clique or compute domain in common; 1 for the same NUMA node or PCIe
    root; 2 across NUMA nodes of one machine; 3 otherwise, or if unknown. `intra`, 0..100, orders endpoints of one tier:
    a link by its share of the highest bandwidth, a PCIe root before a NUMA node, one machine before two. Of several
    devices, the one with the slowest connection counts.
    """

    plugin_type = "gpu-topology-scorer"
    category = Category.AFFINITY
    zero_means = "has no known connection to the peer, or there is no peer"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        peer = candidates.peer
        return np.zeros(len(candidates)) if peer is None else device_closeness(candidates, peer) / CLOSEST
