# SPDX-License-Identifier: Apache-2.0
"""Whether a model is frozen, as labels and annotations say."""

import pytest

from epp.framework.accelerators.tag import FROZEN


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("domain", ["llm-d.ai", "tensor-fusion.ai"])
def test_tf_20_pod_says_where_it_is_frozen_to(tag, pod, place, field, domain):
    found = tag([pod({"nvidia.com/gpu": "1"}, metadata={field: {f"{domain}/frozen": place}})])
    assert found.attributes[FROZEN] == place


def test_tf_20_endpoint_list_says_it_too(tag):
    assert tag([], labels={"llm-d.ai/frozen": "disk"}).attributes[FROZEN] == "disk"
    assert FROZEN not in tag([]).attributes


def test_tf_20_model_server_on_cpus_can_be_frozen(tag, pod):
    assert tag([pod(metadata={"labels": {"llm-d.ai/frozen": "disk"}})]).attributes[FROZEN] == "disk"


def test_tf_20_custom_domain_is_that_of_tensor_fusion(tag, pod):
    documents = [pod(metadata={"annotations": {"gpu.example.com/frozen": "disk"}})]
    assert FROZEN not in tag(documents).attributes
    assert tag(documents, options={"tensor_fusion_domain": "gpu.example.com"}).attributes[FROZEN] == "disk"


def test_tf_20_other_values_are_said_and_ignored(merged):
    found = merged(labels={"llm-d.ai/frozen": "ice"})
    assert FROZEN not in found.tag.attributes
    assert found.warnings == ("llm-d.ai/frozen is 'ice': write memory or disk, or remove it; it is ignored",)
