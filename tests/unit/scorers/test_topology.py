# SPDX-License-Identifier: Apache-2.0
"""Closeness to the peer: topology levels and GPU links."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request, Topology
from epp.framework.accelerators.places import closeness_of
from epp.framework.accelerators.tag import CLIQUE, COMPUTE_DOMAIN, NO_TAG, AcceleratorTag, Device, DeviceLink
from epp.framework.snapshot import ACCELERATOR, TOPOLOGY
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import GpuTopologyScorer, TopologyAffinityScorer
from tests.support.plugins import built

PLACES = [
    Topology("h1", "r1", "z1", "eu"),
    Topology("h1", "r1", "z1", "eu"),
    Topology("h2", "r1", "z1", "eu"),
    Topology("h3", "r2", "z1", "eu"),
    Topology("h4", "r3", "z2", "eu"),
    Topology("h5", "r4", "z3", "us"),
    Topology(),
]
POOL = candidates(records={TOPOLOGY: PLACES})
CLUSTERS = candidates(records={TOPOLOGY: [Topology(cluster=name) for name in "ccd"]})


def scores(peer, pool=POOL, **weights):
    plugin = built(TopologyAffinityScorer, {"weights": weights})
    return plugin.score(Request("r"), pool.within("prefill", peer)).tolist()


@pytest.mark.parametrize(
    ("peer", "weights", "expected"),
    [
        (0, {}, [1.0, 1.0, 0.2, 0.05, 0.02, 0.0, 0.0]),
        (0, {"rack": 0.9, "region": 0}, [1.0, 1.0, 0.9, 0.05, 0.0, 0.0, 0.0]),
        (None, {}, [0.0] * 7),
        (6, {}, [0.0] * 7),  # a place that is not known
    ],
)
def test_closest_level_shared_with_the_peer_decides(peer, weights, expected):
    assert scores(peer, **weights) == expected


def test_peer_need_not_be_a_candidate():
    assert scores(0, POOL.keep(np.arange(7) >= 3)) == [0.05, 0.02, 0.0, 0.0]


def test_gie_8_cluster_is_a_band():
    assert scores(0, CLUSTERS) == [0, 0, 0]
    assert scores(0, CLUSTERS, cluster=0.3) == [0.3, 0.3, 0]


def test_dra_5_pcie_root_and_clique_are_bands_of_the_topology():
    def on(node, root="", clique=""):
        return AcceleratorTag(node=node, devices=(Device(id=node + root, node=node, pcie_root=root, clique=clique),))

    tags = [on("a", "r", "c"), on("a", "r"), on("b", clique="c"), on("b", "r")]
    pool = candidates(accelerators=tags, records={TOPOLOGY: [Topology(zone="z")] * 4})
    assert scores(0, pool) == [0.05] * 4
    assert scores(0, pool, pcieRoot=0.9, clique=0.5) == [0.9, 0.9, 0.5, 0.05]
    assert built(TopologyAffinityScorer, {"weights": {"pcieRoot": 0.9}}).reads == (TOPOLOGY, ACCELERATOR)
    assert built(TopologyAffinityScorer).reads == (TOPOLOGY,)


def gpu(name, node="a", *, links=(), cluster="", **device):
    device = Device(id=name, node=node, links=tuple(DeviceLink(**link) for link in links), **device)
    return AcceleratorTag(node=node, cluster=cluster, devices=(device,), count=1)


def on_node(node, attribute="", name="", *, devices=()):
    return AcceleratorTag(node=node, devices=tuple(devices), attributes={attribute: name} if attribute else {})


def by_links(tags, peer, *, kept=slice(None)):
    pool = candidates(accelerators=tags)
    mask = np.zeros(len(tags), dtype=np.bool_)
    mask[kept] = True
    return GpuTopologyScorer().score(Request("r"), pool.keep(mask).within("decode", peer))


TIERS = [{"peer": f"g{tier}", "tier": tier} for tier in range(4)]
FAST_AND_SLOW = [{"peer": "fast", "bandwidth_mbps": 600_000}, {"peer": "slow", "bandwidth_mbps": 300_000}]
BOTH = [{"peer": "direct", "tier": 0}, {"peer": "numa", "tier": 1, "bandwidth_mbps": 900}]
TO_X_AND_Y = on_node("a", devices=[Device(id="p", node="a", links=(DeviceLink(peer="x"), DeviceLink(peer="y")))])


def pair(*names):
    return on_node("b", devices=[Device(id=name, node="b", numa=0) for name in names])


@pytest.mark.parametrize(
    ("peer", "others", "expected"),
    [
        # tier 0 without anything beats tier 1 with everything
        (gpu("p", links=BOTH), [gpu("direct"), gpu("numa")], [75, 74]),
        # tiers that TensorFusion reports
        (gpu("p", links=TIERS), [gpu(f"g{tier}", node=f"n{tier}") for tier in range(4)], [75, 50, 25, 0]),
        # a link counts from either end
        (gpu("p"), [gpu("g", node="b", links=[{"peer": "p", "tier": 0}])], [75]),
        # bandwidth orders links of one tier: 75 + 24, and 75 + 24 / 2
        (gpu("p", links=FAST_AND_SLOW), [gpu("fast"), gpu("slow")], [99, 87]),
        # NUMA nodes: tier 1, tier 2, tier 3 on one machine, tier 3 on another one
        (
            gpu("p", numa=0),
            [gpu("s", numa=0), gpu("o", numa=1), gpu("u"), gpu("e", node="b", numa=0)],
            [50, 25, 24, 0],
        ),
        # x and y have direct links, z is on another node: the slowest of several devices decides
        (TO_X_AND_Y, [pair("x", "y"), pair("x", "z")], [75, 0]),
        # the same names in another cluster are other places
        (gpu("g", numa=0), [gpu("g", numa=0, cluster="west")], [0]),
    ],
)
def test_tf_14_tier_and_links_within_it_decide(peer, others, expected):
    assert (by_links([peer, *others], 0)[1:] * 99).round(6).tolist() == expected


def test_tf_14_closeness_of_tiers():
    assert closeness_of(0, 0) == 75 > closeness_of(1, 100) == 74


@pytest.mark.parametrize(
    ("peer", "others", "expected"),
    [
        (
            gpu("p", pcie_root="pci0000:16", clique="c.1"),
            [
                gpu("c", node="b", clique="c.1"),
                gpu("r", pcie_root="pci0000:16"),
                gpu("n"),
                gpu("e", node="b", pcie_root="pci0000:16"),  # the name of a root means nothing on another node
            ],
            [75, 74, 24, 0],
        ),
        # the clique of the node counts where devices are unknown
        (on_node("a", CLIQUE, "x"), [on_node("b", CLIQUE, "x"), on_node("c", CLIQUE, "y"), NO_TAG], [75, 0, 0]),
        (on_node("a", COMPUTE_DOMAIN, "x"), [on_node("b", COMPUTE_DOMAIN, "x"), NO_TAG], [75, 0]),
        # slices of one GPU are closest
        (gpu("m1", parent_id="g"), [gpu("m2", parent_id="g"), gpu("m3", parent_id="h")], [99, 24]),
    ],
)
def test_dra_5_pcie_root_node_and_clique_are_bands(peer, others, expected):
    assert (by_links([peer, *others], 0)[1:] * 99).round(6).tolist() == expected


def test_tf_14_peer_need_not_be_a_candidate_and_without_one_none_is_near():
    tags = [gpu("p", numa=1), gpu("a", numa=0), gpu("b", numa=1)]
    assert (by_links(tags, 0, kept=[1, 2]) * 99).round(6).tolist() == [25, 50]
    assert by_links(tags, None).tolist() == [0, 0, 0]


LINKS = {"peer": st.sampled_from("pqrst"), "tier": st.integers(0, 3), "bandwidth_mbps": st.floats(0, 1e9)}
TAGS = st.builds(
    gpu,
    st.sampled_from("pqrs"),
    st.sampled_from(["", "a", "b"]),
    links=st.lists(st.fixed_dictionaries(LINKS), max_size=3),
    numa=st.sampled_from([None, 0, 1]),
    pcie_root=st.sampled_from(["", "r"]),
    clique=st.sampled_from(["", "c"]),
)


@given(st.lists(TAGS, min_size=1, max_size=6))
def test_tf_14_closeness_is_mutual_and_within_its_limits(tags):
    table = np.array([by_links(tags, peer) for peer in range(len(tags))])
    assert np.allclose(table, table.T)
    assert ((table >= 0) & (table <= 1)).all()
    assert (np.diag(table) == 1).all()
