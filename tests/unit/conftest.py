# SPDX-License-Identifier: Apache-2.0
"""Documents of cluster objects, and an API server that answers as a test says."""

from pathlib import Path

import pytest
import yaml

from epp.kube.access import KubeApi
from tests.support.kube.manifests import manifest
from tests.support.kube.scripted_api import scripted_api

DATA = Path(__file__).parents[1] / "data" / "accelerators"


@pytest.fixture
def documents():
    """Documents of fixture files, by file name without suffix."""

    def read(*names):
        return [each for name in names for each in yaml.safe_load_all((DATA / f"{name}.yaml").read_text())]

    return read


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
        return manifest("v1", "Node", name, metadata={"labels": labels or {}}, status=status)

    return make


@pytest.fixture
def accelerator_class():
    """Make an AcceleratorClass."""

    def make(name, **spec):
        return {"apiVersion": "ome.io/v1beta1", "kind": "AcceleratorClass", "metadata": {"name": name}, "spec": spec}

    return make


@pytest.fixture
async def script():
    """What an API server has and allows, and what it was asked."""
    async with scripted_api() as script:
        yield script


@pytest.fixture
async def scripted(script, tmp_path):
    """Access to the API server of the script."""
    api = KubeApi(script.write_kubeconfig(tmp_path / "kubeconfig"))
    yield api
    await api.close()
