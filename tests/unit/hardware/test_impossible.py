# SPDX-License-Identifier: Apache-2.0
"""Values that an object cannot have beside others: they are said, and no tag has them."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import AcceleratorTag, Sharing
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.mig import UNKNOWN_SLICE, profile_fault
from epp.hardware.tag_builder import TagBuilder
from tests.support import hardware_objects as objects
from tests.support.decoded_objects import decode
from tests.support.kube.manifests import manifest

GIB = 2**30
GPU = "GPU-a"
A30 = {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576", "nvidia.com/gpu.count": "1"}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1"}
OF_AN_A30 = "which 'NVIDIA-A30' cannot have: write one of 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"
ENDPOINT = Endpoint("vllm-a", "10.0.0.11", 8000, "llm", uid="uid-a")
ENDPOINT_BY_NAME = Endpoint("vllm-a", "10.0.0.11", 8000, "llm")


def node(labels: dict[str, str], name: str = "n1") -> dict:
    return objects.node(labels, name=name)


def pod(resource: str = "nvidia.com/gpu", *, annotations: dict[str, str] | None = None, **more) -> dict:
    return objects.pod({resource: "1"}, metadata={"annotations": annotations or {}}, **{"node": "n1", **more})


def slicer(**more) -> dict:
    return objects.node_accelerator("n1", uuids=[GPU], **more)


def claim(profile: str, *, uid: str = "uid-a", **more) -> dict:
    return objects.allocation_claim(profile, pod=uid.replace("uid", "vllm"), uid=uid, node="n1", gpu=GPU, **more)


def instaslice(profile: str) -> dict:
    """The same slice as that of `claim`, as generation 1 has it."""
    return objects.instaslice(profile, name="n1", gpu=GPU)


class World:
    """The inventory of some documents, and the tag of the endpoint `llm/vllm-a`."""

    def __init__(self, *documents: dict) -> None:
        self.inventory = Inventory.build([decode(documents, "a.yaml").file])
        self.tag: AcceleratorTag = TagBuilder(self.inventory).build(ENDPOINT).tag

    @property
    def ignored(self) -> list[str]:
        return [f"{each.kind} {each.object}: {each.reason}" for each in self.inventory.ignored]


def assert_unknown_slice(tag: AcceleratorTag, model: str) -> None:
    """Nothing is assumed of the slice: not the memory, the price or the speed of the whole device."""
    assert (tag.model, tag.partition.kind, tag.partition.profile) == (model, Sharing.MIG, "")
    assert (tag.memory_bytes, tag.cost_per_hour(), tag.tflops(), tag.bandwidth_gbps) == (None, None, 0, None)


@pytest.mark.parametrize(
    ("product", "profiles"),
    [
        ("NVIDIA-A30", "3g.40gb 1g.5gb 3g.24gb"),
        ("Tesla-T4", "3g.20gb"),
        ("NVIDIA-L40S", "1g.5gb"),
        ("NVIDIA A100-SXM4-40GB", "3g.40gb 4c.3g.20gb"),
        ("NVIDIA A100-SXM4-80GB", "3g.20gb 5g.40gb"),
        ("NVIDIA-H100-80GB-HBM3", "3g.20gb"),
        ("NVIDIA-H200", "3g.40gb"),
        ("NVIDIA B200", "3g.40gb"),
        ("NVIDIA GB200", "7g.80gb"),
        ("AMD Instinct MI300X", "3g.20gb"),
        ("anything", "huge"),
    ],
)
def test_is_2_profile_that_the_gpu_cannot_have(product, profiles):
    assert all(profile_fault(profile, product) for profile in profiles.split())


@pytest.mark.parametrize(
    ("product", "profiles"),
    [
        ("NVIDIA-A30", "4g.24gb"),
        ("NVIDIA A100-PCIE-40GB", "1g.5gb+me 1c.3g.20gb"),
        ("NVIDIA A100-SXM4-80GB", "3g.40gb"),
        ("A100", "3g.20gb 3g.40gb"),
        ("NVIDIA-H100-80GB-HBM3", "1g.10gb"),
        ("NVIDIA H100 NVL", "3g.47gb"),
        ("NVIDIA GH200 480GB", "3g.48gb"),
        ("NVIDIA-H200", "1g.18gb"),
        ("NVIDIA B200", "1g.23gb"),
        ("NVIDIA GB200", "1g.24gb"),
        ("NVIDIA A999 of tomorrow", "3g.20gb"),
        ("", "3g.20gb"),
    ],
)
def test_is_2_profile_that_the_gpu_has_or_that_is_not_known_to_be_impossible(product, profiles):
    assert not any(profile_fault(profile, product) for profile in profiles.split())


def test_is_9_request_for_a_slice_that_the_gpu_cannot_have():
    world = World(node(A30), pod("nvidia.com/mig-3g.40gb"))
    assert world.ignored == [
        f"Pod llm/vllm-a: spec.containers[0].resources.limits[nvidia.com/mig-3g.40gb] is '3g.40gb', {OF_AN_A30}"
    ]
    assert_unknown_slice(world.tag, "a30")
    assert world.tag.resources == {"nvidia.com/mig-3g.40gb"}


def test_is_9_request_for_a_slice_of_a_gpu_without_mig():
    world = World(node(T4), pod("nvidia.com/mig-3g.20gb"))
    (ignored,) = world.ignored
    assert ignored.endswith("is '3g.20gb', but 'Tesla-T4' has no MIG: leave it out")
    assert_unknown_slice(world.tag, "t4")


def test_class_of_slices_does_not_match_by_a_profile_that_the_gpu_cannot_have():
    resource = "nvidia.com/mig-3g.40gb"
    each = objects.accelerator_class("slices", resources=[{"name": resource}], cost={"perHour": "1"})
    assert World(each, node(A30), pod(resource)).tag.classes == ()
    assert World(each, node({}), pod(resource)).tag.classes == ("slices",)


def test_is_9_gpu_that_is_not_known_is_no_reason_for_doubt():
    world = World(node({"nvidia.com/gpu.product": "NVIDIA-A999"}), pod("nvidia.com/mig-3g.40gb"))
    assert (world.ignored, world.tag.memory_bytes) == ([], 40 * GIB)


def test_is_9_single_strategy_with_a_profile_that_the_gpu_cannot_have():
    labels = {**A30, "nvidia.com/gpu.product": "NVIDIA-A30-MIG-3g.40gb", "nvidia.com/mig.strategy": "single"}
    world = World(node(labels), pod())
    assert world.ignored == [
        "Node n1: label nvidia.com/gpu.product: 'NVIDIA-A30-MIG-3g.40gb': the profile is '3g.40gb', "
        + OF_AN_A30.replace("NVIDIA-A30", "nvidia-a30")
    ]
    assert_unknown_slice(world.tag, "a30")


def test_is_9_mixed_strategy_with_a_profile_that_the_gpu_cannot_have():
    labels = {**A30, "nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-3g.40gb.count": "2"}
    world = World(node({**labels, "nvidia.com/mig-2g.12gb.count": "1"}), pod("nvidia.com/mig-2g.12gb"))
    assert world.ignored == [f"Node n1: label nvidia.com/mig-3g.40gb.count: the profile is '3g.40gb', {OF_AN_A30}"]
    assert (world.tag.partition.profile, world.tag.memory_bytes) == ("2g.12gb", 12 * GIB)


@pytest.mark.parametrize("bad", ["huge", "3g.40gb"])
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_is_1_valid_claim_beats_an_invalid_one(bad, names):
    world = World(slicer(), pod(), claim(bad, name=names[0]), claim("3g.20gb", name=names[1]))
    assert [each.partition(" is ")[0] for each in world.ignored] == [
        f"AllocationClaim das-operator/{names[0]}: spec.profile"
    ]
    assert (world.tag.partition.profile, world.tag.memory_bytes, world.tag.count) == ("3g.20gb", 20 * GIB, 1)


def test_is_1_valid_slice_of_generation_1_beats_an_invalid_one_of_generation_2():
    world = World(instaslice("3g.20gb"), pod(), claim("huge"))
    assert (world.tag.partition.profile, world.tag.count) == ("3g.20gb", 1)
    world = World(instaslice("huge"), pod(), claim("3g.20gb"))
    assert (world.tag.partition.profile, world.tag.count) == ("3g.20gb", 1)
    (ignored,) = world.ignored
    assert ignored.startswith("Instaslice instaslice-system/n1: spec.podAllocationRequests[uid-a].profile is 'huge'")


def test_is_1_request_of_the_pod_beats_an_invalid_claim():
    world = World(slicer(), pod("mig.das.com/3g.20gb"), claim("huge"))
    assert (world.tag.partition.profile, world.tag.memory_bytes) == ("3g.20gb", 20 * GIB)
    assert world.tag.state == "routable"  # the state of the claim is as good as ever


def test_is_1_claim_without_a_possible_profile_is_a_slice_of_unknown_size():
    assert_unknown_slice(World(slicer(), pod(), claim("huge")).tag, "a100")


def test_is_1_profile_that_the_node_itself_has_placements_for_is_possible():
    written = {"3g.20gb": {"placements": [{"size": 4, "start": 0}]}}
    documents = [slicer(product="NVIDIA A100-SXM4-80GB", memory="80Gi", migPlacement=written), pod(), claim("3g.20gb")]
    assert World(*documents).ignored == []


@pytest.mark.parametrize(
    ("start", "size", "reason"),
    [
        (4, 8, "is {size: 8, start: 4}, beyond the 8 memory slots of the GPU: write slots that it has"),
        (1, 4, "is {size: 4, start: 1}, where no 3g.20gb can be: write size 4 and start 0, 4"),
        (0, 2, "is {size: 2, start: 0}, where no 3g.20gb can be: write size 4 and start 0, 4"),
    ],
)
def test_is_3_placement_that_the_gpu_cannot_have(start, size, reason):
    world = World(slicer(), pod(), claim("3g.20gb", start=start, size=size))
    assert world.ignored == [f"AllocationClaim das-operator/c: spec.migPlacement {reason}"]
    assert (world.tag.partition.profile, world.tag.partition.start) == ("3g.20gb", None)


def test_is_3_a30_has_four_slots():
    world = World(slicer(product="NVIDIA A30", memory="24Gi"), pod(), claim("1g.6gb", start=4, size=1))
    (ignored,) = world.ignored
    assert "beyond the 4 memory slots" in ignored


def test_is_3_of_overlapping_slices_the_one_in_use_keeps_its_place():
    documents = [
        slicer(),
        pod(),
        claim("3g.20gb", name="a", uid="uid-b", start=0, state="created"),
        claim("4g.20gb", name="b", start=0),
    ]
    world = World(*documents)
    (ignored,) = world.ignored
    assert ignored == (
        "AllocationClaim das-operator/a: spec.migPlacement is {size: 4, start: 0}, where "
        "AllocationClaim/das-operator/b is: write free memory slots, or delete one of the two"
    )
    assert world.tag.partition.start == 0
    assert World(*documents[:3], claim("3g.20gb", name="b", start=4)).ignored == []
    leaving = claim("3g.20gb", name="a", uid="uid-b", start=0, state="orphaned")
    assert World(slicer(), pod(), leaving, claim("3g.20gb")).ignored == []


def test_is_9_annotation_with_an_impossible_profile_or_none_that_can_be_read():
    written = '[{"profile": "3g.71gb", "gpuUUID": "GPU-a"}, {"profile": "3g.20gb"}]'
    world = World(slicer(), pod(annotations={"mig.das.com/allocation": written}))
    (ignored,) = world.ignored
    assert ignored.startswith("Pod llm/vllm-a: metadata.annotations[mig.das.com/allocation]: [0].profile is '3g.71gb'")
    assert (world.tag.partition.profile, world.tag.count) == ("3g.20gb", 1)
    (ignored,) = World(slicer(), pod(annotations={"mig.das.com/allocation": "{"})).ignored
    assert ignored.endswith("it is not a list of claims: write JSON as the device plugin does")


def test_dra_mig_device_with_a_profile_that_its_gpu_cannot_have(documents):
    found = copy.deepcopy(documents("dra"))
    devices = next(each for each in found if each["metadata"]["name"].endswith("devices"))["spec"]["devices"]
    devices[1]["attributes"]["profile"] = {"string": "3g.20gb"}
    claimed = next(each for each in found if each["kind"] == "ResourceClaim")
    claimed["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1-mig-3g40gb-9-0"
    inventory = Inventory.build([decode(found, "a.yaml").file])
    (ignored,) = inventory.ignored
    assert ignored.reason.startswith("spec.devices[1].attributes[profile] is '3g.20gb', which 'NVIDIA H100 80GB HBM3'")
    tag = TagBuilder(inventory).build(ENDPOINT_BY_NAME).tag
    assert (tag.model, tag.partition.profile) == ("h100", "")
    # capacities of the device are values of their own
    assert tag.memory_bytes == 40448 * 2**20
    assert tag.tflops() == pytest.approx(989 * 60 / 132)
    devices[1]["capacity"] = {}
    devices[1].pop("consumesCounters", None)
    inventory = Inventory.build([decode(found, "a.yaml").file])
    tag = TagBuilder(inventory).build(ENDPOINT_BY_NAME).tag
    assert tag.partition == UNKNOWN_SLICE
    assert (tag.memory_bytes, tag.tflops(), tag.cost_per_hour()) == (None, 0, None)


def test_tf_partition_that_the_gpu_cannot_have(documents):
    gpu = copy.deepcopy(documents("tensor-fusion")[0])
    partition = {"templateId": "3g.20gb", "podUid": "uid-a", "podName": "vllm-a", "namespace": "llm"}
    gpu["status"] |= {"runningApps": [], "allocatedPartitions": {"uid-a": partition}}
    world = World(gpu, node({}, "gpu-node-1"), pod(node="gpu-node-1"))
    (ignored,) = world.ignored
    assert ignored.startswith("GPU gpu-0000000a: status.allocatedPartitions[uid-a].templateId is '3g.20gb', which")
    assert_unknown_slice(world.tag, "a100")


@pytest.mark.parametrize("amount", ["-2", "500m", "1000000000"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-2g.12gb"])
def test_impossible_number_of_devices_is_an_unknown_number_and_not_a_cpu(amount, resource):
    written = pod(resource)
    written["spec"]["containers"][0]["resources"]["limits"][resource] = amount
    world = World(node(A30), written)
    (ignored,) = world.ignored
    assert ignored.startswith(f"Pod llm/vllm-a: spec.containers[0].resources.limits[{resource}] is ")
    assert (world.tag.kind, world.tag.model, world.tag.count) == ("gpu", "a30", 0)
    assert world.tag.memory_bytes == (24 if resource == "nvidia.com/gpu" else 12) * GIB
    assert world.tag.total_memory_bytes is None


def test_tf_share_in_annotations_that_no_pod_can_have(documents):
    texts = {"gpu-ids": "gpu-0000000a", "vram-limit": "-4Gi", "vram-request": "40Gi", "tflops-limit": "many"}
    written = pod(node="gpu-node-1", annotations={f"tensor-fusion.ai/{key}": text for key, text in texts.items()})
    gpu = copy.deepcopy(documents("tensor-fusion")[0])
    gpu["status"]["runningApps"] = []
    world = World(gpu, node({}, "gpu-node-1"), written)
    remedy = "write a quantity above 0, such as 20Gi or 50"
    assert world.ignored == [
        f"Pod llm/vllm-a: metadata.annotations[tensor-fusion.ai/vram-limit] is '-4Gi': {remedy}",
        f"Pod llm/vllm-a: metadata.annotations[tensor-fusion.ai/tflops-limit] is 'many': {remedy}",
    ]
    assert (world.tag.partition.memory_fraction, world.tag.partition.compute_fraction) == (0.5, 1.0)


def test_names_that_occur_twice_are_said_with_both_places(documents):
    gpu = documents("tensor-fusion")[0]
    other = {**gpu, "metadata": {"name": "other"}}
    classes = [objects.accelerator_class(name) for name in ("h100", "H100")]
    device = objects.device("gpu-0", {})
    slices = [objects.resource_slice("gpu.nvidia.com", device, name=name, node="p", count=2) for name in ("one", "two")]
    files = [decode([gpu, classes[0], slices[0], node(A30)], "a.yaml").file]
    files.append(decode([other, classes[1], slices[1], node(T4)], "b.yaml").file)
    inventory = Inventory.build(files)
    assert [sentence.partition(":")[0] for sentence in inventory.remarks] == [
        "Node n1 is in a.yaml and in b.yaml",
        "AcceleratorClasses h100 and H100 differ only in case",
        "device gpu.nvidia.com/p/gpu-0 of generation 1 is in ResourceSlice one and ResourceSlice two",
        "GPU gpu-0000000a and GPU other have the UUID GPU-0000000a",
    ]
    written = pod(annotations={"tensor-fusion.ai/gpu-ids": "GPU-0000000a"})
    assert World(gpu, other, node({}), written).tag.count == 1


def test_kind_of_a_known_group_that_has_no_effect_is_said_once():
    unused = manifest("ome.io/v1beta1", "NoSuchKind", "x")
    files = [decode([unused, unused], "a.yaml").file, decode([unused], "b.yaml").file]
    assert Inventory.build(files).remarks == (
        "objects of kind NoSuchKind (ome.io) have no effect: 2 in a.yaml, 1 in b.yaml",
    )


def test_doubts_stay_and_go_with_their_objects():
    first = World(node(A30), pod("nvidia.com/mig-3g.40gb")).inventory
    file = decode([node(A30), pod("nvidia.com/mig-3g.40gb")], "a.yaml").file
    assert Inventory.build([file], first).ignored == first.ignored
    again = Inventory.build([decode([node({}), pod("nvidia.com/mig-3g.40gb")], "a.yaml").file], first)
    assert again.ignored == ()  # the node is another one now, the pod is as it was


VALID = [slicer(), pod(), claim("3g.20gb"), claim("3g.20gb", name="other", uid="uid-b", start=4), node({})]
INVALID = [
    claim("huge", name="0"),
    claim("3g.40gb", name="1"),
    claim("3g.20gb", name="2", uid="uid-c", state="created"),
    claim("3g.20gb", name="z", uid="uid-d", start=0, size=8),
    pod("nvidia.com/mig-7g.80gb", name="vllm-e", uid="uid-e"),
    manifest("v1", "Pod", "no-spec", spec=7),
    manifest("ome.io/v1beta1", "InferenceNothing", "x"),
]


@given(st.sets(st.integers(0, len(VALID) - 1)), st.sets(st.integers(0, len(INVALID) - 1)), st.randoms())
def test_valid_objects_tag_as_without_the_invalid_ones(valid, invalid, random):
    kept = [VALID[index] for index in sorted(valid)]
    if VALID[2] not in kept:  # without a valid claim, an invalid one still has a GPU and a state
        invalid -= {0, 1}
    if VALID[0] not in kept:  # of an unknown GPU, any profile is possible
        invalid -= {1}
    documents = kept + [INVALID[index] for index in sorted(invalid)]
    random.shuffle(documents)
    tag, other = World(*documents).tag, World(*kept).tag
    assert tag.partition == other.partition
    for name in ("memory_bytes", "count", "model", "state"):
        assert getattr(tag, name) == getattr(other, name)
