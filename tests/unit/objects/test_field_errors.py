# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an object is said with field, value and remedy."""

import pytest

from epp.kube.objects.last_good import FileObjects
from tests.support.decoded_objects import decode
from tests.support.kube.manifests import manifest

QUANTITY = "write a number, optionally with k, M, G, T, Ki, Mi, Gi or Ti"


def problem_of(document: dict) -> str:
    (problem,) = decode([document]).problems
    return problem.removeprefix("file: ")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (7, "spec is 7: write a mapping"),
        ({"capabilities": {"memoryGB": "80GiB"}}, "spec.capabilities.memoryGB is '80GiB': write 80Gi, without the B"),
        ({"capabilities": {"memoryGB": "lots"}}, f"spec.capabilities.memoryGB is 'lots': {QUANTITY}"),
        ({"capabilities": {"memoryGB": True}}, f"spec.capabilities.memoryGB is true: {QUANTITY}"),
        ({"capabilities": {"memoryGB": [80]}}, f"spec.capabilities.memoryGB is a list: {QUANTITY}"),
        (
            {"capabilities": {"performance": {"fp16Tflops": "fast"}}},
            "spec.capabilities.performance.fp16Tflops is 'fast': write a number",
        ),
        (
            {"capabilities": {"performance": {"sparse": "yes"}}},
            "spec.capabilities.performance.sparse is 'yes': write true or false",
        ),
        ({"resources": {"name": "gpu"}}, "spec.resources is a mapping: write a list"),
        ({"resources": [{"name": "a"}, {"quantity": 1}]}, "spec.resources[1].name is missing: add it"),
        ({"discovery": {"nodeSelector": {1: "x"}}}, "spec.discovery.nodeSelector has the key 1: write it in quotes"),
        (
            {"discovery": {"nodeSelector": {"a": "x", "gpu.com/count": 8, "z": 9}}},
            "spec.discovery.nodeSelector[gpu.com/count] is 8: write it in quotes",
        ),
        ({"vendor": []}, "spec.vendor is a list: write a string"),
        ({"vendor": "x", "model": "y" * 100, "family": {"a": "b"}}, "spec.family is a mapping: write a string"),
    ],
)
def test_class_with_a_bad_field(accelerator_class, spec, problem):
    document = {**accelerator_class("a100"), "spec": spec}
    assert problem_of(document) == f"AcceleratorClass a100 is skipped: {problem}"


def test_long_value_is_cut(accelerator_class):
    problem = problem_of(accelerator_class("a100", capabilities={"memoryGB": "9" * 500}))
    assert f"memoryGB is '{'9' * 59}...: {QUANTITY}" in problem


def test_object_without_name_or_metadata(accelerator_class):
    nameless, bare = accelerator_class("a100"), accelerator_class("a100")
    nameless["metadata"] = {}
    del bare["metadata"]
    assert problem_of(nameless) == "AcceleratorClass without a name is skipped: metadata.name is missing: add it"
    assert problem_of(bare) == "AcceleratorClass without a name is skipped: metadata is missing: add it"


def device(**fields: object) -> dict:
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n"}, "devices": [{"name": "gpu-0"}, fields]}
    return manifest("resource.k8s.io/v1", "ResourceSlice", "s", spec=spec)


def test_document_without_a_readable_identity_keeps_the_objects_that_are_missing_from_its_file(accelerator_class, node):
    before = FileObjects(file="a.yaml").take([accelerator_class("a100"), accelerator_class("h100"), node()])
    after = before.take([accelerator_class("h100"), {"apiVersion": "ome.io/v1beta1", "kind": "AcceleratorClass"}])
    assert [each.name for each in after.held] == ["h100", "a100", "gpu-node-1"]
    assert [problem.kept for problem in after.problems] == [2]
    assert [each.name for each in after.take([accelerator_class("h100")]).held] == ["h100"]


def test_bad_number_among_many_resources(node):
    document = node(allocatable={"cpu": "96", "nvidia.com/gpu": "eight", "memory": "?"})
    assert problem_of(document) == (
        f"Node gpu-node-1 is skipped: status.allocatable[nvidia.com/gpu] is 'eight': {QUANTITY}"
    )


def slice_with(device: dict) -> dict:
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n"}, "devices": [{"name": "gpu-0"}, device]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ({}, "spec.devices[1].name is missing: add it"),
        (
            {"name": "gpu-1", "capacity": {"memory": {"value": "80GB"}}},
            "spec.devices[1].capacity.memory.value is '80GB': write 80G, without the B",
        ),
        (
            {"name": "gpu-1", "attributes": {"gpu.com/index": {"int": "one"}}},
            "spec.devices[1].attributes[gpu.com/index].int is 'one': write a whole number",
        ),
        (
            {"name": "gpu-1", "attributes": {"names": {"strings": "a,b"}}},
            "spec.devices[1].attributes[names].strings is 'a,b': write a list",
        ),
    ],
)
def test_bad_device_of_a_resource_slice(device, problem):
    assert problem_of(slice_with(device)) == f"ResourceSlice s is skipped: {problem}"


def allocation_claim(spec: object) -> dict:
    return manifest("inference.redhat.com/v1alpha1", "AllocationClaim", "c", "das", spec=spec)


def price(text: str) -> dict:
    return manifest("v1", "ConfigMap", "accelerator-unit-costs", "wva", data={"A100": text})


def node_with(**resources: str) -> dict:
    return manifest("v1", "Node", "n", status={"allocatable": {"cpu": "96", **resources, "memory": "?"}})


def taint_rule(**selector: str) -> dict:
    spec = {"deviceSelector": selector, "taint": {"key": "k"}}
    return manifest("resource.k8s.io/v1alpha3", "DeviceTaintRule", "r", spec=spec)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (device(), "spec.devices[1].name is missing: add it"),
        (
            device(name="gpu-1", capacity={"memory": {"value": "80GB"}}),
            "spec.devices[1].capacity.memory.value is '80GB': write 80G, without the B",
        ),
        (
            device(name="gpu-1", attributes={"gpu.com/index": {"int": "one"}}),
            "spec.devices[1].attributes[gpu.com/index].int is 'one': write a whole number",
        ),
        (
            device(name="gpu-1", attributes={"names": {"strings": "a,b"}}),
            "spec.devices[1].attributes[names].strings is 'a,b': write a list",
        ),
        (allocation_claim(None), "spec is missing: add it"),
        (allocation_claim("1g.5gb"), "spec is not valid JSON: '1g.5gb': write a mapping, as YAML or as JSON"),
        (allocation_claim('{"podRef": {}}'), "spec.profile is missing: add it"),
        (
            allocation_claim({"profile": "1g.5gb", "migPlacement": {"size": "one", "start": 0}}),
            "spec.migPlacement.size is 'one': write a whole number",
        ),
        (price("40"), "data.A100 is 40: write a mapping"),
        (price("40 dollars"), "data.A100 is '40 dollars': write JSON such as '{\"cost\": \"40.00\"}'"),
        (price('{"cost": "cheap"}'), f"data.A100.cost is 'cheap': {QUANTITY}"),
        (node_with(**{"nvidia.com/gpu": "eight"}), f"status.allocatable[nvidia.com/gpu] is 'eight': {QUANTITY}"),
        (
            taint_rule(deviceClassName="gpu.nvidia.com"),
            "spec.deviceSelector.deviceClassName is 'gpu.nvidia.com': select by driver, pool and device instead",
        ),
    ],
)
def test_object_of_another_kind_with_a_bad_field(document, problem):
    metadata = document["metadata"]
    name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    assert problem_of(document) == f"{document['kind']} {name} is skipped: {problem}"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (7, "document 2 is skipped: it is 7: write an object with apiVersion, kind and metadata"),
        ({}, "document 2 is skipped: it is empty"),
        ({"kind": "Node"}, "document 2 is skipped: it needs apiVersion and kind, both strings; its keys are kind"),
        ({"apiVersion": "v1", "kind": "NodeList", "items": 7}, "document 2 is skipped: items is 7: write a list"),
        (
            {"apiVersion": "v1", "kind": "List", "items": [{}, "x"]},
            "document 2, items[1] is skipped: it is 'x': write an object with apiVersion, kind and metadata",
        ),
    ],
)
def test_document_that_is_no_object_is_named_by_its_place(node, document, problem):
    assert f"file: {problem}" in decode([node(), document]).problems
