# SPDX-License-Identifier: Apache-2.0
"""Objects at one moment."""

from hypothesis import given
from hypothesis import strategies as st

from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder
from tests.support.decoded_objects import decode


def test_of_two_objects_with_one_name_the_last_counts(node):
    decoded = decode([node({"a": "1"}), node({"a": "2"})])
    inventory = Inventory.build([decoded.file])
    assert inventory.nodes["gpu-node-1"].metadata.labels == {"a": "2"}
    assert inventory.remarks == ("Node gpu-node-1 is repeated in file: the last one is used; delete the others",)


def test_objects_of_several_files_are_one_inventory(node, pod):
    inventory = Inventory.build([decode([node(), "x"], "one").file, decode([pod(), 1], "two").file])
    assert (list(inventory.nodes), list(inventory.pods), inventory.skipped) == (["gpu-node-1"], ["llm/vllm-a"], 2)


KINDS = [
    ("v1", "Pod"), ("v1", "Node"), ("v1", "ConfigMap"), ("v1", "List"), ("ome.io/v1beta1", "AcceleratorClass"),
    ("inference.redhat.com/v1alpha1", "Instaslice"), ("inference.redhat.com/v1alpha1", "AllocationClaim"),
    ("inference.redhat.com/v1alpha1", "NodeAccelerator"), ("tensor-fusion.ai/v1", "GPU"),
    ("resource.k8s.io/v1", "ResourceSlice"), ("resource.k8s.io/v1beta1", "ResourceSlice"),
    ("resource.k8s.io/v1", "ResourceClaim"), ("resource.k8s.io/v1", "DeviceTaintRule"),
    ("llmd.ai/v1alpha1", "VariantAutoscaling"),
]  # fmt: skip
KEYS = st.sampled_from(
    [
        *("name", "spec", "status", "devices", "results", "profile", "pool", "driver", "attributes", "data", "uid"),
        *("conditions", "capacity", "requests", "containers", "discovery", "memoryGB", "items", "gpuUUID", "x"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.builds(
    lambda kind, spec, status, more: {
        "apiVersion": kind[0], "kind": kind[1], "metadata": {"name": "vllm-a", "namespace": "llm"},
        "spec": spec, "status": status, **more,
    },
    st.sampled_from(KINDS), JSON, JSON,
    st.dictionaries(st.sampled_from(["metadata", "items", "data"]), JSON, max_size=1),
)  # fmt: skip


@given(st.lists(DOCUMENTS | JSON, max_size=6))
def test_whatever_the_documents_are_endpoints_get_a_tag(documents):
    decoded = decode(documents)
    inventory = Inventory.build([decoded.file])
    TagBuilder(Inventory.build([decoded.file], inventory)).build(Endpoint("vllm-a", "10.0.0.11", 8000, "llm"))
