# SPDX-License-Identifier: Apache-2.0
"""What is allowed and probably a mistake: each warning where it is deserved, and not otherwise."""

import pytest

from epp.config import InvalidConfigError


def profile(*refs: str) -> str:
    return f"schedulingProfiles: [{{name: p, plugins: [{', '.join(f'{{{ref}}}' for ref in refs)}]}}]\n"


def test_plugin_that_no_profile_refers_to_is_warned_of(warned):
    text = "plugins: [{type: queue-scorer}, {type: decode-filter, name: mine}, {type: token-producer}]\n"
    (warning,) = warned(text + profile("pluginRef: queue-scorer"))
    assert warning == (
        "c.yaml:3:33: plugins[1]: plugin 'mine' has no effect: no profile and no other plugin refers to it; add a "
        "pluginRef to a profile, or remove it"
    )
    assert warned("plugins: [{type: queue-scorer}]") == []  # one profile is implied, of all that is there


def test_token_producer_that_names_a_model_alone_is_warned_of(warned):
    alone = "plugins: [{type: queue-scorer}, {type: token-producer, parameters: {modelName: m%s}}]\n"
    (found,) = warned(alone % "")
    assert "token ids are requested from a vLLM server at http://localhost:8000" in found
    assert warned(alone % ", estimate: {}") == []


def test_gie_20_affinity_scorers_without_one_that_balances_are_warned_of(warned):
    text = "plugins: [{type: prefix-cache-scorer}, {type: lora-affinity-scorer}%s]\n"
    affinity = ("pluginRef: prefix-cache-scorer", "pluginRef: lora-affinity-scorer")
    problem = (
        "c.yaml:4:22: schedulingProfiles[0]: profile 'p' has affinity scorers only (prefix-cache-scorer, "
        "lora-affinity-scorer): nothing limits the load of a popular endpoint"
    )
    assert warned(text % "" + profile(*affinity)) == [problem]
    balanced = text % ", {type: queue-scorer}"
    assert warned(balanced + profile(*affinity, "pluginRef: queue-scorer, weight: 0.1")) == []
    first, second = warned(balanced + profile(*affinity, "pluginRef: queue-scorer, weight: 0"))
    assert first == problem
    assert second.endswith("scorer 'queue-scorer' has weight 0 and no effect: remove it, or set a weight")


@pytest.mark.parametrize(
    "plugins",
    [
        "{type: queue-scorer}, {type: prefix-cache-scorer}, {type: decode-filter, parameters: {fallbackOnEmpty: no}}",
        "{type: random-picker}",
    ],
    ids=["balanced", "without scorers"],
)
def test_sound_configuration_is_not_warned_of(warned, plugins):
    assert warned(f"plugins: [{plugins}]") == []


def test_filter_that_may_leave_nobody_is_warned_of_until_the_file_says_what_then(warned):
    text = "plugins: [{type: decode-filter%s}]\n" + profile("pluginRef: decode-filter")
    (warning,) = warned(text % "")
    assert warning == (
        "c.yaml:4:22: schedulingProfiles[0]: profile 'p': filter 'decode-filter' may drop all candidates, and then the "
        "request is refused with 429: set fallbackOnEmpty to true to use any endpoint instead, or to false to confirm"
    )
    for fallback in ("true", "false"):
        assert warned(text % f", parameters: {{fallbackOnEmpty: {fallback}}}") == []


def test_scorers_that_measure_the_same_are_warned_of(warned):
    text = "plugins: [{type: queue-scorer, name: a}, {type: queue-scorer, name: b}]\n"
    (warning,) = warned(text + profile("pluginRef: a", "pluginRef: b"))
    assert warning == (
        "c.yaml:4:22: schedulingProfiles[0]: profile 'p': 'a' and 'b' measure the same data (waiting), "
        "which counts twice"
    )
    assert not [one for one in warned(text + profile("pluginRef: a", "pluginRef: b, weight: 0")) if "measure" in one]


@pytest.mark.parametrize(
    ("plugins", "scorers"),
    [
        ("{type: queue-scorer}, {type: kv-cache-utilization-scorer}", "queue-scorer kv-cache-utilization-scorer"),
        ("{type: prefix-cache-scorer}, {type: no-hit-lru-scorer}", "prefix-cache-scorer no-hit-lru-scorer"),
        (
            """\

- {type: approx-prefix-cache-producer, name: fine}
- {type: approx-prefix-cache-producer, name: coarse, parameters: {blockSizeTokens: 256}}
- {type: prefix-cache-scorer, name: a, parameters: {prefixMatchInfoProducerName: fine}}
- {type: prefix-cache-scorer, name: b, parameters: {prefixMatchInfoProducerName: coarse}}
- {type: queue-scorer}
""",
            "a b queue-scorer",
        ),
    ],
    ids=["other data", "the same data otherwise", "data of different producers"],
)
def test_scorers_that_do_not_measure_the_same_are_not(warned, plugins, scorers):
    plugins = plugins if plugins.startswith("\n") else f"[{plugins}]\n"
    assert warned(f"plugins: {plugins}" + profile(*(f"pluginRef: {name}" for name in scorers.split()))) == []


def test_scorer_that_stands_twice_in_a_profile_is_warned_of(warned):
    text = "plugins: [{type: queue-scorer}]\n" + profile("pluginRef: queue-scorer", "pluginRef: queue-scorer")
    (warning,) = warned(text)
    assert warning.endswith("profile 'p': scorer 'queue-scorer' is listed 2 times: add up the weights")


def test_gie_12_plugin_whose_data_nobody_collects_is_warned_of(warned):
    plugins = "[{type: queue-scorer}, {type: active-request-scorer}, {type: probabilistic-admitter}]"
    text = f"dataLayer: {{injectDefaults: %s}}\nplugins: {plugins}\n"
    unknown = "and no data source of this configuration collects it: its values are unknown"
    assert warned(text % "false") == [
        f"c.yaml:4:11: plugins[0]: plugin 'queue-scorer' reads 'waiting', {unknown}",
        f"c.yaml:4:64: plugins[2]: plugin 'probabilistic-admitter' reads 'waiting', {unknown}",
        f"c.yaml:4:64: plugins[2]: plugin 'probabilistic-admitter' reads 'kv_usage', {unknown}",
    ]
    assert warned(text % "true") == []


LESS = "algorithm: {type: linear_lower_is_better}"
GPU = f"{{type: endpoint-attribute-scorer, parameters: {{attributeKey: GPUUtilization, {LESS}}}}}"


def test_gie_12_data_of_a_declared_source_is_collected(warned):
    alone = f"plugins: [{GPU}]\n"
    assert "reads 'GPUUtilization', and no data source" in warned(alone)[0]
    with_source = f"""\
plugins: [{GPU}, {{type: dcgm-data-source}}, {{type: dcgm-extractor}}]
dataLayer: {{sources: [{{pluginRef: dcgm-data-source, extractors: [{{pluginRef: dcgm-extractor}}]}}]}}
"""
    assert warned(with_source) == []


def test_deprecated_types_parameters_and_places_are_warned_of(warned):
    assert warned("""\
plugins:
- {type: tokenizer}
- type: approx-prefix-cache-producer
  parameters: {blockSize: 64}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: openai-parser}
parser: {pluginRef: openai-parser}
saturationDetector: {pluginRef: utilization-detector}
""") == [
        "c.yaml:4:3: plugins[0]: plugin type 'tokenizer' is deprecated",
        (
            "c.yaml:6:3: plugins[1].parameters: plugin 'approx-prefix-cache-producer': blockSize is deprecated: "
            "write blockSizeTokens"
        ),
        "c.yaml:10:1: parser: is deprecated: write it into requestHandler.parsers",
        "c.yaml:11:1: saturationDetector: is deprecated: write it into flowControl",
    ]


def test_what_has_no_effect_is_warned_of_in_the_order_of_the_file(warned):
    assert warned("""\
dataLayer:
  peerDiscovery: {pluginRef: peers}
  crossReplicaSyncerPluginRef: syncer
  crossReplicaSyncInterval: 1s
flowControl: {maxRequests: 5}
plugins:
- {type: queue-scorer}
- {type: disagg-headers-handler}
- {type: edf-ordering-policy}
""") == [
        "c.yaml:4:3: dataLayer.peerDiscovery: has no effect: replicas do not exchange data yet",
        "c.yaml:5:3: dataLayer.crossReplicaSyncerPluginRef: has no effect: replicas do not exchange data yet",
        "c.yaml:6:3: dataLayer.crossReplicaSyncInterval: has no effect: replicas do not exchange data yet",
        "c.yaml:7:1: flowControl: has no effect: feature gate flowControl is off",
        (
            "c.yaml:10:3: plugins[1]: plugin type 'disagg-headers-handler' has no effect: the profile handlers set the "
            "headers for disaggregated serving themselves"
        ),
        (
            "c.yaml:11:3: plugins[2]: plugin 'edf-ordering-policy' (type edf-ordering-policy) has no effect: "
            "feature gate flowControl is off"
        ),
    ]


def test_detector_in_flow_control_has_an_effect_without_the_gate_and_the_rest_has_none(warned):
    detector = "saturationDetector: {pluginRef: concurrency-detector}"
    text = "plugins: [{type: concurrency-detector}, {type: queue-scorer}]\n"
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"
    assert warned(f"{text}{profile}flowControl: {{{detector}}}") == []
    assert warned(f"{text}{profile}flowControl: {{{detector}, maxRequests: 5}}") == [
        "c.yaml:5:1: flowControl: has no effect but for saturationDetector: feature gate flowControl is off"
    ]


def test_producer_whose_own_name_nobody_says_is_warned_of(warned):
    (warning,) = warned("plugins: [{type: token-producer, name: counter}, {type: token-load-scorer}]")
    assert warning == (
        "c.yaml:3:11: plugins[0]: plugin 'counter' writes 'prompt-tokens' under its own name, and no plugin reads it: "
        "name it in the parameters of its readers, or remove its name"
    )
    assert warned("plugins: [{type: token-producer}, {type: token-load-scorer}]") == []
    named = "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: index}}, {type: queue-scorer}"
    assert warned(f"plugins: [{{type: approx-prefix-cache-producer, name: index}}, {named}]") == []


@pytest.mark.parametrize(
    ("plugin", "place"),
    [
        ("type: accelerator-filter, parameters: {acceleratorClasses: [h100, h-hundred], fallbackOnEmpty: no}", "3:38"),
        ("type: cost-aware-spill, parameters: {limits: {t4: {}, h-hundred: {}}}", "3:36"),
        ("type: first-available-scorer, parameters: {classes: [h-hundred, h100]}", "3:42"),
        ("type: preference-order-scorer, parameters: {preferenceOrder: [{class: h-hundred}]}", "3:43"),
        (
            "type: accelerator-selection-producer, parameters: {components: {p: {acceleratorClasses: [h-hundred]}}}",
            "3:50",
        ),
    ],
)
def test_ome_11_accelerator_that_does_not_exist_is_warned_of_and_the_others_count(warned, plugin, place):
    found = warned(f"plugins: [{{{plugin}}}, {{type: queue-scorer}}, {{type: accelerator-data-source}}]")
    (warning,) = [each for each in found if "h-hundred" in each]
    kind = plugin.split(",")[0].removeprefix("type: ")
    assert warning == (
        f"c.yaml:{place}: plugins[0].parameters: plugin '{kind}' names accelerator 'h-hundred', but there is neither "
        "an AcceleratorClass nor a product of that name: the name has no effect"
    )


def test_ome_11_strict_source_refuses_what_names_an_accelerator_that_does_not_exist(warned):
    plugin = "type: first-available-scorer, parameters: {classes: [h-hundred, h100]}"
    source = "type: accelerator-data-source, parameters: {unknownClasses: strict}"
    with pytest.raises(InvalidConfigError) as caught:
        warned(f"plugins: [{{{plugin}}}, {{{source}}}]")
    (problem,) = caught.value.problems
    assert str(problem) == (
        "c.yaml:3:42: plugins[0].parameters: plugin 'first-available-scorer' names accelerator 'h-hundred', but there "
        "is neither an AcceleratorClass nor a product of that name: the name has no effect; correct the name, "
        "add the class, or set unknownClasses to lenient"
    )
    assert warned(f"plugins: [{{{plugin.replace('h-hundred, ', '')}}}, {{{source}}}]") == []


def test_class_that_the_objects_have_is_known(warned, tmp_path):
    (tmp_path / "class.yaml").write_text(
        "{apiVersion: ome.io/v1beta1, kind: AcceleratorClass, metadata: {name: Our-Big-Ones}, spec: {}}"
    )
    source = f"type: accelerator-data-source, parameters: {{unknownClasses: strict, paths: [{tmp_path}]}}"
    plugins = "plugins: [{%s}, {%s}, {type: queue-scorer}]"
    preference = "type: preference-order-scorer, parameters: {preferenceOrder: [{class: our-big-ones}]}"
    assert warned(plugins % (source, preference)) == []
    without_paths = source.replace(f", paths: [{tmp_path}]", "")
    assert warned(plugins % (without_paths, preference), object_paths=(str(tmp_path),)) == []


def test_tf_1_template_that_is_not_there_is_said(warned, tmp_path):
    objects = tmp_path / "objects.yaml"
    objects.write_text(
        "apiVersion: tensor-fusion.ai/v1\nkind: SchedulingConfigTemplate\nmetadata: {name: packed}\nspec: {}\n"
    )
    text = f"""plugins:
- {{type: accelerator-data-source, parameters: {{paths: [{objects}]}}}}
- {{type: placement-template-scorer, parameters: {{template: pakced}}}}
- {{type: placement-template-filter, parameters: {{template: packed, fallbackOnEmpty: true}}}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: placement-template-scorer}}, {{pluginRef: placement-template-filter}}]
"""
    (warning,) = [each for each in warned(text) if "names template" in each]
    assert "'placement-template-scorer' names template 'pakced'" in warning
    assert warning.endswith("the name has no effect; did you mean 'packed'?")


@pytest.fixture
def service(tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text("""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: chat, namespace: team-a}
spec: {model: {name: m}, acceleratorSelector: {strategy: cost, requiredCapabilities: {memoryGB: 40Gi}}}
""")
    return f"{{paths: [{path}]}}"


READERS = "{type: accelerator-filter, parameters: {fallbackOnEmpty: no}}, {type: accelerator-policy-scorer}"


def test_ome_17_selections_that_no_filter_or_scorer_reads_are_warned_of(warned, service):
    producer = f"{{type: queue-scorer}}, {{type: accelerator-selection-producer, parameters: {service}}}"
    bounds, preferences = (found.split(" has ", 2)[1] for found in warned(f"plugins: [{producer}]"))
    assert bounds == "bounds that no filter reads: add accelerator-filter to the profiles"
    assert preferences == (
        "policies or preferred classes that no scorer reads: add accelerator-policy-scorer to the profiles"
    )
    assert warned(f"plugins: [{producer}, {READERS}, {{type: accelerator-data-source}}]") == []
    assert warned("plugins: [{type: queue-scorer}, {type: accelerator-selection-producer}]") == []


def test_ome_17_services_that_nothing_makes_selections_of_are_warned_of(warned, service):
    source = f"{{type: queue-scorer}}, {{type: accelerator-data-source, parameters: {service}}}"
    (found,) = warned(f"plugins: [{source}]")
    assert found.endswith(
        "reads InferenceService team-a/chat, which selects accelerators without effect: add "
        "accelerator-selection-producer with the same paths"
    )
    producer = f"{{type: accelerator-selection-producer, parameters: {service}}}"
    assert warned(f"plugins: [{source}, {producer}, {READERS}]") == []
    (found,) = warned(f"plugins: [{source}, {READERS}]")  # an added producer has no paths
    assert "selects accelerators without effect" in found
