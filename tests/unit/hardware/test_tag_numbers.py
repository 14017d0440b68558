# SPDX-License-Identifier: Apache-2.0
"""Whatever numbers the objects have, those of a tag are possible."""

from functools import partial
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import PRECISIONS, AcceleratorTag
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.node_devices import ClassTotals, fit_report
from epp.hardware.tag_builder import TagBuilder
from tests.support import hardware_objects as objects
from tests.support.decoded_objects import decode
from tests.support.kube.manifests import manifest

NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["-3", "0", "1", "2", "80", "80Gi", "-80Gi", "1e12", "1e99", "-1e99", "0.5", "500m", "9E", "1n"]),
)
PROFILES = st.sampled_from(
    ["3g.20gb", "3g.40gb", "1g.5gb", "1g.6gb", "huge", "", "7g.80gb", "9g.999gb", "4c.1g.5gb", "-1g.5gb"]
)
PRODUCTS = st.sampled_from(
    ["NVIDIA-A30", "Tesla-T4", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3-MIG-3g.20gb", "?"]
)
RESOURCES = st.sampled_from(
    ["nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "mig.das.com/1g.6gb", "amd.com/gpu", "x.com/y"]
)


def some(**of: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional=of)


AMOUNTS = some(tflops=NUMBERS, vram=NUMBERS, compute=NUMBERS)
FIGURES = ("memory", "count", "replicas", "compute.major", "compute.minor")
LABELS = st.fixed_dictionaries(
    {"nvidia.com/gpu.product": PRODUCTS}, optional={f"nvidia.com/gpu.{name}": NUMBERS for name in FIGURES}
)
USER = objects.user("a", "u")


def pod(limits: dict, annotations: dict) -> dict:
    return objects.pod(limits, name="a", uid="u", node="n", metadata={"annotations": annotations})


def accelerator_class(cost: dict, capabilities: dict, performance: dict) -> dict:
    resources = [{"name": "nvidia.com/gpu"}]
    capabilities = {**capabilities, "performance": performance}
    return objects.accelerator_class("c", resources=resources, cost=cost, capabilities=capabilities)


def gpu(amounts: tuple[dict, dict, dict], template: str, isolation: str) -> dict:
    capacity, available, limits = amounts
    status = {
        "phase": "Running", "gpuModel": "A100_SXM", "uuid": "g", "isolationMode": isolation,
        "nodeSelector": {"kubernetes.io/hostname": "n"}, "capacity": capacity, "available": available,
        "runningApps": [{"pods": [{**USER, "limits": limits}]}],
        "allocatedPartitions": {"u": {"templateId": template, "podUid": "u"}} if template else {},
    }  # fmt: skip
    return manifest(objects.TENSOR_FUSION, "GPU", "g", status=status)


def gpu_node(cost: str, vram: str) -> dict:
    return manifest(objects.TENSOR_FUSION, "GPUNode", "n", spec={"costPerHour": cost}, status={"totalVRAM": vram})


def claimed_device(memory: str, profile: str, consumed: str) -> dict:
    kind = "mig" if profile else "gpu"
    device = objects.device("d", {"memory": memory}, type=kind, profile=profile, productName="NVIDIA A30")
    capacity = {"memory": consumed} if consumed != "0" else {}
    claim = objects.resource_claim("gpu.nvidia.com", "d", users=[("a", "u")], consumedCapacity=capacity)
    return {"apiVersion": "v1", "kind": "List", "items": [objects.resource_slice("gpu.nvidia.com", device), claim]}


SLOTS = st.integers(-9, 99)
CLAIM = partial(objects.allocation_claim, pod="a", uid="u", node="n", gpu="G")
ANNOTATIONS = st.sampled_from(["tensor-fusion.ai/vram-limit", "tensor-fusion.ai/tflops-limit"])
WORLDS = st.tuples(
    st.builds(
        lambda labels, amounts: objects.node(labels, name="n", allocatable=amounts),
        LABELS,
        st.dictionaries(RESOURCES, NUMBERS),
    ),
    st.builds(pod, st.dictionaries(RESOURCES, NUMBERS, max_size=2), st.dictionaries(ANNOTATIONS, NUMBERS)),
    st.builds(
        accelerator_class,
        some(perHour=NUMBERS, spotPerHour=NUMBERS, perMillionTokens=NUMBERS),
        some(memoryGB=NUMBERS, memoryBandwidthGBps=NUMBERS),
        some(fp16Tflops=st.floats(), fp32Tflops=st.integers(-5, 10**9)),
    ),
    st.builds(gpu, st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), PROFILES, st.sampled_from(["soft", "shared"])),
    st.builds(gpu_node, NUMBERS, NUMBERS),
    st.builds(CLAIM, PROFILES, size=SLOTS, start=SLOTS),
    st.builds(partial(objects.node_accelerator, "n", product="NVIDIA A100", uuids=["G"]), memory=NUMBERS),
    st.builds(claimed_device, NUMBERS, PROFILES, NUMBERS),
)


@given(WORLDS, st.sets(st.integers(2, 7)))
def test_no_tag_has_an_impossible_number(world, left_out):
    kept = [each for index, each in enumerate(world) if index not in left_out]
    inventory = Inventory.build([decode(kept).file])
    tag = TagBuilder(inventory).build(Endpoint("a", "10.0.0.1", 8000, "llm", node="n", uid="u")).tag
    for number in numbers_of(tag):
        assert isfinite(number)
        assert number >= 0
    part = tag.partition
    assert 0 < part.memory_fraction <= 1
    assert 0 < part.compute_fraction <= 1
    assert tag.count <= 65_536
    assert (tag.memory_bytes or 0) <= 2**46
    assert (tag.cost_per_hour("always") or 0) <= 2 * 10**6 * max(tag.count, 1)
    for total in ClassTotals().of(inventory).values():
        assert 0 <= total.available <= total.total
    for gpus in fit_report(inventory).values():
        assert all(count >= 0 for more in gpus.values() for count in more.values())


def numbers_of(tag: AcceleratorTag) -> list[float]:
    cost = tag.cost
    return [
        tag.count,
        tag.memory_bytes or 0,
        tag.partition.start or 0,
        tag.bandwidth_gbps or 0,
        *(tag.tflops(precision) for precision in PRECISIONS),
        *(price or 0 for price in (cost.per_hour, cost.spot_per_hour, cost.per_million_tokens)),
        *(tag.cost_per_hour("always", basis) or 0 for basis in ("memory", "compute")),
        *tag.compute_capability,
        *(value for name, value in tag.attributes.items() if name.endswith("Fraction") and value != -1),
    ]
