# SPDX-License-Identifier: Apache-2.0
"""Documents into objects: what is bad costs itself alone."""

from fractions import Fraction

import pytest

from epp.kube.objects.core import Node, Pod, UnitCosts, VariantAutoscaling
from epp.kube.objects.dra import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from epp.kube.objects.instaslice import AllocationClaim, NodeAccelerator
from epp.kube.objects.ome import AcceleratorClass, ResourceFlavor
from epp.kube.objects.tensor_fusion import Gpu, GpuNode, GpuResourceQuota, SchedulingConfigTemplate
from tests.support.decoded_objects import decode
from tests.support.kube.manifests import manifest

GIB = 2**30


def claim(spec, name="claim-1"):
    return manifest(
        "inference.redhat.com/v1alpha1", "AllocationClaim", name, "das-operator", spec=spec, status={"state": "inUse"}
    )


def test_ome_1_every_class_of_the_sample_is_read(documents):
    decoded = decode(documents("ome-classes"), "ome-classes.yaml")
    assert decoded.problems == ()
    memory = {each.name: each.spec.capabilities.memory for each in decoded.of(AcceleratorClass)}
    assert memory == {
        "nvidia-h100-80gb": 80 * GIB,
        "nvidia-a100-40gb-mig-3g20gb": 20 * GIB,
        "amd-mi300x": 192 * GIB,
        "intel-max-1550": 128 * GIB,
        "google-tpu-v5e-2x4": 16 * GIB,
    }


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("80Gi", 80 * GIB),
        ("80G", 80 * 10**9),
        ("0.5", Fraction(1, 2)),
        ("1e2", 100),
        ("500m", Fraction(1, 2)),
        (40, 40),
    ],
)
def test_ome_1_quantities_have_the_full_grammar(accelerator_class, written, number):
    decoded = decode([accelerator_class("a", capabilities={"memoryGB": written})])
    assert decoded.of(AcceleratorClass)[0].spec.capabilities.memory == number


def test_all_kinds_of_the_samples_are_read(documents):
    decoded = decode(documents("instaslice-generation-2", "tensor-fusion", "dra", "kueue-and-costs"), "samples")
    kinds = (NodeAccelerator, AllocationClaim, Gpu, GpuNode, GpuResourceQuota, SchedulingConfigTemplate)
    kinds += (ResourceSlice, ResourceClaim, ResourceFlavor, UnitCosts, VariantAutoscaling, Pod)
    assert {type(each) for each in decoded.objects} == set(kinds)
    assert decoded.problems == ()


def test_tf_1_quota_and_placement_mode(documents):
    decoded = decode(documents("tensor-fusion"), "samples")
    quota = decoded.of(GpuResourceQuota)[0]
    assert (quota.total.requests.tflops, quota.total.requests.vram, quota.single.max_gpu_count) == (500, 200 * GIB, 4)
    assert decoded.of(SchedulingConfigTemplate)[0].mode == "NodeCompactGPULowLoad"


def test_is_1_malformed_claim_is_skipped_counted_and_named():
    bad = [claim("not json", "text"), claim({"podRef": {}}, "no-profile"), claim(None, "no-spec")]
    decoded = decode([*bad, claim({"profile": "1g.5gb"})], "claims.yaml")
    assert [each.spec.profile for each in decoded.of(AllocationClaim)] == ["1g.5gb"]
    assert decoded.skipped == 3
    assert decoded.problems[0].startswith(
        "claims.yaml: AllocationClaim das-operator/text is skipped: spec is not JSON:"
    )
    assert "profile" in decoded.problems[1]


def test_is_1_raw_spec_may_be_data_or_text():
    text = '{"profile": "1g.5gb+me", "gpuUUID": "GPU-a", "migPlacement": {"size": 1, "start": 2}}'
    as_data = {"profile": "1g.5gb+me", "gpuUUID": "GPU-a", "migPlacement": {"size": 1, "start": 2}}
    first, second = decode([claim(text), claim(as_data)], "claims").of(AllocationClaim)
    assert first == second
    assert (first.spec.gpu_uuid, first.spec.mig_placement.start) == ("GPU-a", 2)


def test_dra_1_all_versions_of_a_slice_read_alike():
    attributes = {"type": {"string": "gpu"}, "cudaComputeCapability": {"version": "9.0.0"}, "example.com/n": {"int": 3}}
    capacity = {"memory": {"value": "80Gi"}}

    def slices(version, device):
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1},
            "devices": [device],
        }
        return manifest(f"resource.k8s.io/{version}", "ResourceSlice", "s", spec=spec)

    documents = [
        slices("v1", {"name": "gpu-0", "attributes": attributes, "capacity": capacity}),
        slices("v1beta2", {"name": "gpu-0", "attributes": attributes, "capacity": capacity}),
        slices("v1beta1", {"name": "gpu-0", "basic": {"attributes": attributes, "capacity": capacity}}),
    ]
    decoded = decode(documents, "slices")
    assert decoded.problems == ()
    v1, v1beta2, v1beta1 = decoded.of(ResourceSlice)
    assert v1 == v1beta2 == v1beta1
    assert v1.devices[0].attributes == {
        "gpu.nvidia.com/type": "gpu",
        "gpu.nvidia.com/cudaComputeCapability": (9, 0, 0),
        "example.com/n": 3,
    }
    assert v1.devices[0].capacity == {"gpu.nvidia.com/memory": 80 * GIB}


def test_dra_1_all_forms_of_a_request_read_alike():
    def claims(version, request):
        return manifest(
            f"resource.k8s.io/{version}", "ResourceClaim", "c", "llm", spec={"devices": {"requests": [request]}}
        )

    subs = [{"name": "big", "deviceClassName": "h100"}, {"name": "small", "deviceClassName": "t4"}]
    decoded = decode(
        [
            claims("v1", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}),
            claims("v1beta1", {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}),
            claims("v1beta2", {"name": "gpu", "firstAvailable": subs}),
        ],
        "claims",
    )
    exactly, flat, alternatives = decoded.of(ResourceClaim)
    assert exactly.device_classes == flat.device_classes == {"gpu": "gpu.nvidia.com"}
    assert alternatives.device_classes == {"gpu/big": "h100", "gpu/small": "t4"}


def test_dra_1_device_classes_and_taint_rules():
    decoded = decode(
        [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "gpu.nvidia.com"},
                "spec": {"extendedResourceName": "nvidia.com/gpu", "selectors": [{"cel": {"expression": "true"}}]},
            },
            {
                "apiVersion": "resource.k8s.io/v1alpha3",
                "kind": "DeviceTaintRule",
                "metadata": {"name": "broken"},
                "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "k", "effect": "NoExecute"}},
            },
        ],
        "file",
    )
    assert decoded.of(DeviceClass)[0].extended_resource_name == "nvidia.com/gpu"
    assert decoded.of(DeviceTaintRule)[0].taint.effect == "NoExecute"


def test_unknown_version_of_a_known_kind_is_a_problem():
    document = {"apiVersion": "ome.io/v9", "kind": "AcceleratorClass", "metadata": {"name": "a"}}
    decoded = decode([document])
    assert decoded.problems == ("file: AcceleratorClass a is skipped: apiVersion is 'ome.io/v9': write ome.io/v1beta1",)


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "ome.io/v1beta1", "kind": "BenchmarkJob", "metadata": {"name": "x"}, "spec": 7},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "something-else"}, "data": {"a": "b"}},
        None,
    ],
)
def test_kinds_that_are_not_used_are_passed_over(document):
    decoded = decode([document])
    assert (decoded.objects, decoded.problems, decoded.skipped) == ((), (), 0)


def test_lists_are_unpacked():
    pods = {
        "apiVersion": "v1",
        "kind": "PodList",
        "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "namespace": "llm"}}],
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    decoded = decode([{"apiVersion": "v1", "kind": "List", "items": [pods, node]}])
    assert [each.id for each in decoded.of(Pod)] == ["default/a", "llm/b"]
    assert [each.id for each in decoded.of(Node)] == ["n"]


def test_null_means_absent(pod):
    document = pod()
    document["spec"].update(containers=None, initContainers=None, resourceClaims=None)
    document["metadata"].update(labels=None)
    document["status"].update(podIPs=None, conditions=[None])
    decoded = decode([document])
    assert decoded.problems == ()
    assert decoded.of(Pod)[0].spec.containers == ()


def test_defect_26_the_other_prefix_is_taken_with_a_warning(accelerator_class):
    document = {**accelerator_class("a"), "apiVersion": "ome.ai/v1beta1"}
    decoded = decode([document])
    assert len(decoded.of(AcceleratorClass)) == 1
    assert decoded.skipped == 0
    assert decoded.problems == (
        "file: AcceleratorClass a is read as one of group ome.io: write ome.io instead of ome.ai",
    )
