# SPDX-License-Identifier: Apache-2.0
"""Extended resources that pods request: accelerators, other devices, and those of which nothing is known."""

import pytest

from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


RESOURCES = {
    # nvidia.com/a100: names that operators give to GPUs in the configuration of the device plugin
    (AcceleratorKind.GPU, "nvidia"): "nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/a100",
    (AcceleratorKind.GPU, "amd"): "amd.com/gpu amd.com/cpx_nps4",
    (AcceleratorKind.XPU, "intel"): "gpu.intel.com/i915 gpu.intel.com/xe",
    (AcceleratorKind.TPU, "google"): "google.com/tpu",
    (AcceleratorKind.NPU, "intel"): "habana.ai/gaudi",
    (AcceleratorKind.NPU, "aws"): "aws.amazon.com/neuron aws.amazon.com/neurondevice aws.amazon.com/neuroncore",
    (AcceleratorKind.NPU, "qualcomm"): "qualcomm.com/qaic",
    (AcceleratorKind.NPU, "huawei"): "huawei.com/Ascend910 huawei.com/Ascend310P huawei.com/ascend-1980",
    (AcceleratorKind.NPU, "cambricon"): "cambricon.com/vmlu",
    (AcceleratorKind.NPU, "furiosa"): "furiosa.ai/rngd",
}


@pytest.mark.parametrize(
    ("resource", "kind", "vendor"), [(name, *made) for made, names in RESOURCES.items() for name in names.split()]
)
def test_ome_8_resource_of_an_accelerator_tells_kind_and_vendor(tag, pod, resource, kind, vendor):
    found = tag([pod({resource: "2", "cpu": "4"})])
    assert (found.kind, found.vendor, found.count) == (kind, vendor, 2)
    assert found.resources == {resource}


@pytest.mark.parametrize(
    "resource",
    [
        *("hugepages-2Mi", "rdma/hca_shared_devices_a", "nvidia.com/rdma_shared_device", "nvidia.com/hostdev"),
        *("amd.com/nic", "vpc.amazonaws.com/efa", "vpc.amazonaws.com/pod-eni", "smarter-devices/fuse"),
        *("devices.kubevirt.io/kvm", "intel.com/intel_sriov_netdevice", "openshift.io/mlxnics"),
        *("networking.gke.io.networks/vpc1.IP", "qat.intel.com/generic", "attachable-volumes.kubernetes.io/disks"),
        *("kubernetes.io/batch-cpu", "tke.cloud.tencent.com/eni-ip"),
    ],
)
def test_ome_8_other_devices_make_no_accelerator(tag, pod, node, resource):
    assert tag([node(H100), pod({resource: "1", "cpu": "4"})]).kind is AcceleratorKind.CPU


@pytest.mark.parametrize(
    "resource",
    [
        "acme.example/npu",
        "xilinx.com/fpga-xilinx_u30",
        "aliyun.com/gpu-mem",
        "nvidia.com/gpumem",
        "aws.amazon.com/thing",
    ],
)
def test_ome_8_unknown_resource_is_unknown_hardware_never_a_cpu(merged, pod, node, resource):
    # the labels of the node are those of a GPU, and the pod requests something else
    found = merged([node(H100), pod({resource: "2"})])
    assert (found.tag.kind, found.tag.has_accelerator) == (AcceleratorKind.UNKNOWN, False)
    assert (found.tag.count, found.tag.model, found.tag.memory_bytes) == (2, "", None)
    (warning,) = found.warnings
    assert warning.startswith(f"the pod requests {resource}, ")
    assert "write an AcceleratorClass with this name under resources" in warning


def test_ome_8_amounts_beside_a_gpu_are_not_counted(tag, pod, node):
    found = tag([node(H100), pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10000", "acme.example/badge": "1"})])
    assert (found.kind, found.model, found.count) == (AcceleratorKind.GPU, "h100", 1)


def test_ome_2_class_makes_a_resource_known(merged, pod, accelerator_class):
    resources = [{"name": "acme.example/npu", "quantity": "1"}]
    each = accelerator_class(
        "acme-npu", vendor="acme", model="npu", resources=resources, capabilities={"memoryGB": "64Gi"}
    )
    found = merged([each, pod({"acme.example/npu": "4"})])
    assert (found.tag.vendor, found.tag.count, found.tag.classes) == ("acme", 4, ("acme-npu",))
    assert found.warnings == ()


def test_labels_of_another_vendor_do_not_describe_the_devices(tag, pod, node):
    found = tag([node(H100), pod({"amd.com/gpu": "1"})])
    assert (found.vendor, found.model, found.memory_bytes) == ("amd", "", None)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"vendor": "qualcomm", "model": "ai-200"}, AcceleratorKind.NPU),
        ({"vendor": "acme", "resources": [{"name": "habana.ai/gaudi"}]}, AcceleratorKind.NPU),
        ({"vendor": "acme"}, AcceleratorKind.GPU),
    ],
)
def test_kind_of_a_class_follows_from_its_model_resource_or_vendor(tag, accelerator_class, spec, kind):
    assert tag([accelerator_class("x", **spec)], accelerator=AcceleratorDeclaration(accelerator_class="x")).kind is kind
