# SPDX-License-Identifier: Apache-2.0
"""Which classes an endpoint is of, and what it has from them."""

import pytest

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder
from tests.support.decoded_objects import decode

GIB = 2**30
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
MIG_A100 = {
    "nvidia.com/mig.capable": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
}
GPU = {"nvidia.com/gpu": "1"}


def affinity(*terms):
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def test_ome_2_samples_tag_their_nodes(documents, node_labels, tag):
    expected = {
        "h100-node": ("nvidia-h100-80gb",), "mi300x": ("amd-mi300x",), "max1550": ("intel-max-1550",),
        "gke-tpu": ("google-tpu-v5e-2x4",), "cpu-only": (),
    }  # fmt: skip
    classes = documents("ome-classes")
    assert {name: tag(classes, labels=node_labels[name]).classes for name in expected} == expected


def test_ome_2_all_of_selector_affinity_and_resources_must_hold(documents, tag, node, pod):
    def classes(resource="nvidia.com/mig-3g.20gb", **labels):
        changed = {f"nvidia.com/{name.replace('_', '.')}": text for name, text in labels.items()}
        return tag([*documents("ome-classes"), node({**MIG_A100, **changed}), pod({resource: "1"})]).classes

    assert classes() == classes("mig.das.com/3g.20gb") == ("nvidia-a100-40gb-mig-3g20gb",)
    assert classes("nvidia.com/mig-1g.5gb") == classes("nvidia.com/gpu") == ()
    assert classes(gpu_memory="38000") == classes(mig_capable="false") == ()


def test_ome_2_the_most_specific_class_goes_first_in_any_order(accelerator_class, tag, node, pod):
    pairs = {**H100, "zone": "z1"}
    documents = [
        accelerator_class("two-pairs", discovery={"nodeSelector": pairs}),
        accelerator_class("b-one-pair", discovery={"nodeSelector": H100}),
        accelerator_class("a-one-pair", discovery={"nodeSelector": H100}),
        accelerator_class("no-pair", resources=[{"name": "nvidia.com/gpu"}]),
    ]
    context = [node(pairs), pod(GPU)]
    expected = ("two-pairs", "a-one-pair", "b-one-pair", "no-pair")
    assert tag([*documents, *context]).classes == expected
    assert tag([*reversed(documents), *context]).classes == expected


def test_ome_2_slices_go_before_whole_devices(accelerator_class, tag, node, pod):
    resources = {"nvidia.com/mig-3g.40gb": "1", "nvidia.com/gpu": "1"}
    documents = [
        accelerator_class("a-whole", discovery={"nodeSelector": H100}, resources=[{"name": "nvidia.com/gpu"}]),
        accelerator_class("b-slice", discovery={"nodeSelector": H100}, resources=[{"name": "nvidia.com/mig-3g.40gb"}]),
    ]
    assert tag([*documents, node(H100), pod(resources)]).classes == ("b-slice", "a-whole")


def test_defect_5_empty_class_tags_no_endpoint(accelerator_class, tag, node, pod):
    for spec in ({}, {"discovery": {"nodeSelector": {}}}, {"discovery": affinity({})}):
        assert tag([accelerator_class("empty", **spec), node(H100), pod(GPU)]).classes == ()


def test_ome_2_empty_discovery_takes_what_is_asked_for_by_its_resources(accelerator_class, tag, node, pod):
    gaudi = accelerator_class("gaudi", resources=[{"name": "example.com/gaudi"}])
    found = tag([gaudi, node(), pod({"example.com/gaudi": "4"})])
    assert (found.classes, found.count, found.has_accelerator) == (("gaudi",), 4, True)
    assert tag([gaudi, node(), pod(GPU)]).classes == ()


@pytest.mark.parametrize(
    ("labels", "matches"),
    [
        ({"feature.node.kubernetes.io/pci-0302_10de_2330.present": "true"}, True),
        ({"feature.node.kubernetes.io/pci-0302_10de_20b0.present": "true"}, False),
        ({"feature.node.kubernetes.io/pci-0300_1a03.present": "true"}, False),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, False),  # the vendor alone may be any GPU of it
        ({}, False),
    ],
)
def test_ome_2_pci_ids_alone_must_be_known(accelerator_class, tag, node, pod, *, labels, matches):
    by_pci = accelerator_class(
        "h100", discovery={"pciVendorID": "10DE", "deviceIDs": ["0x2330"]}, resources=[{"name": "nvidia.com/gpu"}]
    )
    assert tag([by_pci, node(labels), pod(GPU)]).classes == (("h100",) if matches else ())


def test_ome_2_known_pci_ids_must_fit_beside_a_selector(accelerator_class, tag, node, pod):
    both = accelerator_class("amd", discovery={"nodeSelector": {"pool": "x"}, "pciVendorID": "1002"})
    assert tag([both, node({"pool": "x"}), pod(GPU)]).classes == ("amd",)
    assert tag([both, node({"pool": "x", **H100}), pod(GPU)]).classes == ()


def test_ome_2_a_slice_that_nobody_knows_of_is_not_there(documents, tag):
    assert tag(documents("ome-classes"), labels=MIG_A100).classes == ()


def test_ome_13_flavor_finds_the_nodes_of_a_class_without_discovery(accelerator_class, documents, tag, node, pod):
    flavored = accelerator_class("h100", integration={"kueueResourceFlavor": "h100-flavor", "volcanoGPUType": "H100"})
    flavors = [each for each in documents("kueue-and-costs") if each["kind"] == "ResourceFlavor"]
    found = tag([flavored, *flavors, node(H100), pod(GPU)])
    assert (found.classes, found.attributes["ome.io/volcanoGPUType"]) == (("h100",), "H100")
    assert tag([flavored, *flavors, node(), pod(GPU)]).classes == ()
    (problem,) = Inventory.build([decode([flavored]).file]).remarks
    assert problem == (
        "AcceleratorClass h100: there is no ResourceFlavor h100-flavor to select its nodes by: "
        "add it, or write a nodeSelector"
    )


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({"driver": "gpu.nvidia.com"}, True),
        ({"driver": "gpu.amd.com"}, False),
        ({"matchAttributes": [{"key": "architecture", "operator": "In", "values": ["Hopper"]}]}, True),
        ({"matchAttributes": [{"key": "gpu.nvidia.com/brand", "operator": "NotIn", "values": ["Nvidia"]}]}, False),
        ({"matchAttributes": [{"key": "cudaComputeCapability", "operator": "Gt", "values": ["8.9"]}]}, True),
        ({"matchAttributes": [{"key": "driverVersion", "operator": "Lt", "values": ["580.7"]}]}, False),
        ({"expression": "device.driver == 'gpu.nvidia.com'"}, True),
        ({"expression": "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}, True),
        ({"expression": "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) >= 0"}, False),
        ({"driver": "gpu.amd.com", "expression": "true"}, False),
    ],
)
def test_dra_3_class_by_the_attributes_of_devices(accelerator_class, documents, tag, selector, matches):
    # 580.65.6 is not less than 580.7: versions are compared number by number
    found = tag([accelerator_class("by-device", discovery={"dra": selector}), *documents("dra")])
    assert found.classes == (("by-device",) if matches else ())


def test_dra_3_expression_that_is_not_supported_is_reported_and_selects_nothing(accelerator_class, documents, tag):
    by_cel = accelerator_class("cel", discovery={"dra": {"expression": "device.nothing()"}})
    (problem,) = Inventory.build([decode([by_cel]).file]).remarks
    assert problem.startswith("AcceleratorClass cel: spec.discovery.dra.expression: unsupported expression at line 1")
    assert tag([by_cel, *documents("dra")]).classes == ()


def test_class_of_whole_devices_serves_claims_too(documents, tag, node):
    found = tag([*documents("ome-classes", "dra"), node(H100)])
    assert found.classes == ("nvidia-h100-80gb",)
    assert found.cost.per_hour == 4.25
    assert found.memory_bytes == 81559 * 2**20  # what the driver says goes before the class


def test_ome_1_bare_memory_is_read_as_gb_with_a_warning(accelerator_class):
    written = accelerator_class("a", discovery={"nodeSelector": H100}, capabilities={"memoryGB": 40})
    inventory = Inventory.build([decode([written]).file])
    (problem,) = inventory.remarks
    assert problem == (
        "AcceleratorClass a: spec.capabilities.memoryGB is 40, which means bytes: read as 40Gi; write 40Gi"
    )
    found = TagBuilder(inventory).build(Endpoint("e", "10.0.0.1", 8000, labels=H100)).tag
    assert found.memory_bytes == 40 * GIB


def test_figures_of_a_class_reach_the_tag(documents, tag, node, pod):
    found = tag([*documents("ome-classes"), node(H100), pod({"nvidia.com/gpu": "4"})])
    assert (found.vendor, found.family, found.model) == ("nvidia", "hopper", "h100")
    assert found.compute_capability == (9, 0)
    assert found.bandwidth_gbps == 3350
    assert (found.performance.fp16, found.performance.int8) == (989, 1979)
    assert found.tflops() == 4 * 989
    assert found.cost_per_hour() == 17.0  # 4 x $4.25
    assert {"cuda", "nvlink", "fp8", "mig"} <= found.features
    assert found.provenance["per_hour"] == "AcceleratorClass/nvidia-h100-80gb"


def test_figures_of_a_class_of_slices_are_those_of_the_slice(documents, tag, node, pod):
    found = tag([*documents("ome-classes"), node(MIG_A100), pod({"nvidia.com/mig-3g.20gb": "2"})])
    assert found.count == 2
    assert found.memory_bytes == 20 * GIB
    # 133 TFLOPS and $0.90 are what one slice has and costs
    assert found.tflops() == pytest.approx(266)
    assert found.cost_per_hour() == pytest.approx(1.80)
    assert found.bandwidth_gbps * found.partition.memory_fraction == pytest.approx(777)


def test_defect_9_figures_with_sparsity_are_halved(accelerator_class, tag, node, pod):
    performance = {"fp32Tflops": 67, "fp16Tflops": 1978, "sparse": True}
    each = accelerator_class("h", discovery={"nodeSelector": H100}, capabilities={"performance": performance})
    found = tag([each, node(H100), pod(GPU)])
    assert (found.performance.fp32, found.performance.fp16) == (67, 989)


def test_defect_4_host_memory_has_no_say(accelerator_class, tag, node, pod):
    each = accelerator_class("h", discovery={"nodeSelector": H100}, capabilities={"memoryGB": "80Gi"})
    small_host = node(H100, allocatable={"memory": "16Gi", "nvidia.com/gpu": "1"})
    assert tag([each, small_host, pod(GPU)]).classes == ("h",)


def test_ome_11_one_bad_class_leaves_the_others(accelerator_class):
    documents = [
        accelerator_class("bad-memory", discovery={"nodeSelector": H100}, capabilities={"memoryGB": "lots"}),
        {**accelerator_class("bad-version"), "apiVersion": "ome.io/v7"},
        accelerator_class(
            "odd", discovery={"nodeSelector": H100},
            capabilities={"computeCapability": "gfx942", "memoryGB": "80Gi"}, cost={"tier": "huge", "perHour": "1"},
        ),
        accelerator_class("good", discovery={"nodeSelector": {**H100, "zone": "z"}}),
    ]  # fmt: skip
    inventory = Inventory.build([decode(documents).file])
    assert inventory.skipped == 2
    assert [text.split(":")[0] for text in (*inventory.remarks, *map(str, inventory.ignored))] == [
        "AcceleratorClass odd"
    ] * 2
    endpoint = Endpoint("e", "10.0.0.1", 8000, labels={**H100, "zone": "z"})
    assert TagBuilder(inventory).build(endpoint).tag.classes == ("good", "odd")


def test_numbers_of_any_length_stop_nothing(accelerator_class):
    long = "9" * 5000
    gt = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": [long]}]}
    capabilities = {"computeCapability": long, "performance": {"fp16Tflops": float("inf")}}
    documents = [
        accelerator_class("a", discovery=affinity(gt), cost={"perHour": long}),
        accelerator_class("b", discovery=affinity(gt)),
        accelerator_class("c", discovery={"nodeSelector": H100}, capabilities=capabilities),
    ]
    inventory = Inventory.build([decode(documents).file])
    assert (inventory.skipped, sorted(inventory.classes)) == (1, ["b", "c"])
    tag = TagBuilder(inventory).build(Endpoint("e", "10.0.0.1", 8000, labels={**H100, "a": "7"})).tag
    assert tag.classes == ("c",)
    assert tag.tflops() == 989  # the catalogue's


def test_defect_3_class_that_is_not_there_leaves_the_endpoint_what_is_known(documents, merged, node_labels):
    declared = AcceleratorDeclaration(accelerator_class="h1OO")
    found = merged(documents("ome-classes"), labels=node_labels["h100-node"], accelerator=declared)
    assert found.tag.classes == ("nvidia-h100-80gb",)
    assert found.warnings == (
        "endpoint list: 'h1OO' is neither an AcceleratorClass nor a product of the catalogue; ignored",
    )
