# SPDX-License-Identifier: Apache-2.0
"""Closeness to the peer: topology levels and GPU links."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, ManualClock, Request, Topology
from epp.framework.accelerators.places import closeness_of
from epp.framework.accelerators.tag import CLIQUE, COMPUTE_DOMAIN, NO_TAG, AcceleratorTag, Device, DeviceLink
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR, TOPOLOGY
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import GpuTopologyScorer, TopologyAffinityScorer

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


def gpu(name, node="a", *, links=(), cluster="", attributes=None, **device):
    device = Device(id=name, node=node, links=tuple(DeviceLink(**link) for link in links), **device)
    return AcceleratorTag(node=node, cluster=cluster, devices=(device,), count=1, attributes=attributes or {})


def near(*tags, peer=0):
    """Scores of the endpoints but the peer, times 99."""
    pool = candidates(records={ACCELERATOR: tags})
    scores = GpuTopologyScorer().score(Request("r"), pool.within("decode", peer))
    return [round(each * 99, 6) for slot, each in enumerate(scores.tolist()) if slot != peer]


def test_tf_14_tier_0_without_anything_beats_tier_1_with_everything():
    assert closeness_of(0, 0) == 75 > closeness_of(1, 100) == 74
    peer = gpu("p", links=[{"peer": "direct", "tier": 0}, {"peer": "numa", "tier": 1, "bandwidth_mbps": 900}])
    direct, numa = near(peer, gpu("direct"), gpu("numa"))
    assert (direct, numa) == (75, 74)


def test_tf_14_tiers_that_tensor_fusion_reports():
    links = [{"peer": f"g{tier}", "tier": tier} for tier in range(4)]
    elsewhere = [gpu(f"g{tier}", node=f"n{tier}") for tier in range(4)]
    assert near(gpu("p", links=links), *elsewhere) == [75, 50, 25, 0]


def test_tf_14_link_counts_from_either_end():
    assert near(gpu("p"), gpu("g", node="b", links=[{"peer": "p", "tier": 0}])) == [75]


def test_tf_14_bandwidth_orders_links_of_one_tier():
    links = [{"peer": "fast", "bandwidth_mbps": 600_000}, {"peer": "slow", "bandwidth_mbps": 300_000}]
    # 75 + 24, and 75 + 24 / 2
    assert near(gpu("p", links=links), gpu("fast"), gpu("slow")) == [99, 87]


def test_tf_14_numa_nodes_of_one_machine():
    peer = gpu("p", numa=0)
    same, other, unknown, elsewhere = near(
        peer, gpu("s", numa=0), gpu("o", numa=1), gpu("u"), gpu("e", node="b", numa=0)
    )
    # tier 1, tier 2, tier 3 on one machine, tier 3 on another one
    assert (same, other, unknown, elsewhere) == (50, 25, 24, 0)


def test_dra_5_pcie_root_node_and_clique_are_bands():
    peer = gpu("p", pcie_root="pci0000:16", clique="c.1")
    root, clique, node, none = near(
        peer,
        gpu("r", pcie_root="pci0000:16"),
        gpu("c", node="b", clique="c.1"),
        gpu("n"),
        gpu("e", node="b", pcie_root="pci0000:16"),  # the name of a root means nothing on another node
    )
    assert (clique, root, node, none) == (75, 74, 24, 0)


@pytest.mark.parametrize("kind", [CLIQUE, COMPUTE_DOMAIN])
def test_dra_5_clique_of_the_node_counts_where_devices_are_unknown(kind):
    def on(node, name):
        return AcceleratorTag(node=node, attributes={kind: name})

    assert near(on("a", "x"), on("b", "x"), on("c", "y"), NO_TAG) == [75, 0, 0]


def test_dra_5_slices_of_one_gpu_are_closest():
    assert near(gpu("m1", parent_id="g"), gpu("m2", parent_id="g"), gpu("m3", parent_id="h")) == [99, 24]


def test_same_names_in_another_cluster_are_other_places():
    assert near(gpu("g", numa=0), gpu("g", numa=0, cluster="west")) == [0]


def test_tf_14_slowest_of_several_devices_decides():
    def pair(node, *names):
        return AcceleratorTag(node=node, devices=tuple(Device(id=name, node=node, numa=0) for name in names))

    links = tuple(DeviceLink(peer=name) for name in ("x", "y"))
    peer = AcceleratorTag(node="a", devices=(Device(id="p", node="a", links=links),))
    # x and y have direct links, z is on another node
    assert near(peer, pair("b", "x", "y"), pair("b", "x", "z")) == [75, 0]


def test_tf_14_without_a_peer_nobody_is_near():
    pool = candidates(records={ACCELERATOR: [gpu("a"), gpu("b")]})
    assert GpuTopologyScorer().score(Request("r"), pool).tolist() == [0, 0]


def test_tf_14_peer_need_not_be_a_candidate():
    pool = candidates(records={ACCELERATOR: [gpu("p", numa=1), gpu("a", numa=0), gpu("b", numa=1)]})
    kept = pool.keep(np.array([False, True, True])).within("decode", 0)
    assert (GpuTopologyScorer().score(Request("r"), kept) * 99).round(6).tolist() == [25, 50]


PLACES = st.builds(
    gpu,
    st.sampled_from("pqrs"),
    st.sampled_from(["", "a", "b"]),
    links=st.lists(
        st.fixed_dictionaries(
            {"peer": st.sampled_from("pqrst"), "tier": st.integers(0, 3), "bandwidth_mbps": st.floats(0, 1e9)}
        ),
        max_size=3,
    ),
    numa=st.sampled_from([None, 0, 1]),
    pcie_root=st.sampled_from(["", "r"]),
    clique=st.sampled_from(["", "c"]),
)


@given(st.lists(PLACES, min_size=1, max_size=6))
def test_tf_14_closeness_is_mutual_and_within_its_limits(tags):
    pool = candidates(records={ACCELERATOR: tags})
    table = np.array([GpuTopologyScorer().score(Request("r"), pool.within("d", peer)) for peer in range(len(tags))])
    assert np.allclose(table, table.T)
    assert ((table >= 0) & (table <= 1)).all()
    assert (np.diag(table) == 1).all()
