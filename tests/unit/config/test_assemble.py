# SPDX-License-Identifier: Apache-2.0
"""What a configuration leaves out is filled in; what it gets wrong is named."""

import pytest

from epp.config import Assembly, Builder, assemble, load_text
from epp.framework import ConfigurationError, ManualClock, Producer, ProfilePicker, Request
from epp.framework.errors import InternalError
from epp.framework.registry import Registry
from epp.framework.testing import candidates

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def build(text: str) -> Assembly:
    return assemble(load_text(HEAD + text), Builder(Registry(), ManualClock()))


def names(assembly: Assembly) -> list[str]:
    return [plugin.name for plugin in assembly.plugins]


def only_profile(assembly: Assembly):
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    return profile


def test_without_profiles_every_scorer_and_filter_is_in_one_called_default():
    profile = only_profile(build("plugins: [{type: queue-scorer}, {type: label-selector-filter, parameters: {}}]"))
    assert profile.name == "default"
    assert [s.scorer.name for s in profile.scorers] == ["queue-scorer"]
    assert [s.weight for s in profile.scorers] == [1.0]
    assert [f.filter.name for f in profile.filters] == ["label-selector-filter"]
    assert profile.picker.name == "max-score-picker"


def test_implied_picker_is_the_first_declared():
    profile = only_profile(
        build(
            "plugins: [{type: queue-scorer}, {type: random-picker}, {type: max-score-picker}]\n"
            "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]"
        )
    )
    assert profile.picker.name == "random-picker"


def test_several_instances_of_one_type_have_names_and_weights():
    profile = only_profile(
        build(
            "plugins: [{type: queue-scorer, name: q1}, {type: queue-scorer, name: q2}]\n"
            "schedulingProfiles: [{name: p, plugins: [{pluginRef: q1, weight: 2}, {pluginRef: q2, weight: 0.5}]}]"
        )
    )
    assert [(s.scorer.name, s.weight) for s in profile.scorers] == [("q1", 2.0), ("q2", 0.5)]


def test_producer_that_a_scorer_needs_is_implied_once():
    assembly = build("plugins: [{type: prefix-cache-scorer}, {type: prefix-cache-scorer, name: again}]")
    assert names(assembly).count("approx-prefix-cache-producer") == 1
    assert [p.name for p in assembly.pipeline.of(Producer)] == ["approx-prefix-cache-producer"]


def test_declared_producer_is_used_with_its_parameters():
    assembly = build(
        "plugins: [{type: prefix-cache-scorer},"
        " {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}]"
    )
    (producer,) = assembly.pipeline.of(Producer)
    assert producer.parameters.block_size_tokens == 128


def test_producer_named_otherwise_must_be_named_by_its_reader():
    declared = "{type: approx-prefix-cache-producer, name: mine}"
    reader = "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: mine}}"
    assert names(build(f"plugins: [{reader}, {declared}]")).count("approx-prefix-cache-producer") == 0
    with pytest.raises(ConfigurationError, match="reads 'prefix-match' from producer 'mine', which is not declared"):
        build(f"plugins: [{reader}]")


def test_metrics_are_scraped_unless_told_otherwise():
    (feed,) = build("plugins: [{type: queue-scorer}]").feeds
    assert feed.source.plugin_type == "metrics-data-source"
    assert [e.plugin_type for e in feed.extractors] == ["core-metrics-extractor"]
    assert build("plugins: [{type: queue-scorer}]\ndataLayer: {injectDefaults: false}").feeds == ()


def test_declared_metrics_source_is_not_doubled():
    (feed,) = build(
        "plugins: [{type: metrics-data-source, name: m, parameters: {path: /m}}, {type: core-metrics-extractor}]\n"
        "dataLayer: {sources: [{pluginRef: m, extractors: [{pluginRef: core-metrics-extractor}]}]}"
    ).feeds
    assert feed.source.name == "m"


def test_legacy_api_version_is_read():
    text = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"
    (warning,) = assemble(load_text(text, "c.yaml"), Builder(Registry(), ManualClock())).warnings
    assert str(warning) == (
        "c.yaml:1:1: apiVersion: inference.networking.x-k8s.io/v1alpha1 is deprecated: write llm-d.ai/v1alpha1"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("plugins: [{type: queue-scorrer}]", "'queue-scorrer' is not registered; did you mean 'queue-scorer'"),
        ("plugins: [{type: queue-scorer}, {type: queue-scorer}]", "two plugins are named 'queue-scorer'"),
        ("plugins: [{name: x}]", r"--config-text:3:11: plugins\[0\].type: is missing"),
        ("plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoint: 3}}]", "maxNumOfEndpoint"),
        ("plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: none}}]", "max-score-picker"),
        ("scheduler: {}", "--config-text:3:1: scheduler: unknown key; known are "),
        (
            "schedulingProfiles: [{name: p, plugins: [{pluginRef: nope}]}]",
            r"schedulingProfiles\[0\].plugins\[0\].pluginRef: no plugin is named 'nope'",
        ),
        (
            (
                "plugins: [{type: random-picker}, {type: max-score-picker}]\n"
                "schedulingProfiles: [{name: p, plugins: [{pluginRef: random-picker}, {pluginRef: max-score-picker}]}]"
            ),
            "two pickers",
        ),
        (
            (
                "plugins: [{type: queue-scorer}]\n"
                "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: .nan}]}]"
            ),
            "weight nan is not a finite number",
        ),
        ("schedulingProfiles: [{name: p, plugins: []}, {name: p, plugins: []}]", "two profiles are named 'p'"),
        ("schedulingProfiles: [{name: p, plugins: []}, {name: q, plugins: []}]", "2 profiles and no profile picker"),
        ("plugins: [{type: openai-parser}]\nrequestHandler: {parsers: [{pluginRef: openai}]}", "parsers"),
        ("plugins: [{type: queue-scorer}]\ndataLayer: {discovery: {pluginRef: queue-scorer}}", "is no Discovery"),
        ("featureGates: [flowcontrol]", "feature gate 'flowcontrol' is not known"),
        ("plugins: [{type: queue-scorer}]\nplugins: []", "key 'plugins' stands twice"),
        ("plugins: {", "is not YAML"),
    ],
)
def test_mistake_is_named(text, problem):
    with pytest.raises(ConfigurationError, match=problem):
        build(text)


@pytest.mark.parametrize("text", ["", "[]", "kind: Pod", "42"])
def test_document_of_another_kind_is_refused(text):
    with pytest.raises(ConfigurationError, match="--config-text"):
        assemble(load_text(text), Builder(Registry(), ManualClock()))


class OneAfterTheOther(ProfilePicker):
    """Runs the profiles in order; aggregates nothing."""

    plugin_type = "one-after-the-other"

    def pick_profiles(self, request, profiles, results):
        return profiles[len(results) : len(results) + 1]


@pytest.mark.parametrize(
    ("limit", "runs"),
    [("", True), ("scheduling: {maxIterations: 3}\n", True), ("scheduling: {maxIterations: 2}\n", False)],
)
def test_gie_21_number_of_times_that_a_profile_picker_is_asked_is_limited(build, limit, runs):
    registry = Registry()
    registry.register(OneAfterTheOther)
    text = (
        "plugins: [{type: one-after-the-other}, {type: queue-scorer}]\n"
        "schedulingProfiles:\n"
        "- {name: a, plugins: [{pluginRef: queue-scorer}]}\n"
        "- {name: b, plugins: [{pluginRef: queue-scorer}]}\n"
    )
    found = build(text + limit, registry=registry)
    request, pool = Request("r"), candidates(waiting=[0])
    if runs:  # asked for a, for b, and once more
        assert list(found.pipeline.scheduler.schedule(request, pool).profiles) == ["a", "b"]
        assert found.warnings == ()
        return
    said = "was asked 2 times, the limit of scheduling.maxIterations, and still wants more"
    assert said in str(found.warnings[0])
    with pytest.raises(InternalError, match=said):
        found.pipeline.scheduler.schedule(request, pool)


def test_gie_21_limit_of_iterations_is_at_least_1(refused):
    (problem,) = refused("scheduling: {maxIterations: 0}\n")
    assert "scheduling.maxIterations" in str(problem)


def test_profile_picker_that_is_no_aggregator_gets_one_whose_destination_is_the_first_result():
    registry = Registry()
    registry.register(OneAfterTheOther)
    text = (
        "plugins:\n- type: one-after-the-other\n- type: queue-scorer\n- type: running-requests-size-scorer\n"
        "- {type: utilization-filter, parameters: {conditions: [{metric: waiting-queue, maxValue: %d}]}}\n"
        "schedulingProfiles:\n"
        "- {name: a, plugins: [{pluginRef: utilization-filter}, {pluginRef: queue-scorer}]}\n"
        "- {name: b, plugins: [{pluginRef: running-requests-size-scorer}]}"
    )
    pool = candidates(waiting=[1, 9], running=[9, 1])
    for limit, target in ((1, "e0"), (0, "e1")):  # with 0 all are dropped, and only the second profile has a result
        assembly = assemble(load_text(HEAD + text % limit), Builder(registry, ManualClock()))
        scheduler = assembly.pipeline.scheduler
        assert assembly.instances.implied["first-result-aggregator"] == "one-after-the-other is no aggregator"
        assert [target.name for target in scheduler.schedule(Request("r"), pool).targets] == [target]
