# SPDX-License-Identifier: Apache-2.0
"""What a configuration leaves out is filled in; what it gets wrong is named."""

import pytest

from epp.config import load_text
from epp.framework import ConfigurationError, Producer, ProfilePicker, Request
from epp.framework.errors import InternalError
from epp.framework.registry import Registry
from epp.framework.testing import candidates


def only_profile(assembly):
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    return profile


def test_without_profiles_every_scorer_and_filter_is_in_one_called_default(build):
    profile = only_profile(build("plugins: [{type: queue-scorer}, {type: label-selector-filter, parameters: {}}]"))
    assert profile.name == "default"
    assert [(s.scorer.name, s.weight) for s in profile.scorers] == [("queue-scorer", 1.0)]
    assert [f.filter.name for f in profile.filters] == ["label-selector-filter"]
    assert profile.picker.name == "max-score-picker"


def test_profile_takes_instances_by_name_with_weights_and_the_first_picker_that_is_declared(build):
    text = """\
plugins: [{type: queue-scorer, name: q1}, {type: queue-scorer, name: q2}, {type: random-picker},
          {type: max-score-picker}]
schedulingProfiles: [{name: p, plugins: [{pluginRef: q1, weight: 2}, {pluginRef: q2, weight: 0.5}]}]
"""
    profile = only_profile(build(text))
    assert [(s.scorer.name, s.weight) for s in profile.scorers] == [("q1", 2.0), ("q2", 0.5)]
    assert profile.picker.name == "random-picker"


def test_producer_that_scorers_need_is_added_once_unless_it_is_declared(build):
    scorers = "plugins: [{type: prefix-cache-scorer}, {type: prefix-cache-scorer, name: again}"
    (added,) = build(f"{scorers}]").pipeline.of(Producer)
    assert added.name == "approx-prefix-cache-producer"
    declared = "{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}"
    (producer,) = build(f"{scorers}, {declared}]").pipeline.of(Producer)
    assert producer.parameters.block_size_tokens == 128


def test_producer_of_another_name_is_read_by_what_names_it(build, refused):
    reader = "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: mine}}"
    assembly = build(f"plugins: [{reader}, {{type: approx-prefix-cache-producer, name: mine}}]")
    assert [producer.name for producer in assembly.pipeline.of(Producer)] == ["mine"]
    assert not [warning for warning in assembly.warnings if "mine" in str(warning)]
    (problem,) = refused(f"plugins: [{reader}]")
    assert "reads 'prefix-match' from producer 'mine', which is not declared" in str(problem)


def test_metrics_are_scraped_from_the_usual_source_unless_the_file_says_otherwise(build):
    (feed,) = build("plugins: [{type: queue-scorer}]").feeds
    assert feed.source.plugin_type == "metrics-data-source"
    assert [e.plugin_type for e in feed.extractors] == ["core-metrics-extractor"]
    assert build("plugins: [{type: queue-scorer}]\ndataLayer: {injectDefaults: false}").feeds == ()
    (feed,) = build("""\
plugins: [{type: metrics-data-source, name: m, parameters: {path: /m}}, {type: core-metrics-extractor}]
dataLayer: {sources: [{pluginRef: m, extractors: [{pluginRef: core-metrics-extractor}]}]}
""").feeds
    assert feed.source.name == "m"


def test_legacy_api_version_is_read(warned):
    assert warned("", head="apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n") == [
        "c.yaml:1:1: apiVersion: inference.networking.x-k8s.io/v1alpha1 is deprecated: write llm-d.ai/v1alpha1"
    ]


def test_mistake_in_a_text_of_the_command_line_is_said_to_be_there():
    with pytest.raises(ConfigurationError, match="--config-text"):
        load_text("kind: Pod")


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
    said = "still chooses profiles after 2 calls, the limit of scheduling.maxIterations"
    assert said in str(found.warnings[0])
    with pytest.raises(InternalError, match=said):
        found.pipeline.scheduler.schedule(request, pool)


def test_gie_21_limit_of_iterations_is_at_least_1(refused):
    (problem,) = refused("scheduling: {maxIterations: 0}\n")
    assert "scheduling.maxIterations" in str(problem)


def test_profile_picker_that_is_no_aggregator_gets_one_whose_destination_is_the_first_result(build):
    registry = Registry()
    registry.register(OneAfterTheOther)
    text = """\
plugins:
- type: one-after-the-other
- type: queue-scorer
- type: running-requests-size-scorer
- {type: utilization-filter, parameters: {conditions: [{metric: waiting-queue, maxValue: %d}]}}
schedulingProfiles:
- {name: a, plugins: [{pluginRef: utilization-filter}, {pluginRef: queue-scorer}]}
- {name: b, plugins: [{pluginRef: running-requests-size-scorer}]}
"""
    pool = candidates(waiting=[1, 9], running=[9, 1])
    for limit, target in ((1, "e0"), (0, "e1")):  # with 0 all are dropped, and only the second profile has a result
        assembly = build(text % limit, registry=registry)
        assert assembly.instances.implied["first-result-aggregator"] == "one-after-the-other is not an aggregator"
        result = assembly.pipeline.scheduler.schedule(Request("r"), pool)
        assert [target.name for target in result.targets] == [target]
