# SPDX-License-Identifier: Apache-2.0
"""Whose word counts for which field of a tag."""

import msgspec
import pytest

from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind, Sharing
from epp.hardware.catalogue import InstanceType
from epp.hardware.endpoint_context import TaggerOptions
from epp.hardware.facts.declared import AcceleratorOverride
from tests.support.hardware_objects import GIB
from tests.support.kube.manifests import manifest

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
GPU = {"nvidia.com/gpu": "1"}


def test_ome_8_pod_without_devices_is_a_cpu(documents, tag, pod, node):
    found = tag([*documents("ome-classes"), node(H100), pod({"cpu": "4", "memory": "8Gi"})])
    assert (found.kind, found.has_accelerator, found.classes) == (AcceleratorKind.CPU, False, ())
    assert (found.vendor, found.memory_bytes, found.node) == ("", None, "gpu-node-1")


def test_ome_8_pod_that_nobody_knows_is_no_cpu(tag):
    assert tag([]).kind is AcceleratorKind.UNKNOWN


def test_ome_8_pod_whose_claim_is_not_there_yet_is_no_cpu(tag, pod, documents):
    waiting = pod(status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]})
    assert tag([waiting, manifest("resource.k8s.io/v1", "ResourceClaim", "c", "llm")]).kind is AcceleratorKind.UNKNOWN
    annotated = pod(metadata={"annotations": {"tensor-fusion.ai/gpu-count": "1"}})
    assert tag([annotated]).kind is AcceleratorKind.UNKNOWN


def test_ome_8_operators_know_better(tag, pod):
    declared = AcceleratorDeclaration(accelerator_class="h100", count=1)
    assert tag([pod()], accelerator=declared).model == "h100"
    assert tag([], accelerator=AcceleratorDeclaration(kind=AcceleratorKind.CPU)).kind is AcceleratorKind.CPU


def test_ome_10_pods_name_their_class_only_where_they_are_trusted(documents, tag, pod, node):
    claimed = {"annotations": {"ome.io/accelerator-class": "amd-mi300x"}}
    world = [*documents("ome-classes"), node(H100), pod(GPU, metadata=claimed)]
    assert tag(world).classes == ("nvidia-h100-80gb",)
    trusted = tag(world, options={"trust_pod_labels": True})
    assert trusted.classes == ("amd-mi300x", "nvidia-h100-80gb")
    labels = {"inference.optimization/acceleratorName": "amd-mi300x"}
    assert tag(documents("ome-classes"), labels=labels).classes == ()
    assert tag(documents("ome-classes"), labels=labels, options={"trust_pod_labels": True}).vendor == "amd"


def test_ome_10_labels_of_pods_are_not_those_of_nodes(tag, pod):
    world = [pod(GPU, node="")]
    assert tag(world, labels=H100).model == ""
    assert tag(world, labels=H100, options={"trust_pod_labels": True}).model == "h100"


def test_labels_of_an_endpoint_without_a_pod_stand_for_its_node(tag, node_labels):
    found = tag([], labels=node_labels["h100-node"])
    assert (found.vendor, found.family, found.model, found.count) == ("nvidia", "hopper", "h100", 8)
    assert found.memory_bytes == 81559 * 2**20
    assert found.compute_capability == (9, 0)
    assert {"fp8", "bf16"} <= found.features


def test_node_is_found_by_the_endpoint_the_pod_or_the_label(tag, pod, node):
    world = [node(H100, name="n1"), node({"kubernetes.io/hostname": "host-2", **H100}, name="n2")]
    assert tag(world, node="n1").model == "h100"
    assert tag([*world, pod(GPU, node="n1")]).node == "n1"
    by_label = tag(world, labels={"kubernetes.io/hostname": "host-2"})
    assert (by_label.node, by_label.model) == ("n2", "h100")


def test_pod_is_found_by_its_address(tag, pod):
    assert tag([pod({"nvidia.com/gpu": "3"})], name="some-name").count == 3
    twice = [pod(GPU, name="a"), pod(GPU, name="b", uid="uid-b")]
    assert tag(twice, name="some-name").count == 0


def test_pod_that_has_ended_has_no_address(tag, pod):
    ended = pod({"nvidia.com/gpu": "3"}, name="old", uid="old", status={"phase": "Succeeded"})
    assert tag([ended, pod(GPU, name="new")], name="some-name").count == 1


def test_objects_of_this_cluster_say_nothing_of_endpoints_elsewhere(tag, pod):
    world = [pod({"nvidia.com/gpu": "3"})]
    assert tag(world, cluster="east").count == 0
    here = tag(world, cluster="east", options={"cluster": "east"})
    assert (here.count, here.cluster) == (3, "east")
    assert tag(world, options={"cluster": "east"}).cluster == "east"


def test_endpoint_of_a_cluster_is_pointed_out_where_nobody_names_the_cluster_of_the_objects(merged, pod):
    def warnings(where, **options):
        return merged([pod({"nvidia.com/gpu": "3"})], cluster=where, options=options).warnings

    (warning,) = warnings("east")
    assert "in cluster 'east'" in warning
    assert "write cluster: east" in warning
    assert [*warnings(""), *warnings("east", cluster="east"), *warnings("east", cluster="west")] == []


def test_containers_add_up_and_the_largest_init_container_counts(tag, pod):
    def gpus(number, **more):
        return {"name": f"c{number}", "resources": {"limits": {"nvidia.com/gpu": str(number)}}, **more}

    def count(containers, init):
        return tag([pod(spec={"containers": containers, "initContainers": init})]).count

    assert count([gpus(1), gpus(2)], []) == 3
    assert count([gpus(1), gpus(2)], [gpus(4), gpus(2)]) == 4
    assert count([gpus(1), gpus(2)], [gpus(1)]) == 3
    assert count([gpus(1)], [gpus(2, restartPolicy="Always")]) == 3


def test_declaration_goes_before_all_other_sources(documents, tag, pod, node):
    figures = {"count": 2, "memory": "70Gi", "cost_per_hour": 3.0, "spot": True}
    declared = AcceleratorDeclaration(accelerator_class="nvidia-h100-80gb", **figures)
    found = tag([*documents("ome-classes"), node({}), pod(GPU)], accelerator=declared)
    assert (found.classes, found.count, found.memory_bytes) == (("nvidia-h100-80gb",), 2, 70 * GIB)
    assert (found.cost.per_hour, found.cost.spot_per_hour, found.cost.spot) == (3.0, 1.9, True)
    assert found.provenance["count"] == "endpoint list"
    assert found.provenance["spot_per_hour"] == "AcceleratorClass/nvidia-h100-80gb"


def test_declared_product_of_the_catalogue(tag):
    found = tag([], accelerator=AcceleratorDeclaration(accelerator_class="h100", count=4))
    assert (found.vendor, found.model, found.count, found.classes) == ("nvidia", "h100", 4, ())
    assert found.tflops() == 4 * 989


def test_declared_slice_and_declared_sharing(tag):
    found = tag([], accelerator=AcceleratorDeclaration(accelerator_class="a100-sxm-40gb", profile="3g.20gb"))
    assert (found.partition.profile, found.memory_bytes) == ("3g.20gb", 20 * GIB)
    assert found.partition.compute_fraction == 3 / 7
    shared = tag([], accelerator=AcceleratorDeclaration(accelerator_class="t4", sharers=4, count=1))
    assert (shared.partition.kind, shared.memory_bytes) == (Sharing.TIME_SLICING, 4 * GIB)
    assert shared.tflops() == 65 / 4


def test_declared_class_of_slices_makes_a_slice(documents, tag):
    declared = AcceleratorDeclaration(accelerator_class="nvidia-a100-40gb-mig-3g20gb")
    found = tag(documents("ome-classes"), accelerator=declared)
    assert (found.partition.profile, found.memory_bytes) == ("3g.20gb", 20 * GIB)
    assert found.cost.per_hour * found.partition.memory_fraction == pytest.approx(0.9)


def test_ome_1_defect_10_bare_memory_of_a_declaration_is_read_as_gib_with_a_warning(merged):
    found = merged(accelerator=AcceleratorDeclaration(accelerator_class="h100", memory="80"))
    assert found.tag.memory_bytes == 80 * GIB
    assert found.warnings == ("endpoint list: memory is '80', which means bytes: read as 80Gi; write 80Gi",)


def test_declared_profile_that_the_class_cannot_have_is_a_slice_of_unknown_size(documents, merged):
    declared = AcceleratorDeclaration(accelerator_class="nvidia-h100-80gb", profile="3g.20gb")
    found = merged(documents("ome-classes"), accelerator=declared)
    (warning,) = found.warnings
    assert warning.startswith("endpoint list: profile is '3g.20gb', which 'h100' cannot have: write one of 1g.10gb")
    assert (found.tag.model, found.tag.memory_bytes, found.tag.cost_per_hour()) == ("h100", None, None)


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({"endpoint": "vllm-*"}, True),
        ({"endpoint": "llm/vllm-a"}, True),
        ({"endpoint": "other/*"}, False),
        ({"node": "gpu-node-?"}, True),
        ({"node": "gpu-node-2"}, False),
        ({"labels": {"pool": "x"}}, True),
        ({"labels": {"pool": "x"}, "endpoint": "sglang-*"}, False),
    ],
)
def test_overrides_by_name_label_or_node(tag, pod, where, fits):
    override = AcceleratorOverride(accelerator=AcceleratorDeclaration(accelerator_class="l4"), **where)
    found = tag([pod(GPU)], labels={"pool": "x"}, options={"overrides": (override,)})
    assert found.model == ("l4" if fits else "")


def test_options_are_read_from_a_file():
    written = {
        "trustPodLabels": True,
        "onMissingClaim": "Drain",
        "instanceTypes": {"x.large": {"product": "l4", "count": 2}},
        "overrides": [{"endpoint": "a", "accelerator": {"class": "h100", "count": 2}}],
    }
    options = msgspec.convert(written, TaggerOptions)
    assert options.instance_types["x.large"].count == 2
    assert options.overrides[0].accelerator.accelerator_class == "h100"


def test_override_that_would_fit_everything_by_oversight_is_refused():
    with pytest.raises(ValueError, match="an override has no condition"):
        AcceleratorOverride(accelerator=AcceleratorDeclaration())


def test_spot_comes_from_the_node_and_decides_the_price(documents, tag, pod, node):
    def price(labels):
        return tag([*documents("ome-classes"), node({**H100, **labels}), pod(GPU)]).cost_per_hour()

    assert price({"karpenter.sh/capacity-type": "spot"}) == 1.90
    assert price({"karpenter.sh/capacity-type": "on-demand"}) == 4.25
    assert price({}) == 4.25


def test_ome_14_machine_type_is_the_last_resort_and_may_be_overridden(tag, pod, node):
    world = [node({"node.kubernetes.io/instance-type": "p5.48xlarge"}), pod({"nvidia.com/gpu": "2"})]
    found = tag(world)
    assert (found.model, found.count) == ("h100", 2)
    other = tag(world, options={"instance_types": {"p5.48xlarge": InstanceType("h200", 8)}})
    assert other.model == "h200"
    assert tag(world[:1], node="gpu-node-1").count == 8


@pytest.mark.parametrize(("machine", "share"), [("Standard_NV6ads_A10_v5", 6), ("Standard_NV18ads_A10_v5", 2)])
def test_ome_14_machine_type_with_a_part_of_a_gpu(tag, pod, node, machine, share):
    labels = {"node.kubernetes.io/instance-type": machine, "kubernetes.azure.com/accelerator": "nvidia"}
    found = tag([node(labels), pod(GPU)])
    assert (found.model, found.count, found.memory_bytes) == ("a10", 1, 24 * GIB // share)
    assert (found.partition.kind, found.tflops()) == (Sharing.VGPU, pytest.approx(125 / share))


def test_devices_of_a_node_are_not_all_the_endpoints_where_others_ask_for_some(tag, pod, node, node_labels):
    alone = [node(node_labels["h100-node"])]
    other = pod(GPU, name="other", uid="o", status={"podIP": "10.0.0.99"})
    assert tag(alone, node="gpu-node-1").count == 8
    assert tag([*alone, other], node="gpu-node-1").count == 0


def test_labels_of_another_product_on_a_mixed_node_do_not_describe_the_device(documents, tag, node):
    labels = {
        "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.compute.major": "7",
        "karpenter.sh/capacity-type": "spot",
    }  # fmt: skip
    found = tag([*documents("dra"), node(labels)])
    assert (found.model, found.compute_capability, found.cost.spot) == ("h100", (9, 0), True)
    assert "nvidia.com/gpu.product" not in found.attributes


def test_every_field_says_where_it_is_from(documents, tag, node):
    found = tag([*documents("ome-classes", "dra"), node(H100)])
    claim = "ResourceClaim/llm/vllm-a-gpu-x7k2p"
    of_class = "AcceleratorClass/nvidia-h100-80gb"
    assert found.provenance["devices"] == found.provenance["memory_bytes"] == claim
    assert found.provenance["per_hour"] == found.provenance["bandwidth_gbps"] == of_class


def test_tpu_slice(tag, pod, node, node_labels):
    found = tag([node(node_labels["gke-tpu"]), pod({"google.com/tpu": "8"})])
    assert (found.kind, found.vendor, found.count) == (AcceleratorKind.TPU, "google", 8)
