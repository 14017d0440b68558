# SPDX-License-Identifier: Apache-2.0
"""Objects are used without values that cannot be true; files and clusters say which, with field, value and remedy."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import isfinite

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.kube.objects.base import Object, convert
from epp.kube.objects.core import read_pod
from epp.kube.objects.decode import decode_object, kinds_without_use
from epp.kube.objects.followed import ClusterObjects
from epp.kube.objects.last_good import FileObjects
from epp.kube.objects.limits import sanitized
from epp.kube.objects.ome import read_accelerator_class
from epp.kube.objects.tensor_fusion import Gpu

OME, TF, DRA = "ome.io/v1beta1", "tensor-fusion.ai/v1", "resource.k8s.io/v1"
SLICER = "inference.redhat.com/v1alpha1"


def document(api: str, kind: str, **parts: object) -> dict:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "namespace": "llm"}, **parts}


def accelerator_class(**spec: object) -> dict:
    return document(OME, "AcceleratorClass", spec=spec)


def gpu(**status: object) -> dict:
    return document(TF, "GPU", status=status)


def pod(*containers: dict) -> dict:
    return document("v1", "Pod", spec={"containers": list(containers)})


def container(name: str = "c", **limits: object) -> dict:
    return {"name": name, "resources": {"limits": {"nvidia.com/gpu": limits.get("gpus", "1")}}}


def claim(profile: str = "3g.20gb", **placement: int) -> dict:
    return document(SLICER, "AllocationClaim", spec={"profile": profile, "migPlacement": placement})


IMPOSSIBLE = {
    "negative price": (
        accelerator_class(cost={"perHour": "-3", "spotPerHour": "1"}),
        "spec.cost.perHour is -3: write US dollars, 0 or more",
    ),
    "absurd price": (
        accelerator_class(cost={"perHour": 10**12}),
        "spec.cost.perHour is 1e+12, more than 10000: write US dollars, 0 or more",
    ),
    "spot far above the usual price": (
        accelerator_class(cost={"perHour": "2", "spotPerHour": "21"}),
        "spec.cost.spotPerHour is 21, more than 10 times perHour, 2: write both in US dollars an hour",
    ),
    "memory of petabytes": (
        accelerator_class(capabilities={"memoryGB": "80Pi"}),
        "spec.capabilities.memoryGB is 80Pi: write the size of one device, such as 80Gi",
    ),
    "TFLOPS that are no number": (
        accelerator_class(capabilities={"performance": {"fp32Tflops": float("nan")}}),
        "spec.capabilities.performance.fp32Tflops is nan: write the TFLOPS of one device, above 0",
    ),
    "negative devices": (
        pod(container(gpus="-2")),
        "spec.containers[0].resources.limits[nvidia.com/gpu] is -2: write a whole number of devices, 0 or more",
    ),
    "a part of a device": (
        pod(container(gpus="500m")),
        "spec.containers[0].resources.limits[nvidia.com/gpu] is 0.5: write a whole number of devices, 0 or more",
    ),
    "two containers of one name": (
        pod(container("vllm", gpus="1"), container("proxy"), container("vllm", gpus="2")),
        "spec.containers[0] has the name 'vllm' of spec.containers[2]: give each container its own name",
    ),
    "negative devices of a node": (
        document("v1", "Node", status={"allocatable": {"nvidia.com/gpu": "-8", "cpu": "500m"}}),
        "status.allocatable[nvidia.com/gpu] is -8: write a whole number of devices, 0 or more",
    ),
    "placement before the first slot": (
        claim(size=4, start=-1),
        "spec.migPlacement.start is -1: write the first memory slot, 0 to 7",
    ),
    "placement without slots": (
        claim(size=0, start=0),
        "spec.migPlacement.size is 0: write the number of memory slots, 1 to 8",
    ),
    "more available than there is": (
        gpu(capacity={"vram": "80Gi"}, available={"vram": "90Gi"}),
        "status.available.vram is 90Gi, more than the capacity, 80Gi: write the available part of it",
    ),
    "TFLOPS of a data centre": (
        gpu(capacity={"tflops": "312M"}),
        "status.capacity.tflops is 312000000, more than any GPU has: write the amount of one GPU",
    ),
    "tier that there is not": (
        gpu(topology={"peers": [{"peerGPUUUID": "GPU-b", "tier": 7}]}),
        "status.topology.peers[0].tier is 7, more than 3: write 0, 1, 2 or 3",
    ),
    "alert beyond all of a quota": (
        document(TF, "GPUResourceQuota", spec={"total": {"alertThresholdPercent": 900}}),
        "spec.total.alertThresholdPercent is 900, more than 100: write 0 to 100 in place of the default, 95",
    ),
    "negative capacity of a device": (
        document(
            DRA,
            "ResourceSlice",
            spec={
                "driver": "gpu.nvidia.com",
                "pool": {"name": "p"},
                "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "-1Gi"}}}],
            },
        ),
        "spec.devices[0].capacity[gpu.nvidia.com/memory] is -1Gi: write the size of one device, such as 80Gi",
    ),
}  # fmt: skip


def decoded(of: dict) -> Object:
    found = decode_object(of)
    assert found is not None
    return found


@pytest.mark.parametrize(("of", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_files_and_clusters_say_what_they_leave_out_and_keep_the_rest_of_the_object(of, reason):
    (held,) = FileObjects(file="a.yaml").take([of]).held
    assert held.issues == (reason,)
    assert not held.invalid
    assert held.metadata == decoded(of).metadata
    assert sanitized(held)[1] == ()  # what is kept is possible
    kind = ObjectKind(of["apiVersion"].rpartition("/")[0], of["kind"])
    objects = ClusterObjects().take([ObjectsOfKind(kind, {"llm/x": decoded(of)}, frozenset({"llm/x"}))])
    assert [each.issues for each in objects.as_file().held] == [(reason,)]


def test_values_at_their_limits_are_kept():
    for of in (
        accelerator_class(cost={"perHour": 0, "spotPerHour": 0}, capabilities={"performance": {"fp16Tflops": 0}}),
        accelerator_class(cost={"perHour": "2", "spotPerHour": "20"}, capabilities={"memoryGB": "288Gi"}),
        document("v1", "Node", status={"allocatable": {"cpu": "7910m", "gpu.intel.com/memory.max": "68719476736"}}),
        gpu(capacity={"vram": 0, "tflops": 0}, available={"vram": 0, "tflops": 0}),
    ):
        assert decoded(of).issues == ()


def test_required_value_takes_its_entry_along():
    costs = {"A100": '{"device": "A100", "cost": "-40"}', "T4": '{"device": "T4", "cost": "10"}'}
    of = document("v1", "ConfigMap", data=costs)
    of["metadata"]["name"] = "accelerator-unit-costs"
    found = decoded(of)
    assert list(found.costs) == ["T4"]
    assert found.issues == ("data.A100.cost is -40: write a price of 0 or more",)


def test_kinds_of_known_groups_without_decoder_are_counted():
    documents = [
        document(OME, "NoSuchKind"),
        {"kind": "List", "apiVersion": "v1", "items": [document(OME, "NoSuchKind"), document(TF, "GPU")]},
        document("example.com/v1", "Widget"),
        document("apps/v1", "Deployment"),
    ]
    assert kinds_without_use(documents) == {("ome.io", "NoSuchKind"): 2}


QUANTITIES = st.one_of(
    st.integers(-(10**20), 10**20),
    st.sampled_from(["-3", "80", "80Gi", "1e12", "-1e99", "0", "0.5", "500m", "9E", "1Pi"]),
)
FIGURES = st.one_of(st.floats(), st.integers(-(10**12), 10**12))


def some(of: st.SearchStrategy, *names: str) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, of))


READERS = {"AcceleratorClass": read_accelerator_class, "GPU": partial(convert, cls=Gpu), "Pod": read_pod}
"""What reads the documents of the strategies below, as they are written."""
CLASSES = st.fixed_dictionaries(
    {},
    optional={
        "cost": some(QUANTITIES, "perHour", "spotPerHour", "perMillionTokens"),
        "capabilities": st.fixed_dictionaries(
            {},
            optional={
                "memoryGB": QUANTITIES,
                "memoryBandwidthGBps": QUANTITIES,
                "performance": some(FIGURES, "fp32Tflops", "fp16Tflops", "fp8Tflops", "int8Tops", "int4Tops"),
            },
        ),
    },
).map(lambda spec: accelerator_class(**spec))
AMOUNTS = some(QUANTITIES, "tflops", "vram", "compute")
GPUS = st.fixed_dictionaries({"capacity": AMOUNTS, "available": AMOUNTS}).map(lambda status: gpu(**status))
PODS = st.lists(st.tuples(st.sampled_from("ab"), QUANTITIES), max_size=4).map(
    lambda containers: pod(*(container(name, gpus=amount) for name, amount in containers))
)


@given(st.one_of(CLASSES, GPUS, PODS))
def test_no_vetted_object_has_a_negative_or_infinite_number_and_vetting_it_again_changes_nothing(of):
    written = READERS[of["kind"]](of)
    found, issues = sanitized(written)
    assert all(isfinite(number) and number >= 0 for number in numbers_in(found))
    assert sanitized(found) == (found, ())
    assert bool(issues) == (found != written)


def numbers_in(value: object) -> Iterator[float | Fraction]:
    """Yield the numbers anywhere in a value."""
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, (int, float, Fraction)) and not isinstance(value, bool):
        yield value
