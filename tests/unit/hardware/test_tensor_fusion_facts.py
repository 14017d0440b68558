# SPDX-License-Identifier: Apache-2.0
"""What TensorFusion's objects make of an endpoint."""

import copy

import pytest

from epp.framework.accelerators.places import device_closeness
from epp.framework.accelerators.tag import (
    ISOLATION_MODE,
    PHASE,
    TFLOPS_FREE,
    TFLOPS_USED,
    VIRTUAL,
    VRAM_FREE,
    VRAM_USED,
    DeviceLink,
    Routability,
    Sharing,
)
from epp.framework.testing import candidates
from tests.support.hardware_objects import GIB, user
from tests.support.kube.manifests import manifest

POD_UID = "3f0c6c5e-0d61-4e57-9a0e-2d1a7f7f1111"


@pytest.fixture
def gpu(documents):
    return documents("tensor-fusion")[0]


def changed(gpu, **status):
    other = copy.deepcopy(gpu)
    other["status"].update(status)
    return other


def annotated(ids, domain="tensor-fusion.ai"):
    return {"annotations": {f"{domain}/gpu-ids": ids}}


def without_users(gpu, **status):
    return changed(gpu, runningApps=[], **status)


def test_tf_1_sample(documents, tag):
    found = tag(documents("tensor-fusion"))
    assert (found.vendor, found.family, found.model, found.product) == ("nvidia", "ampere", "a100", "A100_SXM")
    (device,) = found.devices
    assert (device.id, device.node, device.index, device.numa) == ("GPU-0000000a", "gpu-node-1", 0, 0)
    # limits are 200 of 312 TFLOPS, 24 of 80 GiB
    assert (found.partition.kind, found.partition.compute_fraction) == (Sharing.VGPU, 200 / 312)
    assert (found.memory_bytes, found.partition.memory_fraction) == (24 * GIB, 24 / 80)
    assert found.tflops() == pytest.approx(200)
    assert found.state is Routability.ROUTABLE
    assert found.attributes["tensor-fusion.ai/qos"] == "high"
    assert found.attributes[TFLOPS_USED] == pytest.approx(0.5)  # 156 of 312 are left
    assert found.attributes[VRAM_USED] == pytest.approx(0.25)  # 60 of 80 GiB are left
    assert (found.attributes[PHASE], found.attributes[ISOLATION_MODE]) == ("Running", "soft")


@pytest.mark.parametrize("domain", ["tensor-fusion.ai", "gpu.example.com"])
def test_tf_1_join_by_annotation(gpu, tag, pod, domain):
    objects = [without_users(gpu), pod(metadata=annotated("gpu-0000000a, GPU-other", domain))]
    found = tag(objects, options={"tensor_fusion_domain": domain})
    assert [device.id for device in found.devices] == ["GPU-0000000a"]
    assert tag(objects, options={"tensor_fusion_domain": "other.ai"}).devices == ()


def test_tf_1_join_by_running_app(gpu, tag, pod):
    assert len(tag([gpu, pod(uid=POD_UID)]).devices) == 1
    assert tag([gpu, pod(uid="another")]).devices == ()


def test_tf_1_join_by_allocated_partition(gpu, tag, pod):
    partitions = {"uid-a": {"templateId": "3g.40gb", "allocatedSlotStart": 4, "allocatedSlotEnd": 8}}
    found = tag([without_users(gpu, isolationMode="partitioned", allocatedPartitions=partitions), pod()])
    part = found.partition
    assert (part.kind, part.profile, part.start, part.parent_id) == (Sharing.MIG, "3g.40gb", 4, "GPU-0000000a")
    assert found.memory_bytes == 40 * GIB


def test_tf_1_several_gpus_add_up(gpu, tag, pod):
    other = copy.deepcopy(without_users(gpu, uuid="GPU-0000000b", index=1))
    other["metadata"]["name"] = "gpu-0000000b"
    found = tag([without_users(gpu), other, pod(metadata=annotated("gpu-0000000a,gpu-0000000b"))])
    assert (found.count, found.memory_bytes) == (2, 80 * GIB)
    assert found.attributes[TFLOPS_USED] == pytest.approx(0.5)  # of both together


def test_shared_whole_gpu_is_divided_by_its_pods(gpu, tag, pod):
    apps = [{"name": "vllm", "namespace": "llm", "count": 2, "pods": [user(), user("b", "uid-b")]}]
    found = tag([changed(gpu, isolationMode="shared", runningApps=apps), pod()])
    assert (found.partition.kind, found.partition.sharers) == (Sharing.TIME_SLICING, 2)


@pytest.mark.parametrize(
    ("expected", "phases"),
    [
        (Routability.ROUTABLE, ["Running"]),
        (Routability.BLOCKED, ["Pending", "Provisioning", "Unknown"]),
        (Routability.DRAINING, ["Destroying", "Migrating"]),
    ],
)
def test_tf_4_phase_makes_the_state(gpu, tag, pod, expected, phases):
    for phase in phases:
        assert tag([changed(gpu, phase=phase), pod(uid=POD_UID)]).state is expected


@pytest.mark.parametrize(("used_by", "expected"), [("", Routability.ROUTABLE), ("device-plugin", Routability.BLOCKED)])
def test_tf_4_gpu_of_another_user_is_blocked(gpu, tag, pod, used_by, expected):
    assert tag([changed(gpu, phase="Running", usedBy=used_by), pod(uid=POD_UID)]).state is expected


def test_tf_4_pending_may_pass(gpu, tag, pod):
    found = tag([changed(gpu, phase="Pending"), pod(uid=POD_UID)], options={"on_pending_gpu": "Pass"})
    assert (found.state, found.attributes["tensor-fusion.ai/phase"]) == (Routability.ROUTABLE, "Pending")


def test_gpu_without_capacity_divides_by_nothing(gpu, tag, pod):
    found = tag([changed(gpu, capacity={"tflops": "0", "vram": "0"}), pod(uid=POD_UID)])
    assert (found.count, found.partition.compute_fraction) == (1, 1.0)


def test_price_of_the_node_is_divided_by_its_gpus(documents, tag):
    found = tag(documents("tensor-fusion"))
    assert found.cost.per_hour == pytest.approx(15.1 / 8)  # 640 GiB / 80 GiB are 8 GPUs
    assert found.provenance["per_hour"] == "GPUNode/gpu-node-1"


def gpu_node(**status):
    return manifest("tensor-fusion.ai/v1", "GPUNode", "gpu-node-1", status={"phase": "Running", **status})


NODE = {"totalTFlops": "312", "totalVRAM": "80Gi", "virtualTFlops": "1560", "virtualVRAM": "120Gi"}
VIRTUAL_CAPACITY = {"tflops": "1560", "vram": "120Gi"}


def test_tf_19_oversold_node_has_physical_and_virtual_figures(gpu, tag, pod):
    # one GPU with 312 TFLOPS and 80 GiB, of which 156 and 20 GiB are allocated, sold 5 and 1.5 times over
    found = tag([gpu, gpu_node(**NODE), pod(uid=POD_UID)])
    assert found.attributes[TFLOPS_USED] == pytest.approx(156 / 312)
    assert found.attributes[TFLOPS_USED + VIRTUAL] == pytest.approx(156 / 1560)
    assert found.attributes[VRAM_USED] == pytest.approx(20 / 80)
    assert found.attributes[VRAM_USED + VIRTUAL] == pytest.approx(20 / 120)
    assert found.attributes[VRAM_FREE] == 60 * GIB
    assert found.attributes[VRAM_FREE + VIRTUAL] == 100 * GIB
    assert (found.attributes[TFLOPS_FREE], found.attributes[TFLOPS_FREE + VIRTUAL]) == (156, 1404)


def test_tf_19_gpu_that_reports_virtual_capacity_has_its_physical_one(gpu, tag, pod):
    oversold = changed(gpu, capacity=VIRTUAL_CAPACITY, available={"tflops": "1404", "vram": "100Gi"})
    found = tag([oversold, gpu_node(**NODE), pod(uid=POD_UID)])
    assert found.performance.fp16 == pytest.approx(312)
    assert found.partition.memory_fraction == pytest.approx(24 / 80)
    assert found.attributes[TFLOPS_USED] == pytest.approx(156 / 312)
    assert found.attributes[TFLOPS_USED + VIRTUAL] == pytest.approx(156 / 1560)


def test_tf_19_more_sold_than_there_is(gpu, tag, pod):
    oversold = changed(gpu, capacity=VIRTUAL_CAPACITY, available={"tflops": "780", "vram": "20Gi"})
    found = tag([oversold, gpu_node(**NODE), pod(uid=POD_UID)])
    assert found.attributes[TFLOPS_USED] == pytest.approx(780 / 312)
    assert (found.attributes[TFLOPS_FREE], found.attributes[TFLOPS_FREE + VIRTUAL]) == (0, 780)


@pytest.mark.parametrize("node", [{}, {"totalTFlops": "312", "virtualTFlops": "312"}, {"virtualVRAM": "120Gi"}])
def test_tf_19_node_that_sells_what_it_has_has_no_virtual_figures(gpu, tag, pod, node):
    found = tag([gpu, gpu_node(**node), pod(uid=POD_UID)])
    assert found.attributes[TFLOPS_USED] == pytest.approx(0.5)
    assert not [name for name in found.attributes if name.endswith(VIRTUAL)]


def test_tf_14_links_of_a_gpu_are_those_of_its_topology_and_its_nvlinks(gpu, tag, pod, node):
    peers = [
        {"peerGPUUUID": "GPU-0000000b", "tier": 1, "linkType": "PIX", "bandwidth": 64000},
        {"peerGPUUUID": "GPU-0000000c", "tier": 7, "bandwidth": -1},
        {"peerGPUUUID": "GPU-0000000d"},
    ]
    linked = changed(gpu, topology={"peers": peers}, nvLink={"peers": [{"peerUUID": "GPU-e", "bandwidthMBps": 900000}]})
    (device,) = tag([linked, pod(uid=POD_UID), node({"nvidia.com/gpu.clique": "uuid.1"})]).devices
    assert device.links == (
        DeviceLink(peer="GPU-0000000b", tier=1, bandwidth_mbps=64000),
        DeviceLink(peer="GPU-0000000c", tier=3),  # there is no tier 7
        DeviceLink(peer="GPU-0000000d", tier=3),
        DeviceLink(peer="GPU-e", tier=0, bandwidth_mbps=900000),
    )
    assert device.clique == "uuid.1"


def test_tf_14_endpoints_of_the_sample_are_directly_linked(documents, gpu, tag, pod):
    other = without_users(gpu, uuid="GPU-0000000b", topology={}, nodeSelector={"kubernetes.io/hostname": "gpu-node-2"})
    other["metadata"]["name"] = "gpu-0000000b"
    place = {"node": "gpu-node-2", "metadata": annotated("gpu-0000000b"), "status": {"podIP": "10.0.0.12"}}
    objects = [*documents("tensor-fusion"), other, pod(name="vllm-b", uid="b", **place)]
    tags = [tag(objects), tag(objects, name="vllm-b", address="10.0.0.12")]
    pool = candidates(accelerators=tags).within("prefill", 0)
    assert device_closeness(pool, 0).tolist() == [99, 99]  # tier 0, and the highest bandwidth there is


@pytest.mark.parametrize("label", ["nvidia.com/gpu.clique", "resource.nvidia.com/computeDomain"])
def test_dra_5_clique_and_compute_domain_of_the_node(tag, pod, node, label):
    found = tag([pod({"nvidia.com/gpu": "1"}), node({label: "uuid.1"})])
    assert found.attributes[label] == "uuid.1"


@pytest.mark.parametrize("count", [128, 129])
def test_tf_23_one_allocation_has_128_gpus_at_most(gpu, pod, inventory_of, tag, count):
    ids = [gpu["metadata"]["name"], *(f"gpu-{number}" for number in range(count - 1))]
    objects = [without_users(gpu), pod(name="vllm-b", uid="b", metadata=annotated(",".join(ids)))]
    assert len(tag(objects, name="vllm-b").devices) == (1 if count == 128 else 0)
    said = [str(each) for each in inventory_of(objects).ignored]
    assert len(said) == (count > 128)
    assert all("annotations[tensor-fusion.ai/gpu-ids] has more than 128" in text for text in said)
