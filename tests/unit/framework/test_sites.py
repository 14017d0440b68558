# SPDX-License-Identifier: Apache-2.0
"""Places of devices: computed with the tag, and compared by arrays as one by one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, ManualClock
from epp.framework.accelerators import tag as tags_module
from epp.framework.accelerators.places import device_closeness, device_use, node_numbers, shared_devices
from epp.framework.accelerators.tag import (
    CLIQUE,
    COMPUTE_DOMAIN,
    NO_TAG,
    AcceleratorTag,
    Device,
    DeviceLink,
    Partition,
    physical_devices,
)
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.pool.collectors.tagging import Tagging
from epp.routing.datastore import Datastore

NAMES = ("", "a", "b")
HIGHEST = 400.0

LINKS = st.builds(
    DeviceLink,
    peer=st.sampled_from("pqr"),
    tier=st.integers(0, 3),
    bandwidth_mbps=st.sampled_from([0.0, 100.0, HIGHEST]),
)
DEVICES = st.builds(
    Device,
    id=st.sampled_from(["", *"pqrs"]),
    parent_id=st.sampled_from(["", "", "p"]),
    node=st.sampled_from(NAMES),
    numa=st.sampled_from([None, 0, 1]),
    pcie_root=st.sampled_from(NAMES),
    clique=st.sampled_from(NAMES),
    links=st.lists(LINKS, max_size=2).map(tuple),
)
TAGS = st.builds(
    AcceleratorTag,
    cluster=st.sampled_from(["", "west"]),
    node=st.sampled_from(NAMES),
    devices=st.lists(DEVICES, max_size=3).map(tuple),
    partition=st.builds(Partition, parent_id=st.sampled_from(["", "p"])),
    attributes=st.fixed_dictionaries({CLIQUE: st.sampled_from(NAMES), COMPUTE_DOMAIN: st.sampled_from(NAMES)}),
)
EXACT = AcceleratorTag(
    cluster="far", devices=(Device(id="x", links=(DeviceLink(peer="y", bandwidth_mbps=HIGHEST, tier=3),)),)
)
"""Has the link of the highest bandwidth, and is near no other."""


def node_of(tag, device):
    return device.node or tag.node


def links_of(tags):
    """Closeness by each link of physical devices, whichever endpoint's tag reports it."""
    found = {}
    for tag in tags:
        own = {each.id for each in tag.devices}
        for each in tag.devices:
            for link in each.links:
                if (name := each.parent_id or each.id) and link.peer not in own:
                    value = 25.0 * (3 - link.tier) + 24.0 * link.bandwidth_mbps / HIGHEST
                    for pair in ((name, link.peer), (link.peer, name)):
                        found[tag.cluster, *pair] = max(value, found.get((tag.cluster, *pair), 0.0))
    return found


def close(one, device, other, peer, links):
    """Closeness of two devices, by the sentences of `device_closeness`."""
    here, there = (one.cluster, node_of(one, device)), (other.cluster, node_of(other, peer))
    name, far = device.parent_id or device.id, peer.parent_id or peer.id
    same_node = here == there and here[1]
    cliques = [each.clique or tag.attributes[CLIQUE] for tag, each in ((one, device), (other, peer))]
    domains = [tag.attributes[COMPUTE_DOMAIN] for tag in (one, other)]
    found = 0.0
    if same_node:
        both = device.numa is not None and peer.numa is not None
        found = (50.0 if device.numa == peer.numa else 25.0) if both else 24.0
    if here == there and device.pcie_root and device.pcie_root == peer.pcie_root:
        found = 74.0
    if any(pair[0] and pair[0] == pair[1] for pair in (cliques, domains)):
        found = 75.0
    if name and name == far and one.cluster == other.cluster:
        found = 99.0
    return max(found, links.get((one.cluster, name, far), 0.0) if one.cluster == other.cluster else 0.0)


def devices_of(tag):
    return tag.devices or (Device(id=""),)


@given(st.lists(TAGS, min_size=1, max_size=5))
def test_tf_14_closeness_of_arrays_is_that_of_devices_one_by_one(tags):
    pool = candidates(records={ACCELERATOR: [*tags, EXACT]})
    links = links_of(tags)
    for peer, other in enumerate(tags):
        expected = [
            min(max(close(one, mine, other, its, links) for its in devices_of(other)) for mine in devices_of(one))
            for one in tags
        ]
        assert np.allclose(device_closeness(pool, peer)[:-1], expected)


@given(st.lists(TAGS, min_size=1, max_size=5))
def test_dra_5_shared_roots_and_cliques_are_those_of_devices_one_by_one(tags):
    pool = candidates(records={ACCELERATOR: tags})
    for peer, other in enumerate(tags):
        roots, cliques = shared_devices(pool, peer)
        for slot, one in enumerate(tags):
            pairs = list(product(devices_of(one), devices_of(other)))
            assert roots[slot] == any(
                mine.pcie_root and mine.pcie_root == its.pcie_root and node_of(one, mine) == node_of(other, its)
                for mine, its in pairs
                if one.cluster == other.cluster
            )
            assert cliques[slot] == any(
                (name := mine.clique or one.attributes[CLIQUE]) and name == (its.clique or other.attributes[CLIQUE])
                for mine, its in pairs
            ) or (
                bool(one.attributes[COMPUTE_DOMAIN])
                and (one.attributes[COMPUTE_DOMAIN] == other.attributes[COMPUTE_DOMAIN])
            )


@given(st.lists(TAGS, min_size=1, max_size=5))
def test_endpoints_have_one_number_for_one_node_and_one_for_each_device(tags):
    snapshot = candidates(records={ACCELERATOR: tags}).snapshot
    nodes, use = node_numbers(snapshot), device_use(snapshot)
    ids = [physical_devices(tag) for tag in tags]
    for one, other in product(range(len(tags)), repeat=2):
        place, there = (tags[one].cluster, tags[one].node), (tags[other].cluster, tags[other].node)
        assert (nodes[one] == nodes[other]) == (one == other or (place == there and place[1] != ""))
        shared = ids[one] & ids[other] if tags[one].cluster == tags[other].cluster else set()
        numbers = [set(use.devices[use.slots == slot].tolist()) for slot in (one, other)]
        assert len(numbers[0]) == len(ids[one])
        assert len(numbers[0] & numbers[1]) == len(shared)


def test_request_after_a_change_of_tags_computes_no_places(monkeypatch):
    store = Datastore(ManualClock())
    Tagging(store, [Registry().build("accelerator-data-source", {}, name="hardware", clock=ManualClock())])
    store.replace([Endpoint(name, f"10.0.0.{number}", 8000, node="n") for number, name in enumerate("ab", 1)])
    NO_TAG.located()  # that of free slots
    monkeypatch.setattr(tags_module, "sites_of", lambda _: pytest.fail("computed in the request"))
    snapshot = store.snapshot()
    assert device_closeness(Candidates(snapshot, snapshot.slots), 0).tolist() == [24, 24]
