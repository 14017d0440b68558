# SPDX-License-Identifier: Apache-2.0
"""Prices of the workload variant autoscaler."""

import pytest

from tests.support.kube.manifests import manifest

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-PCIE-80GB"}
OWNED = {"labels": {"pod-template-hash": "5d9c"}, "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-h100-5d9c"}]}


def test_het_5_unit_costs_are_cents_unless_said_otherwise(documents, tag, pod, node):
    world = [*documents("kueue-and-costs"), node(A100), pod({"nvidia.com/gpu": "2"})]
    found = tag(world)
    assert found.cost.per_hour == pytest.approx(0.40)
    assert found.cost_per_hour() == pytest.approx(0.80)
    assert found.price_source() == "accelerator-unit-costs/A100 in cents"
    in_dollars = tag(world, options={"cost_unit": "dollars"})
    assert (in_dollars.cost.per_hour, in_dollars.price_source()) == (40, "accelerator-unit-costs/A100 in dollars")


def test_het_5_variant_cost_is_that_of_the_whole_endpoint(documents, tag, pod, node):
    world = [*documents("kueue-and-costs"), node(H100), pod({"nvidia.com/gpu": "4"}, metadata=OWNED)]
    found = tag(world)
    assert found.cost_per_hour() == pytest.approx(0.60)
    assert found.provenance["per_hour"] == "VariantAutoscaling/llm/chat-h100 in cents"


@pytest.mark.parametrize(("spec", "warned"), [({}, 0), ({"variantCost": "10.0"}, 1), ({"variantCost": "10"}, 1)])
def test_price_that_nobody_gave_is_unknown(merged, pod, node, spec, warned):
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "chat-h100"}, **spec}
    variant = manifest("llmd.ai/v1alpha1", "VariantAutoscaling", "chat-h100", "llm", spec=spec)
    found = merged([variant, node(H100), pod({"nvidia.com/gpu": "4"}, metadata=OWNED)])
    assert found.tag.cost_per_hour() is None  # a cluster writes 10.0 where nobody wrote anything
    assert "per_hour" not in found.tag.provenance
    assert len(found.warnings) == warned


def test_het_5_pod_of_another_workload_is_not_of_the_variant(documents, tag, pod, node):
    other = {**OWNED, "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-h100-canary-5d9c"}]}
    found = tag([*documents("kueue-and-costs"), node(H100), pod({"nvidia.com/gpu": "4"}, metadata=other)])
    assert found.cost.per_hour is None


def test_het_5_class_goes_before_both(documents, tag, pod, node):
    world = [*documents("kueue-and-costs", "ome-classes"), node(H100), pod({"nvidia.com/gpu": "1"}, metadata=OWNED)]
    assert tag(world).cost.per_hour == 4.25
