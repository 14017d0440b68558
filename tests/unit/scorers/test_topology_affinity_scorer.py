# SPDX-License-Identifier: Apache-2.0
"""What it is worth to stand near the peer."""

import numpy as np
import pytest

from epp.framework import ConfigurationError, ManualClock, Request, Topology
from epp.framework.accelerators.tag import AcceleratorTag, Device
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR, TOPOLOGY
from epp.framework.testing import candidates
from epp_scorers.topology import TopologyAffinityScorer

POOL = candidates(
    records={
        TOPOLOGY: [
            Topology("h1", "r1", "z1", "eu"),
            Topology("h1", "r1", "z1", "eu"),
            Topology("h2", "r1", "z1", "eu"),
            Topology("h3", "r2", "z1", "eu"),
            Topology("h4", "r3", "z2", "eu"),
            Topology("h5", "r4", "z3", "us"),
            Topology(),
        ]
    }
)


def build(**parameters):
    registry = Registry({})
    registry.register(TopologyAffinityScorer)
    return registry.build("topology-affinity-scorer", parameters, name="mine", clock=ManualClock())


def scores(scorer, peer, pool=POOL):
    return scorer.score(Request("r"), pool.within("prefill", peer)).tolist()


def test_closest_shared_level_decides():
    assert scores(build(), 0) == [1.0, 1.0, 0.2, 0.05, 0.02, 0.0, 0.0]


def test_weights_can_be_set_one_by_one():
    scorer = build(weights={"rack": 0.9, "region": 0})
    assert scores(scorer, 0) == [1.0, 1.0, 0.9, 0.05, 0.0, 0.0, 0.0]


def test_no_peer_gives_zero_for_all():
    assert scores(build(), None) == [0.0] * 7


def test_peer_whose_place_is_not_known_gives_zero_for_all():
    assert scores(build(), 6) == [0.0] * 7


def test_peer_need_not_be_a_candidate():
    assert scores(build(), 0, POOL.keep(np.arange(7) >= 3)) == [0.05, 0.02, 0.0, 0.0]


def test_weight_outside_its_range_is_refused():
    with pytest.raises(ConfigurationError, match="rack is 2; it must be between 0 and 1"):
        build(weights={"rack": 2})


def test_gie_8_cluster_is_a_band():
    pool = candidates(records={TOPOLOGY: [Topology(cluster="c"), Topology(cluster="c"), Topology(cluster="d")]})
    assert scores(build(), 0, pool) == [0, 0, 0]
    assert scores(build(weights={"cluster": 0.3}), 0, pool) == [0.3, 0.3, 0]


def test_dra_5_pcie_root_and_clique_are_bands():
    def on(node, root="", clique=""):
        return AcceleratorTag(node=node, devices=(Device(id=node + root, node=node, pcie_root=root, clique=clique),))

    tags = [on("a", "r", "c"), on("a", "r"), on("b", clique="c"), on("b", "r")]
    pool = candidates(accelerators=tags, records={TOPOLOGY: [Topology(zone="z")] * 4})
    assert scores(build(), 0, pool) == [0.05] * 4
    weighted = build(weights={"pcieRoot": 0.9, "clique": 0.5})
    assert scores(weighted, 0, pool) == [0.9, 0.9, 0.5, 0.05]
    assert weighted.reads == (TOPOLOGY, ACCELERATOR)
    assert build().reads == (TOPOLOGY,)
