# SPDX-License-Identifier: Apache-2.0
"""Parts of devices have their share of the TFLOPS as well as of the memory."""

import pytest

from epp.framework.accelerators.tag import Sharing
from tests.support.hardware_objects import GIB, device, resource_claim, resource_slice

OAM = "AMD_Instinct_MI300X_OAM"
MI300X = {"amd.com/gpu.product-name": OAM, "amd.com/gpu.vram": "192G", "amd.com/gpu.cu-count": "304"}
NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"


def claimed(driver, *devices, counters=None, chosen=0, **result):
    """A slice with these devices and a claim of the pod for one of them."""
    name = devices[chosen]["name"]
    return [resource_slice(driver, *devices, counters=counters), resource_claim(driver, name, **result)]


def test_is_15_part_of_38_compute_units_has_an_eighth_of_an_mi300x(tag, pod):
    part = device(
        "gpu-0-part-0",
        {"memory": "24Gi", "computeUnits": "38", "simdUnits": "152"},
        type="amdgpu-partition", productName=OAM, partitionProfile="cpx_nps4", pciAddr="0000:05:00.0",
    )  # fmt: skip
    found = tag([*claimed("gpu.amd.com", part), pod()])
    assert (found.model, found.memory_bytes, found.partition.kind) == ("mi300x", 24 * GIB, Sharing.AMD)
    assert found.partition.compute_fraction == found.partition.memory_fraction == 1 / 8
    assert found.tflops() == pytest.approx(1307 / 8)


@pytest.mark.parametrize(
    ("profile", "capacity", "share"),
    [
        # compute units say it without a mode
        ("", {"memory": "24Gi", "computeUnits": "38"}, (1 / 8, 24)),
        # the mode says it without compute units
        ("cpx_nps1", {"memory": "24Gi"}, (1 / 8, 24)),
        ("dpx_nps2", {"memory": "96Gi"}, (1 / 2, 96)),
        ("qpx_nps1", {}, (1 / 4, 48)),
        # the memory of the whole device is that of all of its parts
        ("cpx_nps1", {"memory": "192Gi", "computeUnits": "38"}, (1 / 8, 24)),
        ("spx_nps1", {"memory": "192Gi", "computeUnits": "304"}, (1, 192)),
    ],
)
def test_is_15_compute_units_or_the_mode_tell_the_share(tag, pod, profile, capacity, share):
    compute, memory = share
    each = device("gpu-0", capacity, type="amdgpu", productName="AMD Instinct MI300X", partitionProfile=profile)
    found = tag([*claimed("gpu.amd.com", each), pod()])
    assert (found.partition.compute_fraction, found.memory_bytes) == (compute, memory * GIB)
    assert found.tflops() == pytest.approx(1307 * compute)


def test_is_15_an_mi300a_has_six_dies(tag, pod):
    each = device("gpu-0", {}, type="amdgpu-partition", productName="AMD Instinct MI300A", partitionProfile="cpx_nps1")
    assert tag([*claimed("gpu.amd.com", each), pod()]).tflops() == pytest.approx(980.6 / 6)


def test_dra_2_counters_of_compute_and_of_memory_are_told_apart(tag, pod):
    part = device(
        "p", {}, type="amdgpu-partition", productName="AMD Instinct MI300X",
        counters={"compute": {"value": "1"}, "memory": {"value": "96Gi"}},
    )  # fmt: skip
    totals = {"compute": {"value": "4"}, "memory": {"value": "192Gi"}}
    found = tag([*claimed("gpu.amd.com", part, counters=totals), pod()])
    assert (found.partition.compute_fraction, found.partition.memory_fraction) == (1 / 4, 1 / 2)
    assert found.memory_bytes == 96 * GIB


def test_dra_2_part_of_a_device_of_the_same_pool(tag, pod):
    whole = device(
        "gpu-0", {"memory": "80Gi", "multiprocessors": "100"}, type="gpu", uuid="GPU-x", productName="Acme 1"
    )
    part = device(
        "gpu-0-a", {"memory": "20Gi", "multiprocessors": "10"}, type="mig", parentUUID="GPU-x", profile="odd",
        productName="Acme 1",
    )  # fmt: skip
    found = tag([*claimed("gpu.nvidia.com", whole, part, chosen=1), pod()])
    assert (found.partition.compute_fraction, found.partition.memory_fraction) == (1 / 10, 1 / 4)
    assert found.memory_bytes == 20 * GIB


def test_dra_2_profile_of_a_slice_goes_before_its_multiprocessors(tag, pod):
    part = device(
        "gpu-0-mig-3g40gb-9-0", {"memory": "40448Mi", "multiprocessors": "60"},
        type="mig", parentUUID="GPU-x", profile="3g.40gb", productName="NVIDIA H100 80GB HBM3",
    )  # fmt: skip
    found = tag([*claimed("gpu.nvidia.com", part), pod()])
    assert (found.model, found.partition.profile, found.partition.compute_fraction) == ("h100", "3g.40gb", 3 / 7)


def test_dra_2_virtual_function_of_intel_has_its_millicores(tag, pod):
    part = device(
        "0000-4d-00-1", {"memory": "24Gi", "millicores": "500"},
        type="vf", parentUID="0000-4d-00-0", pciId="0x0bda", profile="max_24g_c2",
    )  # fmt: skip
    found = tag([*claimed("gpu.intel.com", part), pod()])
    assert (found.model, found.memory_bytes, found.partition.compute_fraction) == ("max-1100", 24 * GIB, 1 / 2)
    assert found.tflops() == 355 / 2


def test_dra_7_compute_and_memory_of_a_claim_are_consumed_apart(tag, pod):
    whole = device("gpu-0", {"memory": "48Gi", "millicores": "1000"}, type="gpu", pciId="0x0bda")
    consumed = {"shareID": "s", "consumedCapacity": {"memory": "24Gi", "millicores": "250"}}
    found = tag([*claimed("gpu.intel.com", whole, **consumed), pod()])
    assert (found.partition.compute_fraction, found.partition.memory_fraction) == (1 / 4, 1 / 2)
    assert found.memory_bytes == 24 * GIB


def test_whole_device_of_an_unlike_variant_is_no_part(tag, pod):
    # 114 multiprocessors are those of the PCIe card, whose name is missing here
    whole = device("gpu-0", {"memory": "81559Mi", "multiprocessors": "114"}, type="gpu", productName="NVIDIA H100 80GB")
    found = tag([*claimed("gpu.nvidia.com", whole), pod()])
    assert found.partition.kind is Sharing.NONE


@pytest.mark.parametrize(
    ("labels", "fraction"),
    [
        ({"amd.com/gpu.compute-memory-partition": "cpx_nps4"}, 1 / 8),
        ({"amd.com/gpu.compute-memory-partition.cpx_nps4": "64"}, 1 / 8),
        ({"amd.com/gpu.compute-memory-partition": "qpx_nps1"}, 1 / 4),
        ({"amd.com/gpu.cu-count": "38", "amd.com/gpu.vram": "24G"}, 1 / 8),
        ({}, 1),
    ],
)
def test_is_15_labels_of_a_partitioned_node(tag, pod, node, labels, fraction):
    found = tag([node({**MI300X, **labels}), pod({"amd.com/gpu": "1"})])
    assert (found.model, found.partition.compute_fraction) == ("mi300x", fraction)
    assert (found.memory_bytes, found.tflops()) == (192 * GIB * fraction, pytest.approx(1307 * fraction))


def test_is_15_mode_in_the_name_of_a_resource(tag, pod, node):
    found = tag([node(MI300X), pod({"amd.com/cpx_nps4": "2"})])
    assert (found.count, found.partition.profile, found.memory_bytes) == (2, "cpx_nps4", 24 * GIB)
    assert found.tflops() == pytest.approx(2 / 8 * 1307)
    whole = tag([node({**MI300X, "amd.com/gpu.compute-memory-partition": "cpx_nps4"}), pod({"amd.com/spx_nps1": "1"})])
    assert (whole.partition.kind, whole.memory_bytes, whole.tflops()) == (Sharing.NONE, 192 * GIB, 1307)


@pytest.mark.parametrize(
    ("machine", "requested", "expected"),
    [
        ("trn1.2xlarge", (NEURON, "1"), (1, 32, 190)),
        ("trn1.2xlarge", ("aws.amazon.com/neurondevice", "1"), (1, 32, 190)),
        ("trn1.32xlarge", (CORE, "2"), (2, 16, 190)),
        ("inf2.xlarge", (CORE, "1"), (1, 16, 95)),
        ("inf1.6xlarge", (CORE, "1"), (1, 2, 16)),
        ("trn2.48xlarge", (CORE, "8"), (8, 12, 667)),
    ],
)
def test_neuron_cores_are_shares_of_their_device(tag, pod, node, *, machine, requested, expected):
    host = node({"node.kubernetes.io/instance-type": machine})
    found = tag([host, pod(dict([requested]))])
    count, gigabytes, tflops = expected
    assert (found.count, found.memory_bytes) == (count, gigabytes * GIB)
    assert found.tflops() == pytest.approx(tflops)


def test_logical_neuron_cores_are_counted_as_the_device_plugin_counts_them(tag, pod, node):
    # 64 logical cores of 16 devices: each is two of the hardware
    host = node({"node.kubernetes.io/instance-type": "trn2.48xlarge"}, allocatable={NEURON: "16", CORE: "64"})
    found = tag([host, pod({CORE: "4"})])
    assert (found.count, found.memory_bytes, found.tflops()) == (4, 24 * GIB, 667)


def test_tiles_and_ai_cores_are_shares_of_their_device(tag, pod, node):
    tile = tag(
        [node({"gpu.intel.com/product": "Max_1550"}), pod({"gpu.intel.com/i915": "1", "gpu.intel.com/tiles": "1"})]
    )
    assert (tile.count, tile.memory_bytes, tile.tflops()) == (1, 64 * GIB, 839 / 2)
    labels = {"accelerator": "huawei-Ascend310P", "node.kubernetes.io/npu.chip.name": "310P3"}
    cores = tag([node(labels), pod({"huawei.com/Ascend310P-4c": "1"})])
    assert (cores.model, cores.memory_bytes, cores.tflops()) == ("ascend-310p", 12 * GIB, 35)


def test_gpu_that_the_plugin_offers_several_times_is_shared(tag, pod, node):
    labels = {"gpu.intel.com/product": "Flex_170", "gpu.intel.com/device.count": "2"}
    host = node(labels, allocatable={"gpu.intel.com/i915": "8"})
    found = tag([host, pod({"gpu.intel.com/i915": "1"})])
    assert (found.partition.kind, found.partition.sharers) == (Sharing.TIME_SLICING, 4)
    assert (found.memory_bytes, found.tflops()) == (4 * GIB, 125 / 4)
