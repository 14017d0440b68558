# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.accelerators.fit import NO_ACCELERATOR, rejection
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Partition, Performance, Sharing
from epp.framework.snapshot import NODE_LABELS
from epp.framework.testing import candidates
from epp.plugins.selection_filters import AcceleratorFilter
from tests.support.plugins import built

GIB = 2**30
H100 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    vendor="nvidia",
    family="hopper",
    model="h100",
    classes=("nvidia-h100-80gb",),
    count=1,
    memory_bytes=81559 * 2**20,  # 79.6 GiB
    compute_capability=(9, 0),
    features=frozenset({"cuda", "tensor-cores", "nvlink", "fp8"}),
    cost=Cost(per_hour=4.0, spot_per_hour=2.0, per_million_tokens=100.0),
    resources=frozenset({"nvidia.com/gpu"}),
    attributes={"device/driver": "gpu.nvidia.com", "gpu.nvidia.com/productName": "NVIDIA H100 80GB HBM3"},
)
A100 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    vendor="nvidia",
    family="ampere",
    model="a100",
    classes=("nvidia-a100-40gb",),
    count=4,
    memory_bytes=40 * GIB,
    compute_capability=(8, 0),
    features=frozenset({"cuda", "tensor-cores", "nvlink"}),
    cost=Cost(per_hour=2.0, spot_per_hour=1.0, per_million_tokens=50.0),
    resources=frozenset({"nvidia.com/gpu"}),
)
T4 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    vendor="nvidia",
    family="turing",
    model="t4",
    count=1,
    memory_bytes=16 * GIB,
    compute_capability=(7, 5),
    features=frozenset({"cuda", "tensor-cores"}),
    cost=Cost(per_hour=1.0, spot_per_hour=0.0, per_million_tokens=20.0),
)
MI300X = AcceleratorTag(
    kind=AcceleratorKind.GPU, vendor="amd", family="cdna3", model="mi300x", count=1, memory_bytes=192 * GIB
)
TPU = AcceleratorTag(kind=AcceleratorKind.TPU, vendor="google", family="tpu-v5e", model="v5e", count=8)
CPU = AcceleratorTag(kind=AcceleratorKind.CPU)
UNKNOWN = AcceleratorTag()
FLEET = {"h100": H100, "a100": A100, "t4": T4, "mi300x": MI300X, "tpu": TPU, "cpu": CPU, "unknown": UNKNOWN}


def build(**parameters):
    return built(AcceleratorFilter, parameters)


def kept(request=None, /, profile="", **parameters):
    pool = candidates(accelerators=list(FLEET.values()))
    mask = build(**parameters).filter(request or Request("r"), pool.within(profile))
    return [name for name, stays in zip(FLEET, mask, strict=True) if stays]


def reason(tag, **parameters):
    return build(**parameters).rejection(Request("r"), tag)


def test_without_parameters_everything_is_kept():
    assert kept() == list(FLEET)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"minMemory": "40Gi"}, ["h100", "a100", "mi300x"]),
        ({"minMemory": "16Gi", "maxMemory": "20Gi"}, ["t4"]),
        ({"minTotalMemory": "100Gi"}, ["a100", "mi300x"]),  # 4 * 40, 1 * 192
        ({"minArchitectureVersion": "8.0"}, ["h100", "a100"]),
        ({"requiredFeatures": ["NVLink"], "minMemory": 16}, ["h100", "a100"]),
        ({"architectureFamilies": ["Ampere", "nvidia-hopper"]}, ["h100", "a100"]),
        ({"architectureFamilies": ["amd-hopper"]}, []),
        ({"excludedClasses": ["t4", "nvidia-a100-40gb"]}, ["h100", "mi300x", "tpu"]),
        ({"acceleratorClasses": ["NVIDIA-H100-80GB"]}, ["h100"]),
        ({"acceleratorClasses": ["t4"]}, ["t4"]),  # of no class: by its model
        ({"acceleratorClasses": ["h100"]}, []),  # of a class: by that
        ({"vendors": ["AMD", "google"]}, ["mi300x", "tpu"]),
        ({"models": ["t4"]}, ["t4"]),
        ({"resources": ["nvidia.com/gpu"]}, ["h100", "a100"]),
        ({"excludedClasses": ["t4"], "architectureFamilies": ["ampere"]}, ["a100"]),
    ],
)
def test_ome_3_each_bound_keeps_what_is_within_it(parameters, expected):
    assert kept(**parameters) == expected


def test_ome_3_defect_1_version_10_is_not_below_version_9():
    blackwell = AcceleratorTag(kind=AcceleratorKind.GPU, compute_capability=(10, 0))
    assert reason(blackwell, minArchitectureVersion="9.0") is None
    assert reason(H100, minArchitectureVersion=10.0) == "compute capability 9.0 is below 10.0"
    hopper = AcceleratorTag(kind=AcceleratorKind.GPU, compute_capability=(9,))
    assert reason(hopper, minArchitectureVersion="9.0") is None


def test_ome_3_defect_10_a_nominal_size_is_met_by_what_a_device_reports():
    assert reason(H100, minMemory="80Gi") is None  # 79.6 >= 80 * 0.97 = 77.6
    assert reason(H100, minMemory="85Gi") == "memory 79.65 GiB is below 85 GiB"
    assert reason(H100, maxMemory="79Gi") is None  # 79.6 <= 79 * 1.03 = 81.4


def test_ome_3_what_is_not_known_fails_unless_told_otherwise_bound_by_bound():
    assert reason(TPU, minMemory=16) == "unknown whether within minMemory"
    assert reason(TPU, minMemory=16, onUnknown="Pass") is None
    assert kept(minMemory="100Gi", onUnknown="Pass") == ["mi300x", "tpu", "unknown"]
    rule = {"minMemory": "Pass"}
    assert reason(TPU, minMemory=16, onUnknown=rule) is None
    assert reason(TPU, minMemory=16, requiredFeatures=["fp8"], onUnknown=rule) == (
        "unknown whether within requiredFeatures"
    )


def test_ome_3_each_rejected_endpoint_has_a_reason():
    assert reason(T4, acceleratorClasses=["a", "b"]) == "class t4 is not among a, b"
    assert reason(T4, excludedClasses=["T4"]) == "class t4 is excluded"
    assert reason(T4, architectureFamilies=["hopper"]) == "family turing is not among hopper"
    assert reason(T4, requiredFeatures=["fp8", "nvlink", "cuda"]) == "lacks fp8, nvlink"
    assert reason(A100, minTotalMemory="320Gi") == "total memory 160 GiB is below 320 GiB"
    assert reason(A100, resources=["nvidia.com/mig-3g.20gb"]) == (
        "resource nvidia.com/gpu is not among nvidia.com/mig-3g.20gb"
    )


def test_ome_7_a_cap_is_on_the_whole_endpoint_unless_told_otherwise():
    # 4 * $2 = $8
    assert reason(A100, maxCostPerHour=7) == "$8 an hour is more than $7"
    assert reason(A100, maxCostPerHour={"value": 7, "basis": "endpoint"}) == "$8 an hour is more than $7"
    assert reason(A100, maxCostPerHour={"value": 7, "basis": "device"}) is None
    assert reason(A100, maxCostPerHour=8) is None


def test_ome_7_a_slice_costs_its_share():
    # 3g.20gb has half the memory of a $2 A100-40: $1
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", memory_fraction=0.5)
    tag = AcceleratorTag(kind=AcceleratorKind.GPU, count=1, partition=part, cost=Cost(per_hour=2.0))
    assert reason(tag, maxCostPerHour=1) is None
    assert reason(tag, maxCostPerHour=0.99) == "$1 an hour is more than $0.99"


def test_ome_7_the_spot_price_counts_on_spot_nodes_only():
    on_demand, spot = (
        msgspec.structs.replace(H100, cost=Cost(per_hour=4.0, spot_per_hour=2.0, spot=is_spot))
        for is_spot in (False, True)
    )
    assert reason(on_demand, maxCostPerHour=3) == "$4 an hour is more than $3"
    assert reason(spot, maxCostPerHour=3) is None
    assert reason(on_demand, maxCostPerHour=3, spotPreference="always") is None
    assert reason(spot, maxCostPerHour=3, spotPreference="never") == "$4 an hour is more than $3"


def test_ome_7_caps_on_tokens_and_of_what_has_no_price():
    assert kept(maxCostPerMillionTokens=50) == ["a100", "t4"]
    assert reason(MI300X, maxCostPerHour=100) == "unknown whether within maxCostPerHour"


def test_ome_8_a_cpu_is_dropped_wherever_anything_is_asked_of_an_accelerator():
    for bound in ({"minMemory": 1}, {"vendors": ["nvidia"]}, {"excludedClasses": ["t4"]}, {"maxCostPerHour": 0}):
        assert reason(CPU, onUnknown="Pass", **bound) == NO_ACCELERATOR == "no-accelerator"
    assert reason(CPU, onUnknown="Pass", cel='device.driver == ""') == NO_ACCELERATOR
    assert reason(CPU, kinds=["cpu", "gpu"], minMemory=1, onUnknown="Pass") == NO_ACCELERATOR
    assert kept(kinds=["cpu"]) == ["cpu"]  # they are asked for


def test_ome_11_defect_3_an_unknown_class_does_not_disable_the_others():
    assert kept(acceleratorClasses=["nvidia-h100-80gb", "no-such-class", "nvidia-a100-40gb"]) == ["h100", "a100"]


def test_tf_4_models_and_vendors_allow_and_deny():
    assert kept(models=["t4", "mi300x"]) == ["t4", "mi300x"]
    assert kept(vendors=["google"]) == ["tpu"]
    assert reason(T4, models=["h100"]) == "model t4 is not among h100"
    assert reason(T4, vendors=["amd"]) == "vendor nvidia is not among amd"


def test_ome_15_endpoints_that_are_dropped_are_counted_by_the_first_bound_that_each_violates():
    unknown = AcceleratorTag(kind=AcceleratorKind.GPU, vendor="nvidia")
    pool = candidates(accelerators=[H100, A100, CPU, unknown])
    plugin = build(minMemory="60Gi", cel='device.driver == "gpu.nvidia.com"')
    request = Request("r")
    plugin.rehearse(request, pool)  # made-up endpoints do not count
    assert plugin.samples == []
    plugin.filter(request, pool)
    plugin.filter(request, pool)
    assert plugin.mismatches == {"minMemory": 2, "no-accelerator": 2, "minMemory-unknown": 2}
    request.put(ACCELERATOR_SELECTION, Selections(Selection(models=("t4",))))
    plugin.filter(request, pool)  # of those within its own bounds, the H100, none is a T4
    counts = {sample.labels[0]: sample.value for sample in plugin.samples}
    assert counts == {"minMemory": 3, "no-accelerator": 3, "minMemory-unknown": 3, "models": 1}


def test_ome_15_endpoints_that_an_expression_drops_are_counted():
    plugin = build(cel='device.driver == "other"')
    plugin.filter(Request("r"), candidates(accelerators=[H100, H100]))
    assert [(sample.labels, sample.value) for sample in plugin.samples] == [(("cel",), 2)]


FAST = msgspec.structs.replace(H100, bandwidth_gbps=3350.0, performance=Performance(fp16=989, int8=1979))
SLOW = msgspec.structs.replace(T4, bandwidth_gbps=320.0, performance=Performance(fp16=65))
HALF = msgspec.structs.replace(FAST, partition=Partition(kind=Sharing.MPS, memory_fraction=0.5, compute_fraction=0.5))


def test_ome_17_capabilities_are_those_of_one_device_or_slice():
    assert reason(SLOW, minMemoryBandwidthGBps=1500) == "memory bandwidth 320 is below 1500"
    assert reason(T4, minMemoryBandwidthGBps=1500) == "unknown whether within minMemoryBandwidthGBps"
    assert reason(SLOW, minPerformance={"fp16": 300}) == "TFLOPS in fp16 65 is below 300"
    assert reason(FAST, minMemoryBandwidthGBps=3400, minPerformance={"fp16": 1000}) is None  # within 3 %
    assert reason(HALF, minMemoryBandwidthGBps=1700, minPerformance={"fp16": 500}) is None
    assert reason(HALF, minPerformance={"fp16": 520}) == "TFLOPS in fp16 494.5 is below 520"
    assert reason(SLOW, minPerformance={"fp8": 1}, onUnknown={"minPerformance": "Pass"}) is None


def test_ome_17_node_selector_keeps_the_nodes_with_all_labels():
    zones = [{"zone": "a", "pool": "x"}, {"zone": "a"}, {"zone": "b"}, {}]
    pool = candidates(accelerators=[H100] * 4, records={NODE_LABELS: zones})
    plugin = build(nodeSelector={"zone": "a"})
    request = Request("r")
    assert plugin.filter(request, pool).tolist() == [True, True, False, False]
    assert dict(plugin.mismatches) == {"nodeSelector": 2}
    request.put(ACCELERATOR_SELECTION, Selections(Selection(node_selector=frozenset({("pool", "x")}))))
    assert plugin.filter(request, pool).tolist() == [True, False, False, False]
    assert plugin.drop_reasons(request, pool) == ["its node has no label pool=x"] * 3
    unknown_passes = build(nodeSelector={"zone": "a"}, onUnknown={"nodeSelector": "Pass"})
    assert unknown_passes.filter(Request("r"), pool).tolist() == [True, True, False, True]


def test_gie_13_kinds_and_vendors_select():
    assert kept(kinds=["tpu"]) == ["tpu"]
    assert kept(kinds=["gpu"], vendors=["amd"]) == ["mi300x"]


def test_ome_5_the_selection_of_the_request_holds_too_for_the_running_profile():
    request = Request("r")
    request.put(
        ACCELERATOR_SELECTION, Selections(Selection(models=("t4",)), {"prefill": Selection(models=("h100", "mi300x"))})
    )
    assert kept(request, profile="prefill") == ["h100", "mi300x"]
    assert kept(request, profile="prefill", vendors=["amd"]) == ["mi300x"]
    assert kept(request, profile="decode") == ["t4"]
    assert build().rejection(request, H100, "decode") == "model h100 is not among t4"


def test_dra_3_a_cel_expression_selects_devices_and_on_unknown_goes_for_it_too():
    source = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].productName.contains("H100")'
    assert kept(cel=source) == ["h100"]
    assert reason(A100, cel=source) == "cel does not select it"
    source = 'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"'
    assert kept(cel=source) == ["h100"]
    assert kept(cel=source, onUnknown={"cel": "Pass"}) == [name for name in FLEET if name != "cpu"]


def test_dra_3_an_expression_is_evaluated_once_for_each_tag_not_for_each_request(monkeypatch):
    plugin = build(cel='device.driver == "gpu.nvidia.com"')
    pool = candidates(accelerators=[H100, A100])
    seen = []
    holds = DeviceExpression.holds
    monkeypatch.setattr(DeviceExpression, "holds", lambda self, tag: seen.append(tag) or holds(self, tag))
    for number in range(3):
        assert plugin.filter(Request(str(number)), pool).tolist() == [True, False]
    assert seen == [H100, A100]


def test_preferences_are_warned_of_since_a_filter_has_none():
    assert list(build(policy="BestFit", minComputePerformanceTFLOPS=300).warnings) == [
        "policy has no effect on a filter: set it on accelerator-selection-producer",
        "minComputePerformanceTFLOPS has no effect on a filter: set it on accelerator-selection-producer",
    ]
    assert not build(minMemory=16).warnings


NAMES = st.sampled_from(["h100", "a100", "t4"])
TAGS = st.builds(
    AcceleratorTag,
    kind=st.sampled_from(AcceleratorKind),
    vendor=st.sampled_from(["nvidia", "amd", ""]),
    model=st.sampled_from(["h100", "a100", ""]),
    classes=st.lists(NAMES, unique=True, max_size=2).map(tuple),
    count=st.integers(0, 8),
    memory_bytes=st.none() | st.sampled_from([16 * GIB, 40 * GIB]),
    cost=st.builds(Cost, per_hour=st.none() | st.sampled_from([1.0, 2.0])),
    partition=st.sampled_from([Partition(), Partition(kind=Sharing.MIG, profile="3g.20gb", compute_slices=3)]),
    features=st.sampled_from([frozenset(), frozenset({"fp8"})]),
    attributes=st.sampled_from([{}, {"device/driver": "gpu.nvidia.com"}]),
)
BOUNDS = st.fixed_dictionaries(
    {},
    optional={
        "minMemory": st.sampled_from(["16Gi", "40Gi"]),
        "vendors": st.just(["nvidia"]),
        "excludedClasses": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "maxCostPerHour": st.sampled_from([1.0, 4.0]),
        "requiredFeatures": st.just(["fp8"]),
        "minComputeSlices": st.just(4),
        "cel": st.just('device.driver == "gpu.nvidia.com"'),
        "onUnknown": st.sampled_from(["Pass", "Fail"]),
    },
)


@given(st.lists(TAGS, min_size=1, max_size=12), BOUNDS)
def test_ome_3_the_mask_is_what_each_tag_by_itself_says(tags, bounds):
    plugin, request = build(**bounds), Request("r")
    mask = plugin.filter(request, candidates(accelerators=tags))
    assert mask.tolist() == [plugin.rejection(request, tag) is None for tag in tags]


@given(st.lists(TAGS, min_size=1, max_size=12), NAMES)
def test_ome_5_the_mask_of_a_request_is_what_each_tag_by_itself_says(tags, name):
    selection = Selection(classes=(name,))
    request = Request("r")
    request.put(ACCELERATOR_SELECTION, Selections(selection))
    mask = build().filter(request, candidates(accelerators=tags))
    assert mask.tolist() == [rejection(tag, selection) is None for tag in tags]
