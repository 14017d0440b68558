# SPDX-License-Identifier: Apache-2.0
"""Pods and pools as nobody should write them: what cannot be used is left out or named, all else goes on."""

import copy

import pytest
import yaml

from epp.pool.discovery.pods import ACTIVE_PORTS
from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_in
from tests.support.kube.running import CRDS
from tests.support.kube.space import space_in
from tests.support.load import load_on


@pytest.fixture
async def fleet(space):
    """One ready pod, `a`, and its pool."""
    async with fleet_in(space) as fleet:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        yield fleet


@pytest.fixture
async def picker(fleet, space, tmp_path):
    async with picker_in(space, tmp_path) as picker:
        await picker.uses("a-rank-0")
        yield picker


async def test_pods_that_cannot_be_reached_at_an_address_are_no_endpoints(fleet, space, picker):
    async with load_on(picker.url) as load:
        pod = await space.pod("without-address", "127.0.0.1", ready=False)
        status = {**write.pod_status("127.0.0.1"), "podIP": None, "podIPs": None}
        await space.admin.status(pod, status)
        pod = await space.pod("ended", "127.0.0.1", ready=False)
        await space.admin.status(pod, {**write.pod_status("127.0.0.1"), "phase": "Failed"})
        await picker.knows(3)
        await picker.uses("a-rank-0")
        await load.reaches("a-rank-0")


async def test_pod_may_have_an_ipv6_address(fleet, picker):
    await fleet.start("six", ip="::1")
    await picker.uses("a-rank-0", "six-rank-0")
    await fleet.delete("a")
    await picker.uses("six-rank-0")
    assert await picker.answers() == {"six-rank-0"}


async def test_pods_that_share_an_address_come_and_go_by_themselves(fleet, space, picker):
    address = fleet.pods["a"]["status"]["podIP"]
    async with load_on(picker.url) as load:
        await space.pod("neighbour", address, hostNetwork=True)
        await picker.uses("a-rank-0", "neighbour-rank-0")
        await load.reaches("a-rank-0")  # the one server of both
        await fleet.delete("a")
        await picker.uses("neighbour-rank-0")
        await load.reaches("a-rank-0")


async def test_absurd_labels_and_annotations_do_no_harm(fleet, picker):
    labels = {"app": "vllm", "a" * 63: "b" * 63, "llm-d.ai/role": "-".join(["x"] * 30), "llm-d.ai/engine-type": ""}
    nonsense = dict.fromkeys(("note", "prometheus.io/port"), "\x00\n\u202e💥," * 2000)
    many = dict.fromkeys((f"key-{number}" for number in range(500)), "value")
    ports = ",".join(["-1", "0x50", " ", "٣", "1e3", *map(str, range(5000)), str(fleet.ports[0])])
    async with load_on(picker.url) as load:
        await fleet.start("odd", labels={**labels, **many}, annotations={**nonsense, ACTIVE_PORTS[0]: ports})
        await picker.uses("a-rank-0", "odd-rank-0")
        await load.reaches("a-rank-0", "odd-rank-0")


async def test_pod_that_gets_another_address_is_found_there(fleet, space, picker):
    address = fleet.address()
    await fleet.serve("moved", address)
    await space.admin.status(fleet.pods["a"], write.pod_status(address))
    await space.pod("last", "127.0.0.1", ready=False)
    await picker.knows(2)
    await picker.uses("a-rank-0")
    async with load_on(picker.url) as load:
        await load.reaches("moved-rank-0")


async def test_pool_that_is_invalid_stays_as_it_was_and_is_named(lax, tmp_path):
    reason = "spec.targetPorts has 0 ports: write 1 to 8"
    async with fleet_in(lax) as fleet:
        await fleet.start("a")
        pool = await lax.pool(ports=fleet.ports)
        async with picker_in(lax, tmp_path) as picker:
            await picker.uses("a-rank-0")
            async with load_on(picker.url) as load:
                await lax.admin.patch(pool, {"spec": {"targetPorts": []}})
                assert reason in await picker.command.says("object not in effect")
                await fleet.start("b")
                await picker.uses("a-rank-0", "b-rank-0")
                await load.reaches("a-rank-0", "b-rank-0")
            status, health = await picker.health()
            (said,) = health["not_in_effect"]
            assert (status, said["plugin"], said["object"]) == (200, "kubernetes", f"InferencePool {lax}/pool")
            assert reason in said["reason"]
            assert sum((await picker.metrics())["llm_d_epp_kubernetes_object_problems"].values()) == 1
            await lax.pool(selector={"app": "none"}, ports=fleet.ports)
            await picker.uses()
            _, health = await picker.health()
            assert health["not_in_effect"] == []


@pytest.fixture
async def lax(own_cluster):
    """A namespace in a cluster whose definition of pools lets everything pass."""
    (path,) = CRDS.glob("inferencepools.*")
    definition = copy.deepcopy(yaml.safe_load(path.read_text()))
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition["spec"]["versions"][0]["schema"] = anything
    cluster = await own_cluster(crds=("inferenceobjectives",))
    await cluster.define(definition)
    async with space_in(cluster) as space:
        yield space
