# SPDX-License-Identifier: Apache-2.0
"""Nodes with accelerators and without an endpoint: devices that nobody requests, and what they cost."""

import pytest
import yaml

from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.node_devices import IdleNode, IdleNodes
from epp.hardware.tag_builder import TagBuilder
from epp.hardware.tagger import AcceleratorTagger
from tests.support.config_files import replace
from tests.support.decoded_objects import decode
from tests.support.plugins import built

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1"}
PRICES = "prices:\n- {accelerator: h100, perHour: 3}\n"


@pytest.fixture
def tagger(tmp_path):
    """Build a tagger that reads these objects, and later ones from the same file."""

    def build(*documents: dict) -> AcceleratorTagger:
        (tmp_path / "prices.yaml").write_text(PRICES)
        write(tmp_path, *documents)
        files = {"paths": [str(tmp_path / "objects.yaml")], "prices": str(tmp_path / "prices.yaml")}
        return built(AcceleratorTagger, files)

    return build


def write(directory, *documents: dict) -> None:
    replace(directory / "objects.yaml", yaml.safe_dump_all(documents))


def gpus(node, labels, name, count="8"):
    return node(labels, name=name, allocatable={"nvidia.com/gpu": count, "cpu": "96"})


def test_tf_21_devices_that_no_pod_requests_on_nodes_without_an_endpoint_cost_dollars(tagger, node, pod):
    found = tagger(
        gpus(node, H100, "idle"),
        gpus(node, H100, "training"),
        gpus(node, H100, "serving"),
        gpus(node, T4, "unpriced", "1"),
        node({}, name="cpu-only", allocatable={"cpu": "64"}),
        pod({"nvidia.com/gpu": "6"}, node="training", name="train", uid="t"),
        pod({"nvidia.com/gpu": "1"}, node="serving", name="vllm", uid="v"),
    )
    server = Endpoint("vllm", "10.0.0.9", 8000, node="serving")
    found.tag(server)
    assert found.idle_nodes() == [
        IdleNode(node="idle", accelerator="h100", devices=8, requested=0, free=8, dollars_per_hour=24.0),
        IdleNode(node="training", accelerator="h100", devices=8, requested=6, free=2, dollars_per_hour=6.0),
        IdleNode(node="unpriced", accelerator="t4", devices=1, requested=0, free=1),
    ]
    idle = {(each.metric.name, *each.labels): each.value for each in found.samples if "idle" in each.metric.name}
    assert idle == {
        ("accelerator_idle_devices", "h100"): 10.0,
        ("accelerator_idle_dollars_per_hour", "h100"): 30.0,
        ("accelerator_idle_devices", "t4"): 1.0,
        ("accelerator_idle_dollars_per_hour", "t4"): 0.0,
    }
    found.untag(server)
    assert [each.node for each in found.idle_nodes()] == ["idle", "serving", "training", "unpriced"]


def test_node_of_an_endpoint_that_got_another_address_is_not_idle(tagger, node):
    found = tagger(gpus(node, H100, "old"), gpus(node, H100, "new"))
    before, after = Endpoint("vllm", "10.0.0.1", 8000, node="old"), Endpoint("vllm", "10.0.0.2", 8000, node="new")
    found.tag(before)
    found.tag(after)  # before the earlier endpoint has left, as when the pool is replaced
    found.untag(before)
    assert [each.node for each in found.idle_nodes()] == ["old"]


async def test_tf_21_idle_nodes_follow_their_objects(tagger, node, pod, tmp_path):
    found = tagger(gpus(node, H100, "n1"), gpus(node, H100, "n2"))
    assert [each.free for each in found.idle_nodes()] == [8, 8]
    write(tmp_path, gpus(node, H100, "n1"), pod({"nvidia.com/gpu": "8"}, node="n1", name="train", uid="t"))
    await found.check()
    assert [(each.node, each.free, each.dollars_per_hour) for each in found.idle_nodes()] == [("n1", 0, 0.0)]


def test_only_nodes_whose_objects_change_are_described_again(node, pod):
    user = pod({"nvidia.com/gpu": "8"}, node="n1", name="train", uid="t")
    file = decode([gpus(node, H100, "n1"), gpus(node, H100, "n2"), user], "a.yaml").file
    other = decode([pod({"nvidia.com/gpu": "1"}, node="n2", name="new", uid="n")], "b.yaml").file
    before = Inventory.build([file])
    after = Inventory.build([file, other], before)
    idle = IdleNodes()
    first, second = (
        {each.node: each for each in idle.of(inventory, TagBuilder(inventory), None, frozenset(), {})}
        for inventory in (before, after)
    )
    assert second["n1"] is first["n1"]
    assert (first["n2"].requested, second["n2"].requested) == (0, 1)


def test_tf_21_gpus_of_tensor_fusion_and_slices_count_by_their_users(tagger, node, documents):
    labels = {"nvidia.com/mig.capable": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    of_slices = node(labels, name="sliced", allocatable={"nvidia.com/mig-3g.40gb": "2", "nvidia.com/gpu": "0"})
    found = {each.node: each for each in tagger(of_slices, *documents("tensor-fusion")).idle_nodes()}
    assert (found["sliced"].devices, found["sliced"].free) == (2, 2)


def test_tf_21_claimed_devices_of_dra_are_not_idle(tagger, node, documents):
    found = {each.node: each for each in tagger(node({}, name="gpu-node-1"), *documents("dra")).idle_nodes()}
    # gpu-0 is claimed; the MIG device, which nobody claims, is a part of gpu-1
    assert (found["gpu-node-1"].devices, found["gpu-node-1"].free) == (2, 1)
