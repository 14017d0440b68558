# SPDX-License-Identifier: Apache-2.0
"""Fixture files decoded, and endpoints tagged by them."""

from pathlib import Path

import pytest
import yaml

from epp.framework.endpoint import Endpoint
from epp.hardware.endpoint_context import TaggerOptions
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder
from tests.support.decoded_objects import decode

DATA = Path(__file__).parents[2] / "data" / "accelerators"


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
def merged(inventory_of):
    """Tag the endpoint of a pod, `llm/vllm-a` unless said otherwise, by documents; return what else was found, too."""

    def built(documents=(), *, name="vllm-a", previous=None, options=None, prices=None, **endpoint):
        tagger = TagBuilder(inventory_of(documents, previous), TaggerOptions(**options or {}), prices=prices)
        return tagger.build(Endpoint(name, endpoint.pop("address", "10.0.0.11"), 8000, "llm", **endpoint))

    return built


@pytest.fixture
def tag(merged):
    return lambda documents, **more: merged(documents, **more).tag
