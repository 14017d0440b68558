# SPDX-License-Identifier: Apache-2.0
"""Documents into objects: what is bad costs itself alone."""

import json

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
    api, status = "inference.redhat.com/v1alpha1", {"state": "inUse"}
    return manifest(api, "AllocationClaim", name, "das-operator", spec=spec, status=status)


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
    [("80Gi", 80 * GIB), ("80G", 80 * 10**9), ("0.5", 0.5), ("1e2", 100), ("500m", 0.5), (40, 40)],
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
    first, second, _ = decoded.problems
    assert first.startswith("claims.yaml: AllocationClaim das-operator/text is skipped: spec is not valid JSON:")
    assert "profile" in second


def test_is_1_raw_spec_may_be_data_or_text():
    data = {"profile": "1g.5gb+me", "gpuUUID": "GPU-a", "migPlacement": {"size": 1, "start": 2}}
    first, second = decode([claim(json.dumps(data)), claim(data)], "claims").of(AllocationClaim)
    assert first == second
    assert (first.spec.gpu_uuid, first.spec.mig_placement.start) == ("GPU-a", 2)


def test_dra_1_all_versions_of_a_slice_read_alike():
    attributes = {"type": {"string": "gpu"}, "cudaComputeCapability": {"version": "9.0.0"}, "example.com/n": {"int": 3}}
    content = {"attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}

    def slices(version, device):
        spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n", "generation": 1}}
        spec["devices"] = [{"name": "gpu-0", **device}]
        return manifest(f"resource.k8s.io/{version}", "ResourceSlice", "s", spec=spec)

    decoded = decode([slices("v1", content), slices("v1beta2", content), slices("v1beta1", {"basic": content})])
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
    def claims(version, **request):
        spec = {"devices": {"requests": [{"name": "gpu", **request}]}}
        return manifest(f"resource.k8s.io/{version}", "ResourceClaim", "c", "llm", spec=spec)

    subs = [{"name": "big", "deviceClassName": "h100"}, {"name": "small", "deviceClassName": "t4"}]
    exactly, flat, alternatives = decode(
        [
            claims("v1", exactly={"deviceClassName": "gpu.nvidia.com"}),
            claims("v1beta1", deviceClassName="gpu.nvidia.com"),
            claims("v1beta2", firstAvailable=subs),
        ]
    ).of(ResourceClaim)
    assert exactly.device_classes == flat.device_classes == {"gpu": "gpu.nvidia.com"}
    assert alternatives.device_classes == {"gpu/big": "h100", "gpu/small": "t4"}


def test_dra_1_device_classes_and_taint_rules():
    spec = {"extendedResourceName": "nvidia.com/gpu", "selectors": [{"cel": {"expression": "true"}}]}
    device_class = manifest("resource.k8s.io/v1", "DeviceClass", "gpu.nvidia.com", spec=spec)
    spec = {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "k", "effect": "NoExecute"}}
    rule = manifest("resource.k8s.io/v1alpha3", "DeviceTaintRule", "broken", spec=spec)
    decoded = decode([device_class, rule])
    assert decoded.of(DeviceClass)[0].extended_resource_name == "nvidia.com/gpu"
    assert decoded.of(DeviceTaintRule)[0].taint.effect == "NoExecute"


def test_defect_26_unknown_version_of_a_known_kind_is_a_problem_and_the_other_prefix_is_read_with_a_warning():
    unknown, prefixed = (decode([manifest(api, "AcceleratorClass", "a")]) for api in ("ome.io/v9", "ome.ai/v1beta1"))
    assert unknown.problems == ("file: AcceleratorClass a is skipped: apiVersion is 'ome.io/v9': write ome.io/v1beta1",)
    assert (len(prefixed.of(AcceleratorClass)), prefixed.skipped) == (1, 0)
    assert prefixed.problems == ("file: AcceleratorClass a is read as group ome.io: write ome.io instead of ome.ai",)


@pytest.mark.parametrize(
    "document",
    [
        manifest("ome.io/v1beta1", "BenchmarkJob", "x", spec=7),
        manifest("apps/v1", "Deployment", "x"),
        manifest("v1", "ConfigMap", "something-else", data={"a": "b"}),
        None,
    ],
)
def test_kinds_that_are_not_used_are_passed_over(document):
    decoded = decode([document])
    assert (decoded.objects, decoded.problems, decoded.skipped) == ((), (), 0)


def test_lists_are_unpacked():
    names = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "namespace": "llm"}}]
    pods = {"apiVersion": "v1", "kind": "PodList", "items": names}
    decoded = decode([{"apiVersion": "v1", "kind": "List", "items": [pods, manifest("v1", "Node", "n")]}])
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
