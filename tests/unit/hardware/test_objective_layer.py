# SPDX-License-Identifier: Apache-2.0
"""The layer of objects: bounds by model, objective and pool, from files and from the cluster."""

import asyncio
from pathlib import Path

import pytest
import yaml

from epp.framework import Candidates, Headers, Request, RequestBody
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selections
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.testing import candidates
from epp.hardware.inventory import Inventory
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.kube.objects.decode import ALL_KINDS, decode_object
from epp.kube.objects.followed import FollowedObjects
from tests.support.config_files import replace
from tests.support.hardware_objects import GIB, accelerator_class
from tests.support.kube.manifests import POLICIES, POOLS, manifest
from tests.support.plugins import built
from tests.support.waiting import until

POOL = candidates(labels=[{}, {}])


def build(**parameters) -> AcceleratorSelectionProducer:
    return built(AcceleratorSelectionProducer, parameters)


def select(plugin, model: str = "m", objective: str = "", pool: Candidates = POOL, **asked: str) -> Selections:
    fields = [(f"x-epp-accelerator-{name.replace('_', '-')}", value) for name, value in asked.items()]
    if objective:
        fields.append(("x-llm-d-inference-objective", objective))
    request = Request("r", RequestBody(model=model), Headers(fields))
    plugin.produce(request, pool)
    plugin.admit(request, pool)
    found = request.get(ACCELERATOR_SELECTION)
    assert found is not None
    return found


def memory(*args, **asked) -> float:
    """Return the least memory in GiB that a request needs."""
    return select(*args, **asked).default.min_memory_bytes / GIB


def price(*args, **asked) -> float | None:
    """Return the highest price of an endpoint for a request."""
    return select(*args, **asked).default.max_endpoint_cost_per_hour


def service(name: str = "chat", *, namespace: str = "team-a", model: str = "llama", annotations=None, **spec) -> dict:
    metadata, spec = {"annotations": annotations or {}}, {"model": {"name": model}, **spec}
    return manifest("ome.io/v1beta1", "InferenceService", name, namespace, metadata=metadata, spec=spec)


def runtime(name: str, *, kind: str = "ClusterServingRuntime", namespace: str = "", **requirements) -> dict:
    return manifest("ome.io/v1beta1", kind, name, namespace, spec={"acceleratorRequirements": requirements})


def inference_pool(name: str, threshold: str) -> dict:
    metadata = {"annotations": {"ome.io/cost-threshold": threshold}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": [{"number": 8000}]}
    return manifest(POOLS, "InferencePool", name, "team-a", metadata=metadata, spec=spec)


def objective(name: str, **annotations: str) -> dict:
    texts = {f"ome.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return manifest(POLICIES, "InferenceObjective", name, metadata={"annotations": texts}, spec={"priority": 1})


@pytest.fixture
def objects(tmp_path):
    def write(*documents: dict) -> str:
        path: Path = tmp_path / "objects.yaml"
        replace(path, yaml.safe_dump_all(documents))
        return str(path)

    return write


def selector(**constraints) -> dict:
    return {"acceleratorSelector": {"constraints": constraints}}


def test_ome_5_the_selector_of_a_service_is_for_requests_for_its_model_or_name(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)))])
    for model in ("llama", "chat", "team-a/chat"):
        assert memory(plugin, model) == 40
    assert memory(plugin, "another") == 0


def test_ome_5_a_request_for_another_name_is_for_the_service_whose_pods_the_endpoints_are(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)), service("other", model="qwen"))])
    theirs = candidates(labels=[{"ome.io/inferenceservice": "chat"}] * 2)
    assert memory(plugin, "an-adapter", pool=theirs) == 40
    mixed = candidates(labels=[{"ome.io/inferenceservice": "chat"}, {"ome.io/inferenceservice": "other"}])
    assert memory(plugin, "an-adapter", pool=mixed) == 0
    partly = candidates(labels=[{"ome.io/inferenceservice": "chat"}, {}])
    assert memory(plugin, "an-adapter", pool=partly) == 0


def test_ome_17_service_of_the_proposal_is_for_its_requests_and_its_lists_replace_those_of_the_runtime(objects):
    order = [{"class": "a100", "conditions": [{"requestSize": "<2048"}]}]
    path = objects(
        runtime("sglang", requiredCapabilities={"memoryGB": "40Gi"}, preferenceOrder=order),
        service(runtime={"name": "sglang"}, acceleratorSelector={"strategy": "cost", "nodeSelector": {"zone": "a"}}),
        service("other", model="qwen", runtime={"name": "sglang"}, acceleratorSelector={"preferredClasses": ["h100"]}),
    )
    plugin = build(paths=[path], defaults={"policy": "FirstAvailable", "nodeSelector": {"pool": "x"}})
    found = select(plugin, "llama").default
    assert (found.policy, found.node_selector) == ("cost", {("zone", "a"), ("pool", "x")})
    assert [each.accelerator_class for each in found.preference_order] == ["a100"]
    other = select(plugin, "qwen").default
    assert other.policy == "first-available"
    assert [(each.accelerator_class, each.score) for each in other.preference_order] == [("h100", 100)]
    assert memory(plugin, "llama") == memory(plugin, "qwen") == 40


def test_ome_5_of_two_services_with_one_model_that_with_endpoints_counts_or_else_the_stricter_of_both(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)), service("spare", **selector(minMemory=80)))])
    theirs = candidates(labels=[{"ome.io/inferenceservice": "chat"}])
    assert memory(plugin, "llama", pool=theirs) == 40
    assert memory(plugin, "llama") == 80


def test_ome_5_layers_go_from_configuration_over_runtime_service_and_objective_to_headers(objects):
    path = objects(
        runtime("sglang", acceleratorClasses=["a100", "h100", "b200"], minMemory=20),
        service(
            runtime={"name": "sglang"},
            acceleratorSelector={
                "acceleratorClass": "h100",
                "constraints": {"excludedClasses": ["t4"], "minMemory": 40},
            },
        ),
        objective("gold", accelerator_class="b200", cost_threshold="9"),
    )
    plugin = build(
        paths=[path],
        defaults={"acceleratorClasses": ["l4"], "excludedClasses": ["k80"], "minMemory": 60, "policy": "cost"},
        allowRequestOverrides=True,
        requestOverrides="lenient",
    )
    assert select(plugin, "unknown").default.classes == ("l4",)
    of_service = select(plugin, "llama").default
    assert (of_service.classes, of_service.min_memory_bytes) == (("h100",), 60 * GIB)  # a list replaces, a minimum adds
    assert of_service.excluded_classes == {"k80", "t4"}
    of_objective = select(plugin, "llama", "gold").default
    assert (of_objective.classes, of_objective.max_endpoint_cost_per_hour) == (("b200",), 9.0)
    assert of_objective.policy == "cheapest"
    asked = select(plugin, "llama", "gold", max_cost_per_hour="99", exclude_class="l40s").default
    assert asked.max_endpoint_cost_per_hour == 9.0  # a client cannot loosen
    assert asked.excluded_classes == {"k80", "t4", "l40s"}


def test_ome_5_the_runtime_is_that_of_the_cluster_or_else_that_of_the_namespace(objects):
    documents = [
        service(runtime={"name": "vllm"}),
        runtime("vllm", kind="ServingRuntime", namespace="team-a", minMemory=16),
        runtime("vllm", kind="ServingRuntime", namespace="team-b", minMemory=99),
    ]
    assert memory(build(paths=[objects(*documents)]), "llama") == 16
    documents.append(runtime("vllm", minMemory=24))
    assert memory(build(paths=[objects(*documents)]), "llama") == 24
    documents[0] = service(runtime={"name": "vllm", "kind": "ServingRuntime"})
    assert memory(build(paths=[objects(*documents)]), "llama") == 16


def test_ome_5_engine_and_decoder_bound_their_profiles_above_the_configured_components(objects):
    override = {"acceleratorOverride": {"acceleratorClass": "h100"}}
    cheap = {"acceleratorOverride": {"policy": "Cheapest", "constraints": {"minMemory": 24}}}
    both = build(
        paths=[objects(service(engine=override, decoder=cheap))],
        components={"prefill": {"acceleratorClasses": ["a100"]}, "decode": {"minMemory": 16}},
    )
    found = select(both, "llama")
    assert found.of("prefill").classes == ("h100",)
    assert (found.of("decode").policy, found.of("decode").min_memory_bytes) == ("cheapest", 24 * GIB)
    assert found.of("default").classes == ()
    alone = build(paths=[objects(service(engine=override))])
    assert select(alone, "llama").of("default").classes == ("h100",)  # without a decoder, the engine does it all
    named = build(paths=[objects(service(engine=override, decoder=cheap))], engineProfile="p", decoderProfile="d")
    assert select(named, "llama").of("p").classes == ("h100",)
    assert select(named, "llama").of("d").policy == "cheapest"


def test_ome_7_the_threshold_of_the_pool_is_for_all_requests_and_the_stricter_one_counts(objects):
    path = objects(inference_pool("main", "7"), service(annotations={"ome.io/cost-threshold": "5"}))
    plugin = build(paths=[path])
    assert price(plugin, "unknown") == 7.0
    assert price(plugin, "llama") == 5.0
    generous = build(paths=[path], defaults={"maxCostPerHour": 3})
    assert price(generous, "llama") == 3.0


def test_ome_7_of_several_pools_the_named_one_counts_or_else_the_strictest(objects):
    path = objects(inference_pool("main", "7"), inference_pool("other", "2"))
    assert price(build(paths=[path])) == 2.0
    assert price(build(paths=[path], poolName="main")) == 7.0


def test_ome_7_a_threshold_that_is_no_price_is_said_and_ignored(objects):
    plugin = build(paths=[objects(inference_pool("main", "-7"), inference_pool("b", "cheap"))])
    assert price(plugin) is None
    annotation, remedy = "metadata.annotations[ome.io/cost-threshold]", "write US dollars an hour, such as 0.5"
    assert [(each.kind, each.object, each.reason) for each in plugin.inputs.ignored] == [
        ("InferencePool", f"team-a/{name}", f"{annotation} is {text!r}: {remedy}")
        for name, text in (("main", "-7"), ("b", "cheap"))
    ]


def test_ome_5_unknown_classes_and_runtimes_are_said_and_the_rest_counts(objects):
    path = objects(
        accelerator_class("h100"),
        runtime("vllm"),
        service(
            runtime={"name": "vlm"},
            **selector(excludedClasses=["h100", "h-hundred"], minMemory="many", requiredFeatures=["fp8"]),
        ),
    )
    plugin = build(paths=[path])
    found = select(plugin, "llama").default
    assert (found.required_features, found.excluded_classes) == ({"fp8"}, {"h100", "h-hundred"})
    reasons = [each.reason for each in plugin.inputs.ignored]
    assert [reason.split(" is ")[0] for reason in reasons[:1]] == ["spec.acceleratorSelector.constraints.minMemory"]
    assert "names class 'h-hundred', and there is no such AcceleratorClass" in reasons[1]
    assert reasons[2] == "spec.runtime.name is 'vlm', which is not a runtime: correct the name, or create it"


def test_ome_3_configuration_of_a_runtime_that_bounds_no_request_is_said_and_its_requirements_count(objects):
    made = runtime("vllm", minMemory=40)
    made["spec"]["supportedModelFormats"] = [{"acceleratorConfig": {"h100": {"minMemoryPerBillionParams": 2}}}]
    plugin = build(paths=[objects(made, service(runtime={"name": "vllm"}))])
    (ignored,) = plugin.inputs.ignored
    assert str(ignored).endswith(
        ": ClusterServingRuntime vllm: spec.supportedModelFormats[0].acceleratorConfig[h100].minMemoryPerBillionParams "
        "is 2, but does not limit requests: write the requirement of the model as "
        "spec.acceleratorRequirements.minMemory; it is ignored"
    )
    assert memory(plugin, "llama") == 40


async def test_ome_5_files_are_followed_and_a_worse_version_changes_nothing(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)))])
    objects(service(**selector(minMemory=80)))
    assert await plugin.check()
    assert memory(plugin, "llama") == 80
    objects(service(**selector(minMemory="many")))
    await plugin.check()
    assert memory(plugin, "llama") == 80
    (problem,) = plugin.inputs.problems
    assert str(problem).endswith("objects.yaml: InferenceService team-a/chat stays as it was: " + problem.reason)
    objects()
    await plugin.check()
    assert memory(plugin, "llama") == 80  # an empty file is a mistake for a while


async def test_ome_5_services_in_the_files_of_a_pool_bound_its_requests(objects):
    plugin = build()
    pool = objects(service(**selector(minMemory=40)))
    plugin.read_files([pool])
    assert memory(plugin, "llama") == 40
    objects(service(**selector(minMemory=80)))
    assert await plugin.check()
    assert memory(plugin, "llama") == 80


async def test_ome_5_objects_of_the_cluster_count_and_one_in_a_file_precedes(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)))])
    kind = ObjectKind("ome.io", "InferenceService")
    theirs = {
        "team-a/chat": decode_object(service(**selector(minMemory=99))),
        "team-a/more": decode_object(service("more", model="qwen", **selector(minMemory=16))),
    }
    affected = await plugin.objects_changed([ObjectsOfKind(kind, theirs, frozenset(theirs))])
    assert not affected(POOL[0])
    assert memory(plugin, "llama") == 40
    assert memory(plugin, "qwen") == 16
    await plugin.objects_changed([ObjectsOfKind(kind, {}, frozenset(theirs))])
    assert memory(plugin, "qwen") == 0


def test_ome_5_the_cluster_is_read_unless_told_otherwise():
    assert {kind.kind for kind in build().kinds} == {
        *("AcceleratorClass", "ClusterServingRuntime", "ServingRuntime", "InferenceService"),
        *("InferenceObjective", "InferencePool"),
    }
    assert build(readCluster=False).kinds == ()


def test_ome_5_made_up_models_and_objectives_are_not_remembered(objects):
    plugin = build(paths=[objects(service(), objective("gold", cost_threshold="9"))])
    for number in range(50):
        select(plugin, f"m{number}", f"o{number}")
    _, known = plugin._used
    assert len(known) == 1


async def test_ome_5_follows_until_cancelled(objects):
    plugin = build(paths=[objects(service(**selector(minMemory=40)))])
    task = asyncio.create_task(plugin.follow(lambda _: None))
    try:
        objects(service(**selector(minMemory=80)))
        await until(lambda: memory(plugin, "llama") == 80, "the new version counts")
    finally:
        task.cancel()
    await build().follow(lambda _: None)  # nothing to follow


def test_ome_5_the_inventory_of_hardware_says_what_is_wrong_with_services(objects):
    path = objects(
        accelerator_class("h100"),
        service(annotations={"ome.io/cost-threshold": "-3"}, **selector(excludedClasses=["h-1"])),
    )
    change = FollowedObjects([path], owner="test", grace_period="0s", kinds=ALL_KINDS).read(0.0)
    inventory = Inventory.build(change.files)
    assert (inventory.remarks, inventory.ignored) == ((), ())  # of another plugin, which logs and counts them
    threshold, unknown = inventory.other_problems
    assert threshold == (
        f"{path}: InferenceService team-a/chat: metadata.annotations[ome.io/cost-threshold] is '-3': write US dollars "
        "an hour, such as 0.5; it is ignored"
    )
    assert "names class 'h-1', and there is no such AcceleratorClass" in unknown
