# SPDX-License-Identifier: Apache-2.0
"""What InferenceServices, runtimes and annotations say of accelerators, and their values that cannot be used."""

import pytest
import yaml

from epp.framework.accelerators.selection import ANY, Selection
from epp.framework.request_conditions import Condition, Preference
from epp.kube.objects.decode import decode_object, versions_in
from epp.kube.objects.ome import read_annotations, read_requirements, read_selector
from epp.kube.objects.ome_services import (
    ClusterServingRuntime,
    InferenceService,
    ServingRuntime,
    class_faults,
    selection_faults,
)

GIB = 2**30
BEST_FIT = Selection(policy="best-fit")
SERVICE = """
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: chat
  namespace: team-a
  annotations: {ome.io/accelerator-class: nvidia-h100-80gb, ome.io/cost-threshold: "8"}
spec:
  model: {name: llama-3-70b}
  runtime: {name: sglang-universal}
  acceleratorSelector:
    policy: BestFit
    constraints:
      minMemory: 40
      minArchitectureVersion: "8.0"
      requiredFeatures: [nvlink]
      excludedClasses: [nvidia-t4]
      architectureFamilies: [nvidia-hopper, ampere]
      preferredPrecisions: [fp8, fp16]
  engine: {acceleratorOverride: {acceleratorClass: nvidia-h100-80gb}, minReplicas: 1}
  decoder: {acceleratorOverride: {policy: Cheapest}}
"""
RUNTIME = """
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: sglang-universal}
spec:
  acceleratorRequirements:
    acceleratorClasses: [nvidia-h100-80gb, nvidia-a100-80gb, nvidia-a100-40gb]
    minMemory: 40
    requiredFeatures: [cuda]
  supportedModelFormats:
    - name: safetensors
      acceleratorConfig:
        nvidia-a100-40gb: {minMemoryPerBillionParams: 2, tensorParallelismOverride: {tensorParallelSize: 4}}
"""


def decoded(text: str):
    return decode_object(yaml.safe_load(text))


def test_ome_5_inference_service_of_the_specification():
    found = decoded(SERVICE)
    assert isinstance(found, InferenceService)
    assert (found.id, found.model, found.runtime) == ("team-a/chat", "llama-3-70b", "sglang-universal")
    assert found.service.selection == Selection(
        policy="best-fit",
        classes=("nvidia-h100-80gb",),
        excluded_classes=frozenset({"nvidia-t4"}),
        families=("nvidia-hopper", "ampere"),
        required_features=frozenset({"nvlink"}),
        min_memory_bytes=40 * GIB,
        min_compute_capability=(8, 0),
        max_endpoint_cost_per_hour=8.0,
        preferred_precisions=("fp8", "fp16"),
    )
    assert found.engine.selection == Selection(classes=("nvidia-h100-80gb",))
    assert found.decoder is not None
    assert found.decoder.selection == Selection(policy="cheapest")
    assert list(selection_faults(found)) == []


def test_ome_5_runtimes_of_the_specification():
    found = decoded(RUNTIME)
    assert isinstance(found, ClusterServingRuntime)
    assert found.id == "sglang-universal"
    assert found.requirements.selection.classes == ("nvidia-h100-80gb", "nvidia-a100-80gb", "nvidia-a100-40gb")
    assert found.requirements.selection.min_memory_bytes == 40 * GIB
    assert found.configured_classes == ("nvidia-a100-40gb",)
    own = decoded(RUNTIME.replace("ClusterServingRuntime", "ServingRuntime"))
    assert isinstance(own, ServingRuntime)
    assert own.id == "default/sglang-universal"


PROPOSED_SERVICE = """
apiVersion: ome.ai/v1beta1
kind: InferenceService
metadata: {name: cost-sensitive, namespace: team-a}
spec:
  model: {name: llama-13b}
  acceleratorSelector:
    strategy: cost
    preferredClasses: [nvidia-a100-40gb, nvidia-h100-80gb]
    requiredCapabilities:
      memoryGB: 40Gi
      computeCapability: "8.0"
      memoryBandwidthGBps: "1500"
      features: [tensor-cores]
      performance: {fp16Tflops: 300, int8TOPS: 600}
    nodeSelector: {topology.kubernetes.io/zone: us-west-2a}
    annotations: {ome.ai/cost-threshold: "3"}
"""
PROPOSED_RUNTIME = """
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: sglang-cost-optimized}
spec:
  acceleratorRequirements:
    supportedClasses: [nvidia-a100-40gb, nvidia-h100-80gb]
    requiredCapabilities: {minComputeCapability: "8.0", requiredFeatures: [tensor-cores]}
    preferenceOrder:
    - {class: nvidia-a100-40gb, score: 100, conditions: [{modelSize: "<30B"}, {requestSize: "<2048"}]}
    - {class: nvidia-h100-80gb, score: 90}
"""


def test_ome_17_inference_service_of_the_proposal():
    found = decoded(PROPOSED_SERVICE)
    assert list(selection_faults(found)) == []
    assert found.service.selection == Selection(
        policy="cost",
        preference_order=(Preference("nvidia-a100-40gb", 100), Preference("nvidia-h100-80gb", 50)),
        required_features=frozenset({"tensor-cores"}),
        min_memory_bytes=40 * GIB,
        min_compute_capability=(8, 0),
        min_bandwidth_gbps=1500,
        min_performance=(("fp16", 300), ("int8", 600)),
        node_selector=frozenset({("topology.kubernetes.io/zone", "us-west-2a")}),
        max_endpoint_cost_per_hour=3.0,
    )


def test_ome_17_defect_26_service_of_another_group_is_one_of_ome_if_it_selects_accelerators():
    proposed = yaml.safe_load(PROPOSED_SERVICE) | {"apiVersion": "serving.kserve.io/v1beta1"}
    (version,) = versions_in([proposed])
    assert isinstance(version.object, InferenceService)
    assert version.note == "is read as group ome.io: write ome.io instead of serving.kserve.io"
    assert list(versions_in([proposed | {"spec": {"predictor": {}}}])) == []


def test_ome_17_runtime_of_the_proposal():
    found = decoded(PROPOSED_RUNTIME)
    assert list(selection_faults(found)) == []
    small = (Condition(model_size="<30B"), Condition(request_size="<2048"))
    assert found.requirements.selection == Selection(
        classes=("nvidia-a100-40gb", "nvidia-h100-80gb"),
        required_features=frozenset({"tensor-cores"}),
        min_compute_capability=(8, 0),
        preference_order=(Preference("nvidia-a100-40gb", 100, small), Preference("nvidia-h100-80gb", 90)),
    )
    named = [fault.partition(" names class ")[2].split("'")[1] for fault in class_faults(found, frozenset({"t4"}))]
    assert named == ["nvidia-a100-40gb", "nvidia-h100-80gb"]


CAPABILITIES = "spec.requiredCapabilities"
POLICIES = "BestFit, Cheapest, MostCapable or FirstAvailable"


@pytest.mark.parametrize(
    ("selector", "fault", "rest"),
    [
        ({"strategy": "cheap"}, "spec.strategy is 'cheap': ", ANY),
        ({"preferredClasses": "h100", "policy": "BestFit"}, "spec.preferredClasses is 'h100': ", BEST_FIT),
        ({"requiredCapabilities": []}, f"{CAPABILITIES} is []: write a mapping", ANY),
        ({"requiredCapabilities": {"memoryGB": "80GiB"}}, f"{CAPABILITIES}.memoryGB is '80GiB': ", ANY),
        (
            {"requiredCapabilities": {"memoryBandwidthGBps": "fast"}},
            f"{CAPABILITIES}.memoryBandwidthGBps is 'fast': write a number",
            ANY,
        ),
        (
            {"requiredCapabilities": {"performance": {"fp16Tflops": -1}}},
            f"{CAPABILITIES}.performance.fp16Tflops is -1: ",
            ANY,
        ),
        ({"nodeSelector": {"zone": 3}, "policy": "BestFit"}, "spec.nodeSelector is {'zone': 3}: ", BEST_FIT),
        ({"annotations": {"ome.io/cost-threshold": "-1"}}, "spec.annotations[ome.io/cost-threshold] is '-1': ", ANY),
        ({"constraints": {"minMemory": -3}}, "spec.constraints.minMemory is -3: ", ANY),
        (
            {"constraints": {"minMemory": "lots", "requiredFeatures": ["fp8"]}},
            "spec.constraints.minMemory is 'lots': ",
            Selection(required_features=frozenset({"fp8"})),
        ),
        (
            {"constraints": {"minMemory": 80, "maxMemory": 40}},
            "spec.constraints.maxMemory is 40, less than minMemory, 80: write at least minMemory, or remove it",
            Selection(min_memory_bytes=80 * GIB),
        ),
        ({"constraints": {"excludedClasses": "t4"}}, "spec.constraints.excludedClasses is 't4': ", ANY),
        ({"constraints": {"preferredPrecisions": ["fp7"]}}, "use fp32, fp16, fp8, int8, int4", ANY),
        ({"constraints": {"minArchitectureVersion": "new"}}, "write a version such as 9.0", ANY),
        ({"constraints": 7}, "spec.constraints is 7: write a mapping", ANY),
        ({"policy": "Fastest"}, f"spec.policy is 'Fastest': use {POLICIES}", ANY),
        (["h100"], "spec is ['h100']: write a mapping", ANY),
    ],
)
def test_ome_5_ome_17_value_that_cannot_be_used_is_said_and_the_rest_counts(selector, fault, rest):
    found = read_selector(selector, "spec")
    assert len(found.faults) == 1
    assert fault in found.faults[0]
    assert found.selection == rest


def test_ome_17_preference_that_cannot_be_used_does_not_affect_the_others():
    order = [{"class": "a", "score": 120}, {"score": 3}, {"class": "b", "conditions": [{"modelSize": "big"}]}, "c"]
    found = read_requirements({"preferenceOrder": order}, "spec")
    assert [fault.split(" is ")[0][-3:] for fault in found.faults] == ["[0]", "[1]", "[2]"]
    assert found.selection == Selection(preference_order=(Preference("c", 100),))
    assert read_requirements({"preferenceOrder": 3}, "spec").faults == (
        "spec.preferenceOrder is 3: write a list of at most 256 entries",
    )


@pytest.mark.parametrize(
    ("annotations", "selection"),
    [
        ({"ome.ai/selection-strategy": "cost"}, Selection(policy="cost")),
        ({"ome.io/selection-strategy": "Cheapest"}, Selection(policy="cheapest")),
        ({"ome.ai/cost-threshold": "0.5"}, Selection(max_endpoint_cost_per_hour=0.5)),
        ({"ome.io/cost-threshold": "2", "ome.ai/cost-threshold": "9"}, Selection(max_endpoint_cost_per_hour=2.0)),
    ],
)
def test_ome_7_ome_17_annotations_name_a_strategy_a_policy_or_a_threshold_for_whole_endpoints(annotations, selection):
    assert read_annotations(annotations).selection == selection


@pytest.mark.parametrize("kind", ["InferenceService", "ServingRuntime", "ClusterServingRuntime"])
def test_ome_5_an_object_that_says_nothing_of_accelerators_bounds_nothing(kind):
    found = decoded(f"{{apiVersion: ome.io/v1beta1, kind: {kind}, metadata: {{name: a}}, spec: {{router: {{}}}}}}")
    assert list(selection_faults(found)) == []
    assert (found.service if kind == "InferenceService" else found.requirements).selection == ANY


@pytest.mark.parametrize("text", ["-2", "abc", "nan", "inf", "", "$4"])
def test_ome_7_a_threshold_that_is_no_price_is_said_and_ignored(text):
    found = read_annotations({"ome.io/cost-threshold": text, "ome.io/accelerator-class": "H100"})
    assert found.faults == (
        f"metadata.annotations[ome.io/cost-threshold] is {text!r}: write US dollars an hour, such as 0.5",
    )
    assert found.selection == Selection(classes=("h100",))


def test_ome_11_classes_that_there_are_not_are_said_one_by_one():
    known = frozenset({"nvidia-h100-80gb", "nvidia-a100-80gb"})
    (fault,) = class_faults(decoded(SERVICE), known)
    assert fault == (
        "spec.acceleratorSelector or an annotation names class 'nvidia-t4', and there is no such AcceleratorClass: "
        "correct the name"
    )
    named = [fault.partition(" names class ") for fault in class_faults(decoded(RUNTIME), known)]
    assert [(place, rest.split("'")[1]) for place, _, rest in named] == [
        ("spec.acceleratorRequirements", "nvidia-a100-40gb"),
        ("acceleratorConfig of a model format", "nvidia-a100-40gb"),
    ]


def test_ome_11_class_of_a_configuration_that_there_is_not_is_said_with_the_near_match():
    def configurations(*classes: str) -> list[dict]:
        return [{"selector": {"acceleratorClass": name}, "env": [{"name": "A", "value": "1"}]} for name in classes]

    service = yaml.safe_load(SERVICE)
    service["spec"]["acceleratorConfigurations"] = configurations("nvidia-h100-80gb", "nvidia-t4")
    service["spec"]["engine"]["acceleratorConfigurations"] = configurations("NVIDIA-H100-80G")
    service["spec"]["decoder"]["acceleratorConfigurations"] = [*configurations("gaudi"), {"selector": 3}, "x", {}]
    found = decode_object(service)
    assert list(selection_faults(found)) == []
    there_is_not = "and there is no such AcceleratorClass"
    place = "acceleratorConfigurations[{}].selector.acceleratorClass names class"
    assert list(class_faults(found, frozenset({"nvidia-h100-80gb", "nvidia-t4"}))) == [
        f"spec.engine.{place.format(0)} 'nvidia-h100-80g', {there_is_not}: did you mean 'nvidia-h100-80gb'?",
        f"spec.decoder.{place.format(0)} 'gaudi', {there_is_not}: correct the name",
    ]
    runtime = {"spec": {"acceleratorConfigurations": configurations("nvidia-t4x")}}
    (fault,) = class_faults(decode_object(yaml.safe_load(RUNTIME) | runtime), frozenset({"nvidia-t4"}))
    assert fault.startswith(f"spec.{place.format(0)} 'nvidia-t4x', {there_is_not}: did you mean")
    (unknown, *_) = decode_object(yaml.safe_load(RUNTIME) | {"spec": {"acceleratorConfiguration": []}}).unknown_fields
    assert "did you mean 'acceleratorConfigurations'?" in unknown


STARTED = {
    "tensorParallelismOverride": {"tensorParallelSize": 4, "pipelineParallelSize": 1, "dataParallelSize": 2},
    "runtimeArgsOverride": ["--enable-x"],
    "environmentOverride": {"A": "b"},
}
"""What is said of the start of servers is right."""
WRITE_THE_REQUIREMENT = "write the requirement of the model as spec.acceleratorRequirements.minMemory"
WRITE_A_NUMBER = "write a whole number of at least 1"


def parallel(size: object) -> dict:
    return {"tensorParallelismOverride": {"tensorParallelSize": size}}


@pytest.mark.parametrize(
    ("classes", "faults"),
    [
        ({"h100": STARTED}, []),
        (
            {"h100": {"minMemoryPerBillionParams": 2}},
            [f"[h100].minMemoryPerBillionParams is 2, but does not limit requests: {WRITE_THE_REQUIREMENT}"],
        ),
        ({"h100": {}, "H100": {}}, ["[H100] is the same class as 'h100': write it once"]),
        ({"h100": 3}, ["[h100] is 3: write a mapping"]),
        ({"h100": {"tensorParallelismOverride": []}}, ["[h100].tensorParallelismOverride is []: write a mapping"]),
        *(
            ({"a": parallel(size)}, [f"[a].tensorParallelismOverride.tensorParallelSize is {size!r}: {WRITE_A_NUMBER}"])
            for size in (0, -4, "4", 1.5, True)
        ),
    ],
)
def test_ome_3_configuration_of_a_class_that_has_no_effect_is_said(classes, faults):
    document = yaml.safe_load(RUNTIME)
    document["spec"]["supportedModelFormats"] = [{"name": "safetensors", "acceleratorConfig": classes}]
    found = decode_object(document).configuration_faults
    assert [fault.removeprefix("spec.supportedModelFormats[0].acceleratorConfig") for fault in found] == faults


def test_faults_of_configurations_are_bounded_and_the_runtime_stays_in_effect():
    document = yaml.safe_load(RUNTIME)
    many = {f"c{number}": number for number in range(500)}
    document["spec"]["supportedModelFormats"] = [{"acceleratorConfig": many}] * 3
    found = decode_object(document)
    assert len(found.configuration_faults) == 100
    assert list(selection_faults(found)) == []
    assert found.requirements.selection.min_memory_bytes == 40 * GIB
