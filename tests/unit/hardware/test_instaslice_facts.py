# SPDX-License-Identifier: Apache-2.0
"""What InstaSlice's objects, or what stands in for them, make of an endpoint."""

import copy
import json

import pytest

from epp.framework.accelerators.tag import AcceleratorDeclaration, Routability, Sharing
from epp.hardware.mig_slices import SliceClaim
from tests.support.hardware_objects import GIB, GPU_A, allocation_claim, node_accelerator
from tests.support.kube.manifests import manifest

POD_UID = "3f0c6c5e-0d61-4e57-9a0e-2d1a7f7f1111"


def claim(profile="3g.20gb", *, uid="uid-a", start=0, **more):
    names = {"name": f"{uid}-{more.get('node')}-{start}-{profile}", "pod": more.pop("name", "vllm-a")}
    return allocation_claim(profile, uid=uid, start=start, **names, **more)


def slicer(*, gpus=1, **more):
    uuids = [GPU_A, GPU_A.replace("0a", "0b")][:gpus]
    return node_accelerator(uuids=uuids, **{"reason": "GPUsAccessible", "bootId": "boot-1", **more})


def test_is_1_sample_of_generation_1(documents, tag):
    found = tag(documents("instaslice-generation-1"))
    assert (found.count, found.memory_bytes, found.node) == (1, 20 * GIB, "gpu-node-1")
    assert (found.vendor, found.model, found.product) == ("nvidia", "a100", "NVIDIA A100-SXM4-40GB")
    assert (found.partition.kind, found.partition.profile, found.partition.start) == (Sharing.MIG, "3g.20gb", 0)
    assert (found.partition.compute_fraction, found.partition.memory_fraction) == (3 / 7, 4 / 8)
    assert found.partition.parent_id == found.devices[0].parent_id == GPU_A
    assert found.state is Routability.ROUTABLE


def test_is_1_sample_of_generation_2(documents, tag):
    found = tag(documents("instaslice-generation-2"))
    assert (found.count, found.memory_bytes, found.model) == (1, 40 * GIB, "h100")
    assert found.partition.profile == "3g.40gb"
    assert found.state is Routability.ROUTABLE


def test_is_1_both_generations_tag_the_same_endpoint_identically(documents, tag, pod):
    (first,) = documents("instaslice-generation-1")
    nodes = first["status"]["nodeResources"]
    second = [
        {**slicer(), "status": {"conditions": first["status"]["conditions"], "nodeResources": nodes}},
        claim(uid=POD_UID),
    ]
    vllm = pod({"nvidia.com/mig-3g.20gb": "1"}, uid=POD_UID)
    assert tag([first, vllm]) == tag([*second, vllm])
    assert tag([first]) == tag(second)


def test_is_1_raw_node_resources_may_be_text(tag, pod):
    node = slicer()
    node["status"]["nodeResources"] = json.dumps(node["status"]["nodeResources"])
    assert tag([node, claim(), pod({"mig.das.com/3g.20gb": "1"})]).model == "a100"


def test_is_1_claim_of_a_pod_of_the_same_name_that_is_no_more_does_not_join(tag, pod):
    found = tag([slicer(), claim(uid="uid-of-before"), pod({"mig.das.com/3g.20gb": "1"})])
    assert found.devices == ()
    assert found.state is Routability.UNKNOWN


def test_is_1_claim_without_uid_joins_by_name(tag, pod):
    found = tag([slicer(), claim(uid=""), pod({"mig.das.com/3g.20gb": "1"})])
    assert len(found.devices) == 1


def test_is_1_claims_join_an_endpoint_whose_pod_is_not_known_by_name(tag):
    assert tag([claim(), claim(name="vllm-b", uid="uid-b")]).count == 1


def test_is_1_several_claims_add_up(tag, pod):
    containers = [
        {"name": name, "resources": {"limits": {"mig.das.com/1g.10gb": number}}} for name, number in ("a2", "b1")
    ]
    claims = [claim("1g.10gb", start=start, size=2) for start in (0, 2, 4)]
    found = tag([slicer(), *claims, pod(spec={"containers": containers})])
    assert (found.count, found.memory_bytes, found.total_memory_bytes) == (3, 10 * GIB, 30 * GIB)
    assert found.partition.profile == "1g.10gb"
    assert len(found.devices) == 3


def test_is_1_different_slices_have_the_right_sums_and_no_profile(tag, pod):
    both = [claim("3g.20gb"), claim("1g.5gb", start=4, size=1)]
    found = tag([slicer(), *both, pod({"mig.das.com/3g.20gb": "1", "mig.das.com/1g.5gb": "1"})])
    assert (found.count, found.total_memory_bytes) == (2, 25 * GIB)
    assert found.partition.profile == ""
    assert found.tflops() == pytest.approx(312 * 4 / 7)  # 3 slices and 1
    assert found.attributes["inference.redhat.com/profiles"] == "1g.5gb,3g.20gb"


def test_is_2_media_extensions_are_kept(tag, pod):
    found = tag([slicer(), claim("1g.5gb+me", size=1), pod({"mig.das.com/1g.5gb-plus-me": "1"})])
    assert found.partition.profile == "1g.5gb+me"
    assert found.partition.media_extensions
    assert found.memory_bytes == 5 * GIB


def test_staged_claim_on_a_second_node_does_not_tag_the_pod(tag, pod):
    claims = [claim(), claim(node="gpu-node-2", state="staged", gpu="GPU-x")]
    for documents in ([*claims], [*reversed(claims)], [*claims, pod({"mig.das.com/3g.20gb": "1"})]):
        found = tag(documents)
        assert (found.node, found.count, found.state) == ("gpu-node-1", 1, Routability.ROUTABLE)


@pytest.mark.parametrize("state", ["staged", "inUse"])
def test_claim_on_another_node_than_the_pods_does_not_count(tag, pod, state):
    found = tag([claim(node="gpu-node-2", state=state), pod({"mig.das.com/3g.20gb": "1"})])
    assert (found.node, found.devices, found.state) == ("gpu-node-1", (), Routability.UNKNOWN)


def test_staged_claim_alone_gives_neither_node_nor_device(tag):
    found = tag([claim(state="staged")])
    assert (found.node, found.devices, found.state) == ("", (), Routability.BLOCKED)


BEING_MADE = ("created", "processing")
STATES = {
    Routability.ROUTABLE: ("ungated+created", "inUse", *BEING_MADE),
    Routability.BLOCKED: ("creating+created", "creating+", "staged", "", "what-comes-next"),
    Routability.DRAINING: (
        *("ungated+deleted", "deleting+created", "deleted+deleted"),
        *("orphaned", "deleting", "deleted"),
    ),
}


@pytest.mark.parametrize(("expected", "states"), STATES.items())
def test_is_4_routability_by_state(expected, states):
    for state in states:
        found = SliceClaim(source="s", pod=None, profile="1g.5gb", state=state)
        assert found.routability(pod_ready=True) is expected, state
        waits = Routability.BLOCKED if state in BEING_MADE else expected
        assert found.routability(pod_ready=False) is waits, state


@pytest.mark.parametrize(("ready", "expected"), [(True, Routability.ROUTABLE), (False, Routability.BLOCKED)])
def test_is_4_claim_in_the_making_waits_for_the_pod(tag, pod, ready, expected):
    found = tag([slicer(), claim(state="processing"), pod({"mig.das.com/3g.20gb": "1"}, ready=ready)])
    assert found.state is expected


def test_is_4_missing_claim(tag, pod):
    documents = [slicer(), pod({"mig.das.com/3g.20gb": "1"})]
    passed = tag(documents)
    assert (passed.state, passed.attributes["epp/slice"]) == (Routability.UNKNOWN, "unknown")
    assert (passed.partition.profile, passed.memory_bytes, passed.count) == ("3g.20gb", 20 * GIB, 1)
    drained = tag(documents, options={"on_missing_claim": "Drain"})
    assert (drained.state, drained.reason) == (
        Routability.DRAINING,
        "the pod requests mig.das.com/3g.20gb and has no claim for it",
    )


def test_is_4_slices_that_nobody_makes_claims_for_miss_none(tag, pod):
    found = tag([pod({"nvidia.com/mig-3g.20gb": "1"})], options={"on_missing_claim": "Drain"})
    assert found.state is Routability.UNKNOWN
    assert "epp/slice" not in found.attributes


@pytest.mark.parametrize("state", ["deleting", "orphaned"])
def test_is_5_claim_on_its_way_out_drains(tag, pod, state):
    found = tag([slicer(), claim(state=state), pod({"mig.das.com/3g.20gb": "1"})])
    assert found.state is Routability.DRAINING
    assert state in found.reason


@pytest.mark.parametrize(
    "resource", ["nvidia.com/mig-3g.20gb", "mig.das.com/3g.20gb", "instaslice.redhat.com/mig-3g.20gb"]
)
def test_is_9_resources_tell_of_slices_without_claims(tag, pod, node, node_labels, resource):
    found = tag([node(node_labels["a100-mixed"]), pod({resource: "2"})])
    assert (found.count, found.partition.profile, found.model) == (2, "3g.20gb", "a100")
    assert found.memory_bytes == 20 * GIB
    assert found.resources == {resource}


def test_is_9_annotation_of_the_device_plugin(tag, pod):
    spec = claim()["spec"]
    metadata = {"annotations": {"mig.das.com/allocation": json.dumps([spec])}}
    found = tag([slicer(), pod({"mig.das.com/3g.20gb": "1"}, metadata=metadata)])
    assert (found.partition.parent_id, found.state) == (GPU_A, Routability.ROUTABLE)
    broken = pod({"mig.das.com/3g.20gb": "1"}, metadata={"annotations": {"mig.das.com/allocation": "[{"}})
    assert tag([slicer(), broken]).partition.profile == "3g.20gb"


def test_is_9_labels_of_a_node_whose_gpus_are_all_cut_alike(tag, pod, node, node_labels):
    found = tag([node(node_labels["a100-single"]), pod({"nvidia.com/gpu": "1"})])
    assert (found.count, found.partition.profile, found.memory_bytes) == (1, "1g.5gb", 5 * GIB)
    assert tag([node(node_labels["a100-single"])], node="gpu-node-1").count == 1


@pytest.mark.parametrize("option", ["Drain", "Ignore"])
def test_is_10_node_that_is_not_ready_drains_its_slices(tag, pod, option):
    down = slicer(ready="False", reason="DriverError")
    found = tag([down, claim(), pod({"mig.das.com/3g.20gb": "1"})], options={"on_node_not_ready": option})
    expected = Routability.DRAINING if option == "Drain" else Routability.ROUTABLE
    assert found.state is expected
    assert ("DriverError" in found.reason) is (option == "Drain")


def test_is_10_node_of_generation_1(documents, tag):
    (first,) = copy.deepcopy(documents("instaslice-generation-1"))
    first["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "DriverError"}]
    assert tag([first]).state is Routability.DRAINING


def test_is_10_endpoint_without_a_slice_stays(tag, pod):
    found = tag([slicer(ready="False"), pod({"nvidia.com/gpu": "1"})])
    assert found.state is Routability.UNKNOWN


def test_is_11_boot_id_and_uid_show_that_it_is_another_machine_or_pod(tag, pod, node):
    found = tag([slicer(bootId="boot-7"), claim(), pod({"mig.das.com/3g.20gb": "1"})])
    assert (found.attributes["epp/boot-id"], found.attributes["epp/pod-uid"]) == ("boot-7", "uid-a")
    booted = node(nodeInfo={"bootID": "boot-8"})
    assert tag([booted, pod({"nvidia.com/gpu": "1"})]).attributes["epp/boot-id"] == "boot-8"


def test_free_slots_of_the_node(tag, pod):
    # 2 GPUs x 8 slots, 4 and 1 of them taken; what is only staged takes none
    others = [claim("1g.5gb", uid="u2", start=4, size=1), claim("7g.40gb", uid="u3", size=8, state="staged")]
    found = tag([slicer(gpus=2), claim(), *others, pod({"mig.das.com/3g.20gb": "1"})])
    assert (found.attributes["epp/slots-free"], found.attributes["epp/slots-total"]) == (11, 16)


def test_is_3_figures_of_a_slice(tag, pod, accelerator_class, node):
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    priced = accelerator_class("a100", discovery={"nodeSelector": labels}, cost={"perHour": "2"})
    found = tag([priced, node(labels), slicer(), claim(), pod({"mig.das.com/3g.20gb": "1"})])
    assert found.tflops() == pytest.approx(312 * 3 / 7)
    assert found.cost_per_hour() == 1.0  # $2 x 4/8
    assert found.cost_per_hour(basis="compute") == pytest.approx(2 * 3 / 7)


def test_is_9_class_of_whole_devices_does_not_give_its_memory_to_a_shared_one(tag, pod, accelerator_class, node):
    labels = {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"}
    t4 = accelerator_class("t4", discovery={"nodeSelector": labels}, capabilities={"memoryGB": "16Gi"})
    found = tag([t4, node(labels), pod({"nvidia.com/gpu.shared": "1"})])
    assert (found.partition.sharers, found.memory_bytes) == (4, 4 * GIB)


MIG = "MIG-5d3bcf21-9b5c-5a5f-8a5e-0b9f6a1c2d3e"
MAP = "0b8f0a1e-1111-4222-8333-444444444444"


def slice_map(uuid=MIG, name=MAP) -> dict:
    """Return the ConfigMap that the daemonset of generation 1 makes for a pod."""
    data = {"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_VISIBLE_DEVICES": uuid}
    return manifest("v1", "ConfigMap", name, "llm", data=data)


def pod_with(pod, **container) -> dict:
    found = pod({"nvidia.com/mig-3g.20gb": "1"}, uid="uid-of-another-cluster", name="vllm-b")
    found["spec"]["containers"][0] |= container
    return found


def test_is_17_uuid_of_the_slice_is_the_id_of_its_device(documents, tag):
    found = tag([*documents("instaslice-generation-1"), slice_map()])
    assert [(device.id, device.parent_id) for device in found.devices] == [(MIG, GPU_A)]


@pytest.mark.parametrize(
    "container",
    [
        {"envFrom": [{"secretRef": {"name": "token"}}, {"configMapRef": {"name": MAP}}]},
        {"env": [{"name": "HOME"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": f"{MIG}, GPU-7"}]},
    ],
    ids=["ConfigMap", "UUID"],
)
def test_is_17_pod_joins_its_slice_by_its_environment(documents, tag, pod, container):
    objects = [*documents("instaslice-generation-1"), slice_map(), pod_with(pod, **container)]
    found = tag(objects, name="vllm-b")
    assert (found.partition.profile, found.partition.parent_id, found.memory_bytes) == ("3g.20gb", GPU_A, 20 * GIB)
    assert (found.state, found.node) == (Routability.ROUTABLE, "gpu-node-1")


def test_is_17_pod_joins_by_the_name_of_the_map_without_the_map(documents, tag, pod):
    alone = pod_with(pod, envFrom=[{"configMapRef": {"name": MAP}}])
    found = tag([*documents("instaslice-generation-1"), alone], name="vllm-b")
    assert found.partition.parent_id == GPU_A


@pytest.mark.parametrize("environment", [None, "text", [7, {"name": 3}, {"name": "CUDA_VISIBLE_DEVICES", "value": 0}]])
def test_is_17_strange_environment_joins_nothing(documents, tag, pod, environment):
    alone = pod_with(pod, env=environment, envFrom=environment)
    found = tag([*documents("instaslice-generation-1"), slice_map(), alone], name="vllm-b")
    assert found.attributes["epp/slice"] == "unknown"


def test_is_17_endpoint_of_a_list_joins_by_the_declared_uuid(documents, tag):
    objects = [*documents("instaslice-generation-1"), slice_map()]
    found = tag(objects, name="by-hand", accelerator=AcceleratorDeclaration(device=MIG))
    assert (found.partition.profile, found.model, found.memory_bytes) == ("3g.20gb", "a100", 20 * GIB)
    unknown = tag(objects, name="by-hand", accelerator=AcceleratorDeclaration(device="MIG-0"))
    assert ([device.id for device in unknown.devices], unknown.partition.kind) == (["MIG-0"], Sharing.NONE)
