# SPDX-License-Identifier: Apache-2.0
"""Placement templates of the cluster, as each endpoint sees them."""

import pytest

from epp.framework.accelerators.arrays import NO_PLACEMENT, PlacementMode, PlacementTemplate
from epp.framework.endpoint import Endpoint
from epp.hardware.endpoint_context import TaggerOptions
from epp.hardware.tag_builder import TagBuilder
from tests.support.kube.manifests import manifest


def template(name="packed", **placement):
    return manifest("tensor-fusion.ai/v1", "SchedulingConfigTemplate", name, spec={"placement": placement})


def gpu_pool(name="pool-a", template="packed"):
    return manifest("tensor-fusion.ai/v1", "GPUPool", name, spec={"schedulingConfigTemplate": template})


def connections(number):
    return {"type": "avoidTooMuchConnectionsOnSameGPU", "params": {"connectionNum": number}}


@pytest.fixture
def placement(inventory_of):
    """Placement of the endpoint of a pod, and the ignored values of the objects."""

    def found(documents, *, options=None, **endpoint):
        inventory = inventory_of(documents)
        builder = TagBuilder(inventory, TaggerOptions(**options or {}))
        context = builder.context(Endpoint("vllm-a", "10.0.0.11", 8000, "llm", **endpoint))
        return builder.placement(context), tuple(map(str, inventory.ignored))

    return found


def test_tf_1_endpoint_has_the_template_of_its_pool(placement, documents):
    found, problems = placement([*documents("tensor-fusion"), gpu_pool(), template(mode="CompactFirst")])
    assert found.template("") == PlacementTemplate(name="packed", mode=PlacementMode.COMPACT_FIRST)
    assert found.template("default") == PlacementTemplate(name="default", mode=PlacementMode.NODE_COMPACT)
    assert found.template("other") is None
    assert problems == ()


def test_tf_1_pool_may_be_known_from_the_gpu_alone(placement, documents):
    objects = [*documents("tensor-fusion"), gpu_pool(), template()]
    del objects[-3]["metadata"]["annotations"]["tensor-fusion.ai/gpupool"]
    assert placement(objects)[0].own == "packed"


@pytest.mark.parametrize("domain", ["tensor-fusion.ai", "gpu.example.com"])
def test_tf_1_custom_domain_counts_for_pools_too(placement, pod, domain):
    annotated = pod(metadata={"annotations": {f"{domain}/gpupool": "pool-a"}})
    objects = [annotated, gpu_pool(), template()]
    assert placement(objects, options={"tensor_fusion_domain": domain})[0].own == "packed"
    assert placement(objects, options={"tensor_fusion_domain": "other.ai"})[0].own == ""


def test_tf_1_gpu_filters_and_local_gpus(placement, documents):
    filters = [connections(150), connections("90"), {"type": "avoidDifferentZone"}]
    objects = [*documents("tensor-fusion"), gpu_pool(), template(gpuFilters=filters, allowUsingLocalGPU=False)]
    found, problems = placement(objects)
    assert problems == ()
    assert found.template("") == PlacementTemplate(
        name="packed", most_connections=90, zone_label="topology.kubernetes.io/zone", allow_local_gpu=False
    )
    assert found.is_local  # pod and GPU are on gpu-node-1


def test_tf_1_unknown_mode_is_said_and_the_default_used(placement):
    found, problems = placement([template(mode="Tetris")])
    assert found.templates["packed"].mode is PlacementMode.NODE_COMPACT
    (problem,) = problems
    assert problem == (
        "test: SchedulingConfigTemplate packed: spec.placement.mode is 'Tetris': write CompactFirst, LowLoadFirst or "
        "NodeCompactGPULowLoad, the default being NodeCompactGPULowLoad; it is ignored"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"type": "avoidMondays"}, "type is 'avoidMondays': write avoidTooMuch"),
        ({}, "type is ''"),
        ({"type": "avoidTooMuchConnectionsOnSameGPU"}, "params.connectionNum is missing: write a whole number"),
        *((connections(bad), f"params.connectionNum is {bad}") for bad in (-3, 0, True)),
        (connections("9" * 30), "params.connectionNum is '99"),
        ({"type": "avoidDifferentZone", "params": {"topologyKey": 7}}, "params.topologyKey is 7: write a label"),
    ],
)
def test_tf_1_invalid_filter_is_said_and_ignored(placement, given, words):
    sound = {"type": "avoidDifferentZone", "params": {"topologyKey": "rack"}}
    found, (problem,) = placement([template(gpuFilters=[given, sound])])
    assert found.templates["packed"] == PlacementTemplate(name="packed", zone_label="rack")
    assert problem.startswith("test: SchedulingConfigTemplate packed: spec.placement.gpuFilters[0].")
    assert words in problem
    assert problem.endswith("; it is ignored")


def test_tf_1_pool_that_names_a_missing_template_is_said(placement, pod):
    annotated = pod(metadata={"annotations": {"tensor-fusion.ai/gpupool": "pool-a"}})
    found, problems = placement([annotated, gpu_pool(template="lost"), template()])
    assert found.template("") is None
    (problem,) = problems
    assert problem == (
        "test: GPUPool pool-a: spec.schedulingConfigTemplate is 'lost': add such a SchedulingConfigTemplate, or "
        "correct the name; it is ignored"
    )


def test_endpoint_of_another_cluster_has_none_of_these_templates(placement):
    assert placement([template()], cluster="elsewhere")[0] == NO_PLACEMENT


def test_endpoints_that_are_alike_share_one_record(inventory_of):
    builder = TagBuilder(inventory_of([template()]))
    one, other = (builder.placement(builder.context(Endpoint(name, "10.0.0.1", 1))) for name in "ab")
    assert one is other
