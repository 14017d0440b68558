# SPDX-License-Identifier: Apache-2.0
"""What makes a configuration unusable, beside its form: each with its sentence, and nothing said twice."""

import pytest

from epp.framework import Candidates, Draw, Filter, Floats, Mask, Picker, Positions, Request, Scorer
from epp.framework.registry import Registry
from epp.framework.snapshot import WAITING

TWO_PROFILES = "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]\n"

NO_PICKER = (
    "2 profiles and no profile picker to choose among them; add a profile picker to plugins, such as "
    "disagg-profile-handler, or keep one profile"
)


def profile(*refs: str) -> str:
    return f"schedulingProfiles: [{{name: p, plugins: [{', '.join(f'{{{ref}}}' for ref in refs)}]}}]\n"


def only(problems) -> str:
    (problem,) = problems
    return str(problem).removeprefix("c.yaml:")


@pytest.mark.parametrize(
    ("gates", "problem"),
    [
        ("[flow]", "3:16: featureGates[0]: feature gate 'flow' is not known; did you mean 'flowControl'?"),
        (
            "[flowControl=maybe]",
            "3:16: featureGates[0]: feature gate 'flowControl' is 'maybe', which is neither true nor false",
        ),
        ("[flowControl=]", "3:16: featureGates[0]: feature gate 'flowControl' is '', which is neither true nor false"),
    ],
)
def test_feature_gate_must_be_known_and_true_or_false(refused, gates, problem):
    assert only(refused(f"featureGates: {gates}")) == problem


@pytest.mark.parametrize(
    ("gate", "requests_wait"),
    [
        ("flowControl", True),
        ("flowControl=true", True),
        ("flowControl=false", False),
        ("haPopulateNonLeaderDatastore", False),
    ],
)
def test_known_feature_gates_are_taken(build, gate, requests_wait):
    assembly = build(f"featureGates: [{gate}]")
    assert assembly.warnings == ()
    assert (assembly.pipeline.flow_control is not None) is requests_wait


@pytest.mark.parametrize(
    ("plugins", "problem"),
    [
        ('[{type: ""}]', "3:12: plugins[0].type: plugin type '' is not registered; `epp plugins` lists all types"),
        (
            "[{type: queue-scorer}, {type: prefix-cache-scorer, name: queue-scorer}]",
            "3:33: plugins[1]: two plugins are named 'queue-scorer'; give one of them another name",
        ),
        (
            "[{type: round-robin-fairness-policy}, {type: queue-scorer, name: round-robin-fairness-policy}]",
            "3:48: plugins[1]: two plugins are named 'round-robin-fairness-policy'; give one of them another name",
        ),
        (
            "[{type: weighted-random-pickr}]",
            (
                "3:12: plugins[0].type: plugin type 'weighted-random-pickr' is not registered; "
                "did you mean 'weighted-random-picker'?"
            ),
        ),
        (
            "[{type: header-label-affinity-scorer, parameters: {headerName: x}}]",
            (
                "3:48: plugins[0].parameters.labelKey: plugin 'header-label-affinity-scorer': "
                "labelKey is missing; add it"
            ),
        ),
        (
            "[{type: queue-scorer, name: openai-parser}]",
            (
                "1:1: requestHandler: a plugin of type 'openai-parser' is needed (the file names no "
                "parser), and the name "
                "is taken by one of another type"
            ),
        ),
        (
            "[{type: queue-scorer, name: max-score-picker}]",
            (
                "1:1: schedulingProfiles: a plugin of type 'max-score-picker' is needed (profile 'default' names no "
                "picker), and the name is taken by one of another type"
            ),
        ),
        (
            "[{type: queue-scorer, name: metrics-data-source}]",
            (
                "1:1: dataLayer: a plugin of type 'metrics-data-source' is needed "
                "(dataLayer.injectDefaults), and the name "
                "is taken by one of another type"
            ),
        ),
    ],
)
def test_plugins_have_a_type_a_name_of_their_own_and_parameters_that_fit(refused, plugins, problem):
    assert only(refused(f"plugins: {plugins}")) == problem


def test_experimental_plugin_is_refused_unless_allowed(build, refused):
    text = "plugins: [{type: joint-aggregator}, {type: disagg-profile-handler}]\nschedulingProfiles: [{name: decode}]"
    assert only(refused(text)) == (
        "3:11: plugins[0]: plugin 'joint-aggregator': type joint-aggregator is experimental; "
        "start with --allow-experimental-plugins to use it"
    )
    assert build(text, experimental=True).pipeline.scheduler.aggregator.name == "joint-aggregator"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"plugins: [{{type: queue-scorer}}]\n{profile('pluginRef: queue')}",
            (
                "4:43: schedulingProfiles[0].plugins[0].pluginRef: no plugin is named 'queue'; did you "
                "mean 'queue-scorer'?"
            ),
        ),
        (
            f"plugins: [{{type: queue-scorer}}]\n{profile('pluginRef: queue-scorer, weight: -1')}",
            (
                "4:68: schedulingProfiles[0].plugins[0].weight: weight -1 is negative, but "
                "scorers rate the better endpoints higher"
            ),
        ),
        (
            f"plugins: [{{type: queue-scorer}}]\n{profile('pluginRef: queue-scorer, weight: .inf')}",
            "4:68: schedulingProfiles[0].plugins[0].weight: scorer 'queue-scorer': weight inf is not a finite number",
        ),
        (
            f"plugins: [{{type: random-picker}}]\n{profile('pluginRef: random-picker, onError: Skip')}",
            (
                "4:69: schedulingProfiles[0].plugins[0].onError: 'random-picker' is the picker: without it nothing is "
                "picked"
            ),
        ),
        (
            "plugins: [{type: random-picker}, {type: max-score-picker}]\n"
            + profile("pluginRef: random-picker", "pluginRef: max-score-picker"),
            "4:70: schedulingProfiles[0].plugins[1]: two pickers, 'random-picker' and 'max-score-picker'; keep one",
        ),
        (
            "schedulingProfiles: [{name: p}, {name: p}]",
            "3:33: schedulingProfiles[1]: two profiles are named 'p'; give one of them another name",
        ),
    ],
)
def test_profile_refers_to_filters_scorers_and_one_picker(refused, text, problem):
    assert only(refused(text)) == problem


@pytest.mark.parametrize(
    ("plugins", "problem"),
    [
        ("[]", NO_PICKER),
        (
            "[{type: single-profile-handler}]",
            "plugin 'single-profile-handler': single-profile-handler takes one profile, not 2: a, b",
        ),
        (
            "[{type: data-parallel-profile-handler, name: dp}]",
            "plugin 'dp': data-parallel-profile-handler takes one profile, not 2: a, b",
        ),
        (
            "[{type: disagg-profile-handler}]",
            ("plugin 'disagg-profile-handler': the decode stage: profile 'decode' does not exist; profiles are a, b"),
        ),
        (
            "[{type: disagg-profile-handler}, {type: header-profile-handler}]",
            "two profile pickers, 'disagg-profile-handler' and 'header-profile-handler'; keep one",
        ),
    ],
)
def test_one_profile_picker_chooses_among_several_profiles(refused, plugins, problem):
    assert only(refused(f"{TWO_PROFILES}plugins: {plugins}")) == f"3:1: schedulingProfiles: {problem}"


def test_a_mistake_in_the_profile_picker_is_not_said_to_be_its_absence(refused):
    for mistake in ("type: disagg-profile-handlr", "type: disagg-profile-handler, parameters: {stages: {}}"):
        assert ": plugins[0]." in only(refused(f"{TWO_PROFILES}plugins: [{{{mistake}}}]"))


def test_a_plugin_that_cannot_be_built_is_not_reported_again_where_it_is_referred_to(refused):
    text = "plugins: [{type: queue-scorer, parameters: {x: 1}}]\n" + profile("pluginRef: queue-scorer")
    assert "unknown key" in only(refused(text))


def test_two_aggregators_are_one_too_many(refused):
    text = "plugins: [{type: joint-aggregator, name: a}, {type: joint-aggregator, name: b}]"
    assert only(refused(text, experimental=True)) == "3:1: plugins: two aggregators, 'a' and 'b'; keep one"


@pytest.mark.parametrize(
    ("decider", "problem"),
    [
        (
            "nobody",
            (
                "5:27: plugins[0].parameters.deciders.prefill: no plugin is named 'nobody'; "
                "known are disagg-profile-handler, queue-scorer"
            ),
        ),
        (
            "queue-scorer",
            (
                "5:3: plugins[0].parameters: plugin 'disagg-profile-handler': deciders.prefill: plugin 'queue-scorer' "
                "(type queue-scorer) is no Decider"
            ),
        ),
    ],
)
def test_decider_referred_to_must_be_there_and_be_one(refused, decider, problem):
    text = f"""\
plugins:
- type: disagg-profile-handler
  parameters: {{deciders: {{prefill: {decider}}}}}
- type: queue-scorer
schedulingProfiles: [{{name: decode}}]
"""
    assert only(refused(text)).startswith(problem)


@pytest.mark.parametrize("key", ["parser", "requestHandler"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "no plugin is named ''"),
        ("openai", "no plugin is named 'openai'; did you mean 'openai-parser'?"),
        ("queue-scorer", "plugin 'queue-scorer' (type queue-scorer) is no Parser"),
    ],
)
def test_parser_referred_to_must_be_there_and_be_one(refused, key, name, problem):
    ref = f"{{pluginRef: '{name}'}}"
    value = ref if key == "parser" else f"{{parsers: [{ref}]}}"
    assert problem in only(refused(f"plugins: [{{type: openai-parser}}, {{type: queue-scorer}}]\n{key}: {value}"))


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ("sources: [{pluginRef: nope}]", "sources[0].pluginRef: no plugin is named 'nope'"),
        (
            "sources: [{pluginRef: queue-scorer}]",
            "sources[0].pluginRef: plugin 'queue-scorer' (type queue-scorer) is no DataSource",
        ),
        (
            "sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: nope}]}]",
            "sources[0].extractors[0].pluginRef: no plugin is named 'nope'",
        ),
        (
            "sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: queue-scorer}]}]",
            "sources[0].extractors[0].pluginRef: plugin 'queue-scorer' (type queue-scorer) is no Extractor",
        ),
        (
            "sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: one}, {pluginRef: two}]}]",
            "sources[0].extractors[1]: a second extractor of type 'core-metrics-extractor' on one source",
        ),
        (
            "sources: [{pluginRef: endpoint-notification-source, extractors: [{pluginRef: one}]}]",
            "sources[0].extractors[0].pluginRef: plugin 'one' (type core-metrics-extractor) is no Tagger",
        ),
        ("discovery: {pluginRef: nope}", "discovery.pluginRef: no plugin is named 'nope'"),
        (
            "discovery: {pluginRef: one}",
            "discovery.pluginRef: plugin 'one' (type core-metrics-extractor) is no Discovery",
        ),
        ("discovery: {endpoints: {pluginRef: nope}}", "discovery.endpoints.pluginRef: no plugin is named 'nope'"),
        ("discovery: {}", "discovery: names no source: write endpoints: {pluginRef: ...}, or leave it out"),
    ],
)
def test_data_layer_refers_to_sources_extractors_and_a_discovery(refused, layer, problem):
    text = f"""\
dataLayer: {{{layer}}}
plugins:
- {{type: queue-scorer}}
- {{type: metrics-data-source}}
- {{type: endpoint-notification-source}}
- {{type: core-metrics-extractor, name: one}}
- {{type: core-metrics-extractor, name: two}}
"""
    assert f": dataLayer.{problem}" in only(refused(text))


class Everything(Filter, Scorer, Picker):
    """Has all the roles of a profile."""

    plugin_type = "everything"
    reads = (WAITING,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return candidates.values(WAITING) >= 0

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return candidates.values(WAITING)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        return totals.argsort()


def test_plugin_of_several_roles_is_used_in_all_of_them(build):
    registry = Registry()
    registry.register(Everything)
    text = "plugins: [{type: everything}]\n" + profile("pluginRef: everything, weight: 2")
    (found,) = build(text, registry=registry).pipeline.scheduler.profiles.values()
    assert found.filters[0].filter is found.scorers[0].scorer is found.picker
    assert found.scorers[0].weight == 2
