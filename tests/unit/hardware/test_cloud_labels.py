# SPDX-License-Identifier: Apache-2.0
"""Labels of clouds, of NPUs and of machines, beside those of GPUs."""

import pytest

from epp.framework.accelerators.tag import HOST_GBPS, NETWORK_GBPS, AcceleratorKind, AcceleratorTag
from epp.hardware.facts.merge import merge
from epp.hardware.node_labels import facts_from_labels
from tests.support.hardware_objects import GIB, MIB


def tag_of(labels: dict[str, str]) -> AcceleratorTag:
    return merge(facts_from_labels(labels).facts).tag


def test_labels_of_clouds_name_product_number_and_memory():
    prefix = "karpenter.k8s.aws/instance-gpu-"
    labels = {f"{prefix}name": "a100", f"{prefix}manufacturer": "nvidia", f"{prefix}memory": "81920"}
    node = facts_from_labels({**labels, f"{prefix}count": "8"})
    tag = merge(node.facts).tag
    assert (tag.vendor, tag.model, tag.memory_bytes, node.count) == ("nvidia", "a100", 80 * GIB, 8)
    # 80 GB: the variant follows from the memory
    assert tag.bandwidth_gbps == 2039
    alibaba = {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB", "aliyun.accelerator/nvidia_mem": "16280MiB"}
    assert tag_of(alibaba).memory_bytes == 16280 * MIB


def test_links_of_a_device_are_those_of_its_product_and_of_its_share_of_the_machine():
    machine = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    links = {HOST_GBPS: 64.0, NETWORK_GBPS: 50.0}  # 3200 Gbit/s for 8 GPUs
    assert tag_of(machine).attributes.items() >= links.items()
    tag = tag_of({**machine, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    assert tag.attributes.items() >= links.items()


@pytest.mark.parametrize("memory", ["-5", "lots", "1", "9" * 20])
def test_memory_that_no_device_has_is_ignored_with_a_warning(memory):
    prefix = "karpenter.k8s.aws/instance-gpu-"
    node = facts_from_labels({f"{prefix}name": "t4", f"{prefix}memory": memory})
    assert merge(node.facts).tag.memory_bytes == 16 * GIB
    assert node.warnings == (f"label {prefix}memory: {memory!r} is not the memory of an accelerator: ignored",)


def test_ome_14_machine_type_tells_variants_of_a_product_apart():
    label = {"karpenter.azure.com/sku-gpu-name": "H100", "karpenter.azure.com/sku-gpu-manufacturer": "nvidia"}
    assert tag_of(label).memory_bytes == 80 * GIB
    machine = {"node.kubernetes.io/instance-type": "Standard_NC40ads_H100_v5"}
    nvl = tag_of({**label, **machine})
    assert (nvl.memory_bytes, nvl.performance.fp16) == (94 * GIB, 835)
    # a label that names the variant goes before the machine type
    own = {**machine, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert tag_of(own).memory_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        ({"habana.ai/product.name": "Intel-Gaudi-2-96GB"}, "gaudi2"),
        ({"feature.node.kubernetes.io/pci-1200_1da3_1060.present": "true"}, "gaudi3"),
        ({"feature.node.kubernetes.io/pci-1200_1da3_1020.present": "true"}, "gaudi2"),
        ({"accelerator": "huawei-Ascend910", "node.kubernetes.io/npu.chip.name": "910B3"}, "ascend-910b3"),
        ({"accelerator": "huawei-Ascend310P"}, "ascend-310p"),
        ({"accelerator": "huawei-Ascend910"}, ""),
        ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"}, "v100"),
        ({"kubernetes.azure.com/accelerator": "nvidia"}, ""),
    ],
)
def test_model_is_known_where_a_label_tells_it_and_only_there(labels, model):
    tag = tag_of(labels)
    assert tag.kind is not AcceleratorKind.UNKNOWN
    assert tag.model == model


@pytest.mark.parametrize(
    ("labels", "form"),
    [
        ({"amd.com/gpu.vram": "0"}, "192G"),
        ({"amd.com/gpu.vram": "99999G"}, "192G"),
        ({"node.kubernetes.io/npu.chip.name": "910B3", "mind-cluster/npu-chip-memory": "0G"}, "64G"),
    ],
)
def test_memory_that_no_device_has_is_said_and_unknown(labels, form):
    node = facts_from_labels(labels)
    assert all(fact.memory_bytes is None for fact in node.facts if fact.source == "labels")
    (warning,) = node.warnings
    assert warning.endswith(f"is not of the form {form}: ignored")
