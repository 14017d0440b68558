# SPDX-License-Identifier: Apache-2.0
"""What makes a configuration unusable, beside its form: each with its sentence, and nothing said twice."""

import pytest

from epp.framework import Candidates, Draw, Filter, Floats, Mask, Picker, Positions, Request, Scorer
from epp.framework.registry import Registry
from epp.framework.snapshot import WAITING

TWO_PROFILES = "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]\n"


def profile(*refs: str) -> str:
    return f"schedulingProfiles: [{{name: p, plugins: [{', '.join(f'{{{ref}}}' for ref in refs)}]}}]\n"


def only(problems) -> str:
    (problem,) = problems
    return str(problem).removeprefix("c.yaml:")


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ("flow", "'flow' is not known; did you mean 'flowControl'?"),
        ("flowControl=maybe", "'flowControl' is 'maybe', which is neither true nor false"),
        ("flowControl=", "'flowControl' is '', which is neither true nor false"),
    ],
)
def test_feature_gate_must_be_known_and_true_or_false(refused, gate, problem):
    assert only(refused(f"featureGates: [{gate}]")) == f"3:16: featureGates[0]: feature gate {problem}"


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


def test_plugin_has_a_type_and_the_parameters_that_it_needs(refused):
    assert only(refused('plugins: [{type: ""}]')) == (
        "3:12: plugins[0].type: plugin type '' is not registered; `epp plugins` lists all types"
    )
    assert only(refused("plugins: [{type: header-label-affinity-scorer, parameters: {headerName: x}}]")) == (
        "3:48: plugins[0].parameters.labelKey: plugin 'header-label-affinity-scorer': labelKey is missing; add it"
    )


@pytest.mark.parametrize("taken", ["queue-scorer", "round-robin-fairness-policy"])
def test_two_plugins_of_one_name_are_refused(refused, taken):
    problem = only(refused(f"plugins: [{{type: {taken}}}, {{type: prefix-cache-scorer, name: {taken}}}]"))
    assert problem.endswith(f": plugins[1]: two plugins are named '{taken}'; give one of them another name")


@pytest.mark.parametrize(
    ("kind", "place", "reason"),
    [
        ("openai-parser", "requestHandler", "the file names no parser"),
        ("max-score-picker", "schedulingProfiles", "profile 'default' names no picker"),
        ("metrics-data-source", "dataLayer", "dataLayer.injectDefaults"),
    ],
)
def test_name_of_an_added_plugin_must_not_be_taken(refused, kind, place, reason):
    assert only(refused(f"plugins: [{{type: queue-scorer, name: {kind}}}]")) == (
        f"1:1: {place}: a plugin of type '{kind}' is needed ({reason}), but a plugin of another type has this name"
    )


def test_experimental_plugin_is_refused_unless_allowed(build, refused):
    text = "plugins: [{type: joint-aggregator}, {type: disagg-profile-handler}]\nschedulingProfiles: [{name: decode}]"
    assert only(refused(text)) == (
        "3:11: plugins[0]: plugin 'joint-aggregator': type joint-aggregator is experimental; "
        "start with --allow-experimental-plugins to use it"
    )
    assert build(text, experimental=True).pipeline.scheduler.aggregator.name == "joint-aggregator"


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        ("-1", "weight -1 is negative, but scorers rate the better endpoints higher"),
        (".inf", "scorer 'queue-scorer': weight inf is not a finite number"),
    ],
)
def test_weight_is_a_finite_number_of_0_or_more(refused, weight, problem):
    text = "plugins: [{type: queue-scorer}]\n" + profile(f"pluginRef: queue-scorer, weight: {weight}")
    assert only(refused(text)) == f"4:68: schedulingProfiles[0].plugins[0].weight: {problem}"


def test_profile_has_one_picker_that_may_not_fail_and_a_name_of_its_own(refused):
    pickers = "plugins: [{type: random-picker}, {type: max-score-picker}]\n"
    assert only(refused(pickers + profile("pluginRef: random-picker, onError: Skip"))) == (
        "4:69: schedulingProfiles[0].plugins[0].onError: 'random-picker' is the picker: without it nothing is picked"
    )
    assert only(refused(pickers + profile("pluginRef: random-picker", "pluginRef: max-score-picker"))) == (
        "4:70: schedulingProfiles[0].plugins[1]: two pickers, 'random-picker' and 'max-score-picker'; keep one"
    )
    assert only(refused("schedulingProfiles: [{name: p}, {name: p}]")) == (
        "3:33: schedulingProfiles[1]: two profiles are named 'p'; give one of them another name"
    )


@pytest.mark.parametrize(
    ("plugins", "problem"),
    [
        (
            "",
            (
                "2 profiles and no profile picker to choose among them; add a profile picker to plugins, such as "
                "disagg-profile-handler, or keep one profile"
            ),
        ),
        (
            "{type: single-profile-handler}",
            "plugin 'single-profile-handler': single-profile-handler takes one profile, not 2: a, b",
        ),
        (
            "{type: data-parallel-profile-handler, name: dp}",
            "plugin 'dp': data-parallel-profile-handler takes one profile, not 2: a, b",
        ),
        (
            "{type: disagg-profile-handler, name: d}",
            "plugin 'd': the decode stage: profile 'decode' does not exist; profiles are a, b",
        ),
        (
            "{type: disagg-profile-handler, name: d}, {type: header-profile-handler, name: h}",
            "two profile pickers, 'd' and 'h'; keep one",
        ),
    ],
)
def test_one_profile_picker_chooses_among_several_profiles(refused, plugins, problem):
    assert only(refused(f"{TWO_PROFILES}plugins: [{plugins}]")) == f"3:1: schedulingProfiles: {problem}"


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
        ("nobody", ": no plugin is named 'nobody'; known are disagg-profile-handler, queue-scorer"),
        ("queue-scorer", ": plugin 'queue-scorer' (type queue-scorer) is not a Decider"),
    ],
)
def test_decider_referred_to_must_be_there_and_be_one(refused, decider, problem):
    handler = f"{{type: disagg-profile-handler, parameters: {{deciders: {{prefill: {decider}}}}}}}"
    text = f"plugins: [{handler}, {{type: queue-scorer}}]\nschedulingProfiles: [{{name: decode}}]\n"
    found = only(refused(text))
    assert found.startswith("3:")
    assert f"deciders.prefill{problem}" in found


@pytest.mark.parametrize("key", ["parser", "requestHandler"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "no plugin is named ''"),
        ("openai", "no plugin is named 'openai'; did you mean 'openai-parser'?"),
        ("queue-scorer", "plugin 'queue-scorer' (type queue-scorer) does not implement Parser"),
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
            "sources: [{pluginRef: q}]",
            "sources[0].pluginRef: plugin 'q' (type queue-scorer) does not implement DataSource",
        ),
        ("discovery: {pluginRef: nope}", "discovery.pluginRef: no plugin is named 'nope'"),
        (
            "discovery: {pluginRef: q}",
            "discovery.pluginRef: plugin 'q' (type queue-scorer) does not implement Discovery",
        ),
        ("discovery: {endpoints: {pluginRef: nope}}", "discovery.endpoints.pluginRef: no plugin is named 'nope'"),
        ("discovery: {}", "discovery: names no source: write endpoints: {pluginRef: ...}, or leave it out"),
    ],
)
def test_data_layer_refers_to_sources_and_a_discovery(refused, layer, problem):
    assert f": dataLayer.{problem}" in only(
        refused(f"dataLayer: {{{layer}}}\nplugins: [{{type: queue-scorer, name: q}}]")
    )


@pytest.mark.parametrize(
    ("source", "extractors", "problem"),
    [
        ("metrics-data-source", "nope", "[0].pluginRef: no plugin is named 'nope'"),
        ("metrics-data-source", "q", "[0].pluginRef: plugin 'q' (type queue-scorer) does not implement Extractor"),
        ("metrics-data-source", "a b", "[1]: is a second extractor of type 'core-metrics-extractor' of one source"),
        (
            "endpoint-notification-source",
            "a",
            "[0].pluginRef: plugin 'a' (type core-metrics-extractor) does not implement Tagger",
        ),
    ],
)
def test_extractors_of_a_source_are_those_it_can_have(refused, source, extractors, problem):
    refs = ", ".join(f"{{pluginRef: {name}}}" for name in extractors.split())
    text = f"""\
dataLayer: {{sources: [{{pluginRef: {source}, extractors: [{refs}]}}]}}
plugins:
- {{type: {source}}}
- {{type: queue-scorer, name: q}}
- {{type: core-metrics-extractor, name: a}}
- {{type: core-metrics-extractor, name: b}}
"""
    assert f": dataLayer.sources[0].extractors{problem}" in only(refused(text))


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
