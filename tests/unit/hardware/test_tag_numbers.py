# SPDX-License-Identifier: Apache-2.0
"""Whatever numbers the objects have, those of a tag are possible."""

from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import PRECISIONS, AcceleratorTag
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.node_devices import ClassTotals, fit_report
from epp.hardware.tag_builder import TagBuilder
from tests.support.decoded_objects import decode

NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["-3", "0", "1", "2", "80", "80Gi", "-80Gi", "1e12", "1e99", "-1e99", "0.5", "500m", "9E", "1n"]),
)
PROFILES = st.sampled_from(["3g.20gb", "3g.40gb", "1g.6gb", "huge", "", "7g.80gb"])
PRODUCTS = st.sampled_from(
    ["NVIDIA-A30", "Tesla-T4", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3-MIG-3g.20gb", "?"]
)
RESOURCES = st.sampled_from(
    ["nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "mig.das.com/1g.6gb", "amd.com/gpu", "x.com/y"]
)


def some(**of: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional=of)


def document(api: str, kind: str, name: str, **parts: object) -> dict:
    metadata = {"name": name, **parts.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **parts}


AMOUNTS = some(tflops=NUMBERS, vram=NUMBERS, compute=NUMBERS)
LABELS = st.fixed_dictionaries(
    {"nvidia.com/gpu.product": PRODUCTS},
    optional={
        f"nvidia.com/gpu.{name}": NUMBERS for name in ("memory", "count", "replicas", "compute.major", "compute.minor")
    },
)
USER = {"name": "a", "namespace": "llm", "uid": "u"}
WORLDS = st.tuples(
    st.builds(
        lambda labels, amounts: document(
            "v1", "Node", "n", metadata={"labels": labels}, status={"allocatable": amounts}
        ),
        LABELS,
        st.dictionaries(RESOURCES, NUMBERS),
    ),
    st.builds(
        lambda limits, annotations: document(
            "v1",
            "Pod",
            "a",
            metadata={"namespace": "llm", "uid": "u", "annotations": annotations},
            spec={"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": limits}}]},
        ),
        st.dictionaries(RESOURCES, NUMBERS, max_size=2),
        st.dictionaries(st.sampled_from(["tensor-fusion.ai/vram-limit", "tensor-fusion.ai/tflops-limit"]), NUMBERS),
    ),
    st.builds(
        lambda cost, capabilities, performance: document(
            "ome.io/v1beta1",
            "AcceleratorClass",
            "c",
            spec={
                "resources": [{"name": "nvidia.com/gpu"}],
                "cost": cost,
                "capabilities": {**capabilities, "performance": performance},
            },
        ),
        some(perHour=NUMBERS, spotPerHour=NUMBERS, perMillionTokens=NUMBERS),
        some(memoryGB=NUMBERS, memoryBandwidthGBps=NUMBERS),
        some(fp16Tflops=st.floats(), fp32Tflops=st.integers(-5, 10**9)),
    ),
    st.builds(
        lambda capacity, available, limits, template, isolation: document(
            "tensor-fusion.ai/v1",
            "GPU",
            "g",
            status={
                "phase": "Running",
                "gpuModel": "A100_SXM",
                "uuid": "g",
                "isolationMode": isolation,
                "nodeSelector": {"kubernetes.io/hostname": "n"},
                "capacity": capacity,
                "available": available,
                "runningApps": [{"pods": [{**USER, "limits": limits}]}],
                "allocatedPartitions": {"u": {"templateId": template, "podUid": "u"}} if template else {},
            },
        ),
        AMOUNTS,
        AMOUNTS,
        AMOUNTS,
        PROFILES,
        st.sampled_from(["soft", "shared"]),
    ),
    st.builds(
        lambda cost, vram: document(
            "tensor-fusion.ai/v1", "GPUNode", "n", spec={"costPerHour": cost}, status={"totalVRAM": vram}
        ),
        NUMBERS,
        NUMBERS,
    ),
    st.builds(
        lambda profile, placement: document(
            "inference.redhat.com/v1alpha1",
            "AllocationClaim",
            "x",
            spec={"profile": profile, "podRef": USER, "gpuUUID": "G", "nodename": "n", "migPlacement": placement},
            status={"state": "inUse"},
        ),
        PROFILES,
        st.fixed_dictionaries({"size": st.integers(-9, 99), "start": st.integers(-9, 99)}),
    ),
    st.builds(
        lambda memory: document(
            "inference.redhat.com/v1alpha1",
            "NodeAccelerator",
            "n",
            status={"nodeResources": {"nodeGpus": [{"gpuUuid": "G", "gpuName": "NVIDIA A100", "gpuMemory": memory}]}},
        ),
        NUMBERS,
    ),
    st.builds(
        lambda memory, profile, consumed: {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                document(
                    "resource.k8s.io/v1",
                    "ResourceSlice",
                    "s",
                    spec={
                        "driver": "gpu.nvidia.com",
                        "nodeName": "n",
                        "pool": {"name": "n"},
                        "devices": [
                            {
                                "name": "d",
                                "attributes": {
                                    "type": {"string": "mig" if profile else "gpu"},
                                    "profile": {"string": profile},
                                    "productName": {"string": "NVIDIA A30"},
                                },
                                "capacity": {"memory": {"value": memory}},
                            }
                        ],
                    },
                ),
                document(
                    "resource.k8s.io/v1",
                    "ResourceClaim",
                    "rc",
                    metadata={"namespace": "llm"},
                    status={
                        "allocation": {
                            "devices": {
                                "results": [
                                    {
                                        "driver": "gpu.nvidia.com",
                                        "pool": "n",
                                        "device": "d",
                                        "consumedCapacity": {"memory": consumed} if consumed != "0" else {},
                                    }
                                ]
                            }
                        },
                        "reservedFor": [{"resource": "pods", "name": "a", "uid": "u"}],
                    },
                ),
            ],
        },
        NUMBERS,
        PROFILES,
        NUMBERS,
    ),
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
        tag.bandwidth_gbps or 0,
        *(tag.tflops(precision) for precision in PRECISIONS),
        *(price or 0 for price in (cost.per_hour, cost.spot_per_hour, cost.per_million_tokens)),
        *(tag.cost_per_hour("always", basis) or 0 for basis in ("memory", "compute")),
        *tag.compute_capability,
        *(value for name, value in tag.attributes.items() if name.endswith("Fraction") and value != -1),
    ]
