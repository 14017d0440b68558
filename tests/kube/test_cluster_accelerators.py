# SPDX-License-Identifier: Apache-2.0
"""The sample objects of every accelerator API are accepted by the API server, and are decoded as it returns them."""

from pathlib import Path

import pytest
import yaml

from epp.kube.objects.decode import versions_in

SAMPLES = Path(__file__).parents[1] / "data" / "accelerators"
LABELS = SAMPLES / "node-labels.yaml"


@pytest.mark.parametrize("path", sorted(set(SAMPLES.glob("*.yaml")) - {LABELS}), ids=lambda path: path.stem)
async def test_samples_are_accepted_and_decoded(space, path):
    applied = [await space.apply(_for_any(document)) for document in yaml.safe_load_all(path.read_text()) if document]
    documents = [await space.admin.get(document) for document in applied]
    found = list(versions_in(documents))
    assert len(found) == len(applied)
    assert {version.title: version.reason for version in found if version.object is None} == {}
    assert all(version.object.metadata.uid for version in found)
    assert all("managedFields" in document["metadata"] for document in documents)
    assert {version.title: version.object.unknown_fields for version in found if version.object.unknown_fields} == {}


async def test_labels_of_every_vendor_are_accepted_on_nodes(space):
    nodes = [await space.node(name, labels=labels) for name, labels in yaml.safe_load(LABELS.read_text()).items()]
    found = list(versions_in([await space.admin.get(node) for node in nodes]))
    assert [version.object.name for version in found] == [node["metadata"]["name"] for node in nodes]


def _for_any(document: dict) -> dict:
    """Return the document without the namespace and the identity of another cluster."""
    metadata = {key: value for key, value in document["metadata"].items() if key not in {"namespace", "uid"}}
    return {**document, "metadata": metadata}
