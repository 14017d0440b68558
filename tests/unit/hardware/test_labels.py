# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Sharing
from epp.hardware.catalogue import InstanceType
from epp.hardware.facts.merge import Rank, merge
from epp.hardware.label_reading import spot_from_labels, with_label_aliases
from epp.hardware.node_labels import facts_from_labels
from tests.support.hardware_objects import GIB, MIB

DATA = Path(__file__).parents[2] / "data" / "accelerators"
NODES = yaml.safe_load((DATA / "node-labels.yaml").read_text())


class Expected(NamedTuple):
    kind: AcceleratorKind
    vendor: str
    family: str
    model: str
    memory_bytes: int | None
    fp16: float
    count: int | None


EXPECTED = {
    "h100-node": Expected(AcceleratorKind.GPU, "nvidia", "hopper", "h100", 81559 * MIB, 989, 8),
    "a100-single": Expected(AcceleratorKind.GPU, "nvidia", "ampere", "a100", 5 * GIB, 312, 56),
    "a100-mixed": Expected(AcceleratorKind.GPU, "nvidia", "ampere", "a100", 40 * GIB, 312, 1),
    # 15360 MiB for each four
    "t4-shared": Expected(AcceleratorKind.GPU, "nvidia", "turing", "t4", 3840 * MIB, 65, 1),
    "gke-l4-spot": Expected(AcceleratorKind.GPU, "nvidia", "ada-lovelace", "l4", 24 * GIB, 121, 1),
    "gke-tpu": Expected(AcceleratorKind.TPU, "google", "tpu-v5e", "v5e", 16 * GIB, 197, 8),
    "mi300x": Expected(AcceleratorKind.GPU, "amd", "cdna3", "mi300x", 192 * GIB, 1307, None),
    "mi300x-old": Expected(AcceleratorKind.GPU, "amd", "cdna3", "mi300x", 192 * GIB, 1307, 8),
    "max1550": Expected(AcceleratorKind.XPU, "intel", "max_series", "max-1550", 128 * GIB, 839, 4),
    "cpu-only": Expected(AcceleratorKind.UNKNOWN, "", "", "", None, 0, None),
}


def tag_of(labels) -> AcceleratorTag:
    return merge(facts_from_labels(labels).facts).tag


@pytest.mark.parametrize("name", NODES)
def test_defect_27_labels_of_every_vendor_become_one_description(name):
    node, tag = facts_from_labels(NODES[name]), tag_of(NODES[name])
    found = Expected(tag.kind, tag.vendor, tag.family, tag.model, tag.memory_bytes, tag.performance.fp16, node.count)
    assert found == EXPECTED[name]
    assert node.warnings == ()


def test_what_labels_say_and_what_the_catalogue_adds_are_told_apart():
    labels, catalogue = facts_from_labels(NODES["h100-node"]).facts[0], facts_from_labels(NODES["h100-node"]).facts[-1]
    assert (labels.rank, catalogue.rank) == (Rank.LABELS, Rank.CATALOGUE)
    assert (labels.memory_bytes, labels.compute_capability, labels.fp16) == (81559 * MIB, (9, 0), None)
    provenance = tag_of(NODES["h100-node"]).provenance
    assert provenance["memory_bytes"] == "labels"
    assert provenance["bandwidth_gbps"] == "catalogue/h100-sxm-80gb"


def test_a_node_of_which_nothing_is_known_has_no_facts():
    assert tag_of(NODES["cpu-only"]) == tag_of({}) == AcceleratorTag()


def test_labels_of_devices_and_topology_become_attributes_with_types():
    attributes = tag_of(NODES["h100-node"]).attributes
    assert attributes["nvidia.com/gpu.compute.major"] == 9
    assert attributes["nvidia.com/mig.capable"] is True
    assert attributes["topology.kubernetes.io/zone"] == "z1"
    assert "nvidia.com/gpu.deploy.driver" not in tag_of({"nvidia.com/gpu.deploy.driver": "true"}).attributes


def test_defect_27_with_single_strategy_the_count_is_one_of_slices_and_the_memory_a_slices():
    node, tag = facts_from_labels(NODES["a100-single"]), tag_of(NODES["a100-single"])
    assert (node.count, node.mig) == (56, {"1g.5gb": 56})
    assert (tag.partition.kind, tag.partition.profile) == (Sharing.MIG, "1g.5gb")
    assert tag.partition.compute_fraction == pytest.approx(1 / 7)
    assert tag.partition.memory_fraction == pytest.approx(1 / 8)
    assert not tag.features & {"nvlink", "mig"}


def test_is_9_with_mixed_strategy_the_node_is_described_as_a_whole_gpu_and_slices_are_counted():
    tag = tag_of(NODES["a100-mixed"])
    assert facts_from_labels(NODES["a100-mixed"]).mig == {"3g.20gb": 2}
    assert tag.partition.kind is Sharing.NONE
    assert tag.memory_bytes == 40 * GIB


def test_is_9_profiles_with_media_extensions_are_counted_by_their_canonical_name():
    labels = {**NODES["a100-mixed"], "nvidia.com/mig-1g.5gb.me.count": "1", "nvidia.com/mig-junk.count": "1"}
    assert facts_from_labels(labels).mig == {"3g.20gb": 2, "1g.5gb+me": 1}


@pytest.mark.parametrize(
    ("labels", "kind", "sharers"),
    [
        (NODES["t4-shared"], Sharing.TIME_SLICING, 4),
        ({**NODES["t4-shared"], "nvidia.com/gpu.sharing-strategy": "mps"}, Sharing.MPS, 4),
        # before there was a label for the strategy
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "2"}, Sharing.TIME_SLICING, 2),
        ({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "1"}, Sharing.NONE, 1),
        ({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.sharing-strategy": "none"}, Sharing.NONE, 1),
    ],
)
def test_gpus_shared_by_turns_are_divided_by_those_who_share(labels, kind, sharers):
    partition = tag_of(labels).partition
    assert (partition.kind, partition.sharers) == (kind, sharers)
    assert partition.compute_fraction == partition.memory_fraction == 1 / sharers


def test_a_slice_that_is_shared_is_both():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED",
        "nvidia.com/gpu.replicas": "2",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    tag = tag_of(labels)
    assert (tag.partition.kind, tag.partition.profile, tag.partition.sharers) == (Sharing.MIG, "3g.20gb", 2)
    assert tag.memory_bytes == 10 * GIB


def test_a_virtual_gpu_is_the_share_its_memory_is():
    labels = {
        "nvidia.com/gpu.product": "GRID-A100-40C",
        "nvidia.com/gpu.memory": "20480",
        "nvidia.com/vgpu.present": "true",
    }
    tag = tag_of(labels)
    assert tag.partition.kind is Sharing.VGPU
    assert tag.memory_bytes == 20 * GIB
    # 20 of the usual 40 GiB
    assert tag.partition.memory_fraction == pytest.approx(0.5)


def test_defect_27_a_family_that_differs_between_versions_follows_the_compute_capability():
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.family": "ampere"}
    assert tag_of(labels).family == "ada-lovelace"
    capability = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
    assert tag_of({**labels, **capability}).family == "ada-lovelace"
    assert tag_of({"nvidia.com/gpu.product": "X-9", "nvidia.com/gpu.family": "Rubin"}).family == "rubin"


def test_a_gpu_that_the_catalogue_does_not_know_has_what_its_labels_say():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-X9",
        "nvidia.com/gpu.memory": "98304",
        "nvidia.com/gpu.compute.major": "10",
        "nvidia.com/gpu.compute.minor": "3",
    }
    tag = tag_of(labels)
    assert (tag.compute_capability, tag.family, tag.memory_bytes) == ((10, 3), "blackwell", 96 * GIB)
    assert {"cuda", "tensor-cores", "bf16", "fp8"} <= tag.features


@pytest.mark.parametrize("labels", [{"nvidia.com/gpu.present": "true"}, {"nvidia.com/gpu.count": "2"}])
def test_any_label_of_a_gpu_tells_that_there_is_one(labels):
    assert tag_of(labels).kind is AcceleratorKind.GPU


def test_a_label_that_is_no_number_is_ignored_with_a_warning():
    node = facts_from_labels({**NODES["h100-node"], "nvidia.com/gpu.count": "eight"})
    assert node.count is None
    assert node.warnings == ("label nvidia.com/gpu.count: 'eight' is not a whole number: ignored",)
    assert facts_from_labels({"nvidia.com/gpu.product": "X", "nvidia.com/gpu.memory": "lots"}).warnings


def test_defect_26_memory_with_a_unit_is_read_with_a_warning():
    node = facts_from_labels({"nvidia.com/gpu.product": "NVIDIA-A100", "nvidia.com/gpu.memory": "80Gi"})
    assert merge(node.facts).tag.memory_bytes == 80 * GIB
    assert "has a unit" in node.warnings[0]


def test_defect_26_a_compute_label_that_no_vendor_sets_is_read_with_a_warning():
    node = facts_from_labels({"nvidia.com/gpu.product": "NVIDIA-X9", "nvidia.com/gpu.compute": "10.0"})
    assert merge(node.facts).tag.compute_capability == (10, 0)
    assert "nvidia.com/gpu.compute" in node.warnings[0]


def test_defect_26_selectors_find_what_is_there_under_names_that_are_not():
    labels = {**NODES["h100-node"], "amd.com/gpu.product-name": "Instinct_MI300X", "ome.ai/gpu-tier": "large"}
    named = with_label_aliases(labels)
    assert named["nvidia.com/gpu.compute"] == "9.0"
    assert named["amd.com/gpu.product"] == "Instinct_MI300X"
    assert named["ome.io/gpu-tier"] == "large"
    assert labels.items() <= named.items()


def test_a_label_that_is_there_is_not_changed_by_its_alias():
    labels = {"ome.io/gpu-tier": "small", "ome.ai/gpu-tier": "large"}
    assert with_label_aliases(labels) == labels


@pytest.mark.parametrize(
    ("labels", "division", "count", "memory"),
    [
        # an H100-80 has seven places for 1g.10gb
        ({"partition-size": "1g.10gb"}, (Sharing.MIG, "1g.10gb", 1), 14, 10 * GIB),
        ({"partition-size": "3g.40gb"}, (Sharing.MIG, "3g.40gb", 1), 4, 40 * GIB),
        ({"sharing-strategy": "time-sharing"}, (Sharing.TIME_SLICING, "", 4), 2, 20 * GIB),
        ({"sharing-strategy": "MPS"}, (Sharing.MPS, "", 4), 2, 20 * GIB),
        ({"sharing-strategy": "mps"}, (Sharing.MPS, "", 4), 2, 20 * GIB),
        ({}, (Sharing.NONE, "", 1), 2, 80 * GIB),
    ],
)
def test_gke_gpus_are_divided_as_their_labels_say(labels, division, count, memory):
    whole = {"accelerator": "nvidia-h100-80gb", "accelerator-count": "2"}
    if "sharing-strategy" in labels:
        whole["max-shared-clients-per-gpu"] = "4"
    whole |= {f"gpu-{key}": value for key, value in labels.items()}
    node = facts_from_labels({f"cloud.google.com/gke-{key}": value for key, value in whole.items()})
    tag = merge(node.facts).tag
    assert (tag.partition.kind, tag.partition.profile, tag.partition.sharers) == division
    assert (node.count, tag.memory_bytes) == (count, memory)


@pytest.mark.parametrize(
    ("accelerator", "topology", "host", "count", "chips"),
    [
        ("tpu-v5-lite-podslice", "1x1", None, 1, 1),
        ("tpu-v5-lite-podslice", "2x4", "4", 4, 8),
        ("tpu-v5-lite-podslice", "4x4", None, 4, 16),
        ("tpu-v4-podslice", "2x2x1", None, 4, 4),
        ("tpu-v5p-slice", "2x2x2", None, 4, 8),
        ("tpu-v6e-slice", "16x16", None, 4, 256),
        ("tpu7x", "2x2x1", "4", 4, 4),
    ],
)
def test_tpu_chips_of_a_host_and_of_its_slice_are_told_apart(accelerator, topology, host, count, chips):
    labels = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": topology}
    if host:
        labels["cloud.google.com/gke-accelerator-count"] = host
    node = facts_from_labels(labels)
    assert (node.count, node.slice_chips) == (count, chips)
    assert merge(node.facts).tag.performance.fp16 > 0


def test_what_gke_labels_cannot_mean_is_ignored_with_a_warning():
    tpu, gpu = {"tpu-accelerator": "tpu-v6e-slice"}, {"accelerator": "nvidia-l4"}
    for labels, text in (
        ({**tpu, "tpu-topology": "big"}, "tpu-topology: 'big' is not of the form 2x4 or 2x2x4: ignored"),
        ({**tpu, "tpu-topology": "9999x9999"}, "tpu-topology: '9999x9999' is more than 65536 chips: ignored"),
        ({**gpu, "gpu-partition-size": "half"}, "the profile is 'half': write a MIG profile such as 3g.20gb"),
        ({**gpu, "gpu-partition-size": "1g.5gb"}, "'nvidia-l4' has no MIG"),
    ):
        node = facts_from_labels({f"cloud.google.com/gke-{key}": value for key, value in labels.items()})
        (warning,) = node.warnings
        assert text in warning
        assert (node.count, node.slice_chips) == (None, None)


def test_numbers_that_no_node_has_are_ignored_with_a_warning():
    labels = {"product": "Tesla-T4", "count": "1000000000", "memory": "99999999999", "replicas": "-2"}
    node = facts_from_labels({f"nvidia.com/gpu.{key}": text for key, text in labels.items()})
    assert (node.count, merge(node.facts).tag.memory_bytes) == (None, 16 * GIB)
    assert sorted(node.warnings) == [
        "label nvidia.com/gpu.count: '1000000000' is more than 65536: ignored",
        "label nvidia.com/gpu.memory: '99999999999' is more than 67108864: ignored",
        "label nvidia.com/gpu.replicas: '-2' is not a whole number: ignored",
    ]


def test_defect_28_values_in_the_keys_of_old_amd_labels_are_not_lost():
    node, tag = facts_from_labels(NODES["mi300x-old"]), tag_of(NODES["mi300x-old"])
    assert (tag.model, tag.memory_bytes, node.count) == ("mi300x", 192 * GIB, 8)
    small = {"beta.amd.com/gpu.vram.64G": "8", "beta.amd.com/gpu.device-id.740f": "8"}
    assert (tag_of(small).model, tag_of(small).memory_bytes) == ("mi210", 64 * GIB)


def test_defect_28_devices_that_differ_are_described_by_the_most_frequent_with_a_warning():
    node = facts_from_labels({"amd.com/gpu.vram.64G": "2", "amd.com/gpu.vram.192G": "6"})
    assert merge(node.facts).tag.memory_bytes == 192 * GIB
    assert "devices of the node differ (192G, 64G)" in node.warnings[0]


def test_defect_28_the_amd_family_label_is_not_taken_for_a_family():
    assert tag_of({"amd.com/gpu.vram": "16G", "amd.com/gpu.family": "AI"}).family == ""


@pytest.mark.parametrize(
    ("key", "vram", "mode", "fraction", "memory"),
    [
        ("amd.com/gpu.compute-memory-partition", "192G", "spx_nps1", 1, 192 * GIB),
        ("amd.com/gpu.compute-memory-partition", "192G", "CPX_NPS1", 1 / 8, 24 * GIB),
        ("amd.com/compute-memory-partition", "192G", "dpx_nps2", 1 / 2, 96 * GIB),
        # the label gives the partition's own memory
        ("amd.com/gpu.compute-memory-partition", "24G", "cpx_nps4", 1 / 8, 24 * GIB),
    ],
)
def test_is_15_amd_partitions_are_slices_too(key, vram, mode, fraction, memory):
    tag = tag_of({**NODES["mi300x"], "amd.com/gpu.vram": vram, key: mode})
    assert tag.partition.kind is (Sharing.NONE if fraction == 1 else Sharing.AMD)
    assert tag.partition.compute_fraction == fraction
    assert (tag.model, tag.memory_bytes) == ("mi300x", memory)


def test_intel_gpus_are_known_by_their_device_ids_too():
    node = facts_from_labels({"gpu.intel.com/device-id.0380-0bda.count": "2"})
    assert (merge(node.facts).tag.model, node.count) == ("max-1100", 2)


@pytest.mark.parametrize(
    ("label", "vendor", "kind"),
    [
        ("pci-0302_10de", "nvidia", AcceleratorKind.GPU),
        ("pci-1200_1002", "amd", AcceleratorKind.GPU),
        ("pci-0380_8086", "intel", AcceleratorKind.XPU),
        ("pci-1200_1da3", "intel", AcceleratorKind.NPU),
        ("pci-0300_1a03", "", AcceleratorKind.UNKNOWN),
        # an InfiniBand card, and the graphics of a processor
        ("pci-0207_10de", "", AcceleratorKind.UNKNOWN),
        ("pci-0300_8086", "", AcceleratorKind.UNKNOWN),
    ],
)
def test_pci_labels_tell_the_vendor_and_no_more(label, vendor, kind):
    tag = tag_of({f"feature.node.kubernetes.io/{label}.present": "true"})
    assert (tag.vendor, tag.kind, tag.model) == (vendor, kind, "")


KARPENTER, EKS = "karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType"
GKE, AKS = "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"


@pytest.mark.parametrize(
    ("spot", "labels"),
    [
        (True, [{KARPENTER: "spot"}, {GKE: "true"}, {GKE: "True"}, {EKS: "SPOT"}, {AKS: "Spot"}]),
        (False, [{KARPENTER: "on-demand"}, {EKS: "ON_DEMAND"}, {AKS: "regular"}]),
        (True, [{KARPENTER: "on-demand", EKS: "spot"}]),
        (None, [{KARPENTER: "whatever"}, {}]),
    ],
)
def test_ome_7_spot_labels_of_every_cloud_are_understood_in_any_case(spot, labels):
    assert [spot_from_labels(each) for each in labels] == [spot] * len(labels)
    assert [tag_of(each).cost.spot for each in labels] == [spot] * len(labels)


def test_ome_14_the_machine_type_is_the_last_resort():
    labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    node, tag = facts_from_labels(labels), tag_of(labels)
    assert (tag.model, node.count) == ("h100", 8)
    assert tag.provenance["model"] == "instance-type/p5.48xlarge"
    # labels of a GPU go first
    assert tag_of({**labels, **NODES["t4-shared"]}).model == "t4"


def test_ome_14_the_machine_type_completes_a_bare_vendor_but_not_another_one():
    labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    assert tag_of({**labels, "feature.node.kubernetes.io/pci-0302_10de.present": "true"}).model == "h100"
    assert tag_of({**labels, "feature.node.kubernetes.io/pci-1200_1002.present": "true"}).model == ""


def test_ome_14_machine_types_can_be_added():
    labels = {"beta.kubernetes.io/instance-type": "our-box"}
    node = facts_from_labels(labels, instance_types={"our-box": InstanceType("l40s", 2)})
    assert (merge(node.facts).tag.model, node.count) == ("l40s", 2)


KEYS = [
    *sorted({key for labels in NODES.values() for key in labels}),
    "accelerator", "k8s.amazonaws.com/accelerator", "kubernetes.azure.com/accelerator", "habana.ai/product.name",
    "habana.ai/device.memory", "habana.ai/device.count", "node.kubernetes.io/npu.chip.name",
    "mind-cluster/npu-chip-memory", "karpenter.k8s.aws/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.k8s.aws/instance-gpu-memory", "karpenter.k8s.aws/instance-gpu-manufacturer", "gpu.nvidia.com/model",
    "gpu.nvidia.com/vram", "aliyun.accelerator/nvidia_name", "aliyun.accelerator/nvidia_mem",
    "amd.com/gpu.compute-memory-partition", "feature.node.kubernetes.io/pci-1200_1da3_1060.present",
    "cloud.google.com/gke-gpu-partition-size", "cloud.google.com/gke-max-shared-clients-per-gpu",
    "nvidia.com/vgpu.present", "nvidia.com/gpu.compute",
]  # fmt: skip
VALUES = sorted({value for labels in NODES.values() for value in labels.values()})


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES) | st.text(max_size=12) | st.just("9" * 5000)))
def test_no_labels_whatever_stop_the_reader(labels):
    node = facts_from_labels(labels)
    tag = merge(node.facts).tag
    assert 0 < tag.partition.memory_fraction <= 1
    assert 0 < tag.partition.compute_fraction <= 1
    assert tag.memory_bytes is None or tag.memory_bytes > 0
    assert node.count is None or node.count >= 0
    assert all(fact.count is None and fact.devices is None for fact in node.facts)
    assert all(isinstance(warning, str) for warning in node.warnings)
