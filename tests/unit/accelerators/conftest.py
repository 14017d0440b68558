# SPDX-License-Identifier: Apache-2.0
"""Fixture files decoded, and endpoints tagged by them."""

from pathlib import Path

import pytest
import yaml
from decoding import decode

from epp.accelerators.inventory import Inventory
from epp.accelerators.tag_builder import TagBuilder, TaggerOptions
from epp.framework.endpoint import Endpoint

DATA = Path(__file__).parents[2] / "data" / "accelerators"


@pytest.fixture
def documents():
    """Documents of fixture files, by file name without suffix."""

    def read(*names):
        return [each for name in names for each in yaml.safe_load_all((DATA / f"{name}.yaml").read_text())]

    return read


@pytest.fixture
def node_labels():
    """Labels of one node of each kind."""
    return yaml.safe_load((DATA / "node-labels.yaml").read_text())


@pytest.fixture
def inventory_of():
    """Build an inventory of documents, all of which must be sound."""

    def build(documents, previous=None):
        decoded = decode(documents, "test")
        assert decoded.problems == ()
        return Inventory.build([decoded.file], previous)

    return build


@pytest.fixture
def tag(inventory_of):
    """Tag the endpoint of a pod, `llm/vllm-a` unless said otherwise, by documents."""

    def tagged(documents, *, name="vllm-a", previous=None, options=None, **endpoint):
        tagger = TagBuilder(inventory_of(documents, previous), TaggerOptions(**options or {}))
        return tagger.build(Endpoint(name, endpoint.pop("address", "10.0.0.11"), 8000, "llm", **endpoint)).tag

    return tagged


@pytest.fixture
def pod():
    """Make a pod `llm/vllm-a` that asks for resources."""

    def make(resources=None, *, node="gpu-node-1", name="vllm-a", uid="uid-a", ready=True, **more):
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "llm", "uid": uid, **more.pop("metadata", {})},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "vllm", "resources": {"limits": resources or {}}}],
                **more.pop("spec", {}),
            },
            "status": {
                "podIP": "10.0.0.11",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                **more.pop("status", {}),
            },
        }
        assert not more
        return document

    return make


@pytest.fixture
def node():
    """Make a node."""

    def make(labels=None, *, name="gpu-node-1", **status):
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels or {}},
            "status": status,
        }

    return make


@pytest.fixture
def accelerator_class():
    """Make an AcceleratorClass."""

    def make(name, **spec):
        return {"apiVersion": "ome.io/v1beta1", "kind": "AcceleratorClass", "metadata": {"name": name}, "spec": spec}

    return make
