# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an object is said with field, value and remedy."""

import pytest

from tests.support.decoded_objects import decode

QUANTITY = "write a number, with k, M, G, T, Ki, Mi, Gi or Ti if need be"


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
    kind = {"apiVersion": "inference.redhat.com/v1alpha1", "kind": "AllocationClaim"}
    return {**kind, "metadata": {"name": "c", "namespace": "das"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "spec is missing: add it"),
        ("1g.5gb", "spec is not JSON: '1g.5gb': write a mapping, as YAML or as JSON"),
        ('{"podRef": {}}', "spec.profile is missing: add it"),
        ({"profile": "1g.5gb", "migPlacement": {"size": "one", "start": 0}}, "spec.migPlacement.size is 'one': "),
    ],
)
def test_bad_spec_of_an_allocation_claim(spec, problem):
    assert problem_of(allocation_claim(spec)).startswith(f"AllocationClaim das/c is skipped: {problem}")


@pytest.mark.parametrize(
    ("price", "problem"),
    [
        ("40", "data.A100 is 40: write a mapping"),
        ("40 dollars", "data.A100 is '40 dollars': write JSON such as '{\"cost\": \"40.00\"}'"),
        ('{"cost": "cheap"}', f"data.A100.cost is 'cheap': {QUANTITY}"),
    ],
)
def test_bad_price(price, problem):
    metadata = {"name": "accelerator-unit-costs", "namespace": "wva"}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"A100": price}}
    assert problem_of(document) == f"ConfigMap wva/accelerator-unit-costs is skipped: {problem}"


def test_taint_rule_that_selects_by_class():
    document = {
        "apiVersion": "resource.k8s.io/v1alpha3",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"deviceClassName": "gpu.nvidia.com"}, "taint": {"key": "k"}},
    }
    assert problem_of(document) == (
        "DeviceTaintRule r is skipped: spec.deviceSelector.deviceClassName is 'gpu.nvidia.com': "
        "select by driver, pool and device instead"
    )


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
