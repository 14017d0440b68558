# SPDX-License-Identifier: Apache-2.0
"""Every problem says where it stands: path, line and column."""

import json

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from epp.config import InvalidConfigError, load_text
from epp.config.document import NotYamlError, Text, read_documents


@pytest.fixture(scope="session")
def places(refused):
    """Return each problem as `line:column path: message`."""
    return lambda text, **options: [str(problem).removeprefix("c.yaml:") for problem in refused(text, **options)]


def not_yaml(text: str) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        load_text(text, "c.yaml")
    (problem,) = caught.value.problems
    return str(problem)


def test_unknown_keys_at_every_level_are_placed_with_the_nearest_known_name_or_all(places):
    assert places("""\
plugin: []
plugins:
- type: queue-scorer
  nam: q
schedulingProfiles:
- name: p
  plugins:
  - pluginRef: q
    wieght: 2
dataLayer:
  injectDefault: false
  sources:
  - pluginRef: s
    extractor: []
flowControl:
  priorityBands:
  - priority: 1
    maxRequest: 5
requestHandler:
  zzz: 1
""") == [
        "3:1: plugin: unknown key; did you mean 'plugins'?",
        "6:3: plugins[0].nam: unknown key; did you mean 'name'?",
        "11:5: schedulingProfiles[0].plugins[0].wieght: unknown key; did you mean 'weight'?",
        "13:3: dataLayer.injectDefault: unknown key; did you mean 'injectDefaults'?",
        "16:5: dataLayer.sources[0].extractor: unknown key; did you mean 'extractors'?",
        "20:5: flowControl.priorityBands[0].maxRequest: unknown key; did you mean 'maxRequests'?",
        "22:3: requestHandler.zzz: unknown key; known are parsers, propagatePriority",
    ]


def test_unknown_keys_inside_parameters_are_placed_whether_nested_or_in_a_list(places):
    assert places("""\
plugins:
- type: session-affinity-filter
  name: a
  parameters:
    sessionIdConfig:
      sources: [{header: x-a}, {hader: x-b}]
- {type: max-score-picker, name: b, parameters: {maxNumOfEndpoint: 3}}
- type: topology-affinity-scorer
  name: c
  parameters:
    weights:
      host: 1
      zoen: 0.5
- {type: passthrough-parser, parameters: {any: thing}}
""") == [
        "8:33: plugins[0].parameters.sessionIdConfig.sources[1].hader: plugin 'a': unknown key; did you mean 'header'?",
        "9:50: plugins[1].parameters.maxNumOfEndpoint: plugin 'b': unknown key; did you mean 'maxNumOfEndpoints'?",
        "15:7: plugins[2].parameters.weights.zoen: plugin 'c': unknown key; did you mean 'zone'?",
        "16:43: plugins[3].parameters.any: plugin 'passthrough-parser': unknown key; there are none",
    ]


def test_missing_keys_are_placed_at_what_lacks_them(places):
    assert places("""\
plugins:
- type: queue-scorer
- name: nameless
schedulingProfiles:
- plugins:
  - {weight: 1}
dataLayer:
  sources: [{extractors: []}]
""") == [
        "5:3: plugins[1].type: is missing; add it",
        "7:3: schedulingProfiles[0].name: is missing; add it",
        "8:5: schedulingProfiles[0].plugins[0].pluginRef: is missing; add it",
        "10:13: dataLayer.sources[0].pluginRef: is missing; add it",
    ]


def test_values_of_the_wrong_type_are_shown_with_what_is_due(places):
    assert places("""\
featureGates: flowControl
plugins:
- type: 5
- queue-scorer
schedulingProfiles:
- name: ""
  plugins:
  - {pluginRef: q, weight: "2", onError: Ignore}
  - {pluginRef: q, weight: yes}
dataLayer:
  injectDefaults: "no"
flowControl:
  maxBytes: -5
  maxRequests: 1.5
  defaultRequestTTL: 60
  priorityBands:
  - priority: high
""") == [
        "3:1: featureGates: is 'flowControl'; write a list",
        "5:3: plugins[0].type: is 5; write it in quotes",
        "6:3: plugins[1]: is 'queue-scorer'; write `type: queue-scorer`",
        "8:3: schedulingProfiles[0].name: is empty; give it a name",
        "10:20: schedulingProfiles[0].plugins[0].weight: is '2'; remove the quotes",
        "10:33: schedulingProfiles[0].plugins[0].onError: is 'Ignore', but must be 'Skip' or 'Fail'",
        "11:20: schedulingProfiles[0].plugins[1].weight: is true; write a number",
        "13:3: dataLayer.injectDefaults: is 'no'; write true or false",
        (
            "15:3: flowControl.maxBytes: '-5' is not a quantity: write 0 or more, optionally with k, M, G, T, Ki, Mi, "
            "Gi or Ti"
        ),
        "16:3: flowControl.maxRequests: write a number, or a quantity such as 10Gi",
        "17:3: flowControl.defaultRequestTTL: write a duration such as 60s or 1m30s",
        "19:5: flowControl.priorityBands[0].priority: is 'high'; write a whole number",
    ]


def test_values_of_the_wrong_type_inside_parameters_are_placed(places):
    assert places("""\
plugins:
- {type: prefix-cache-scorer, name: a, parameters: {matchLengthWeight: 2}}
- {type: max-score-picker, name: b, parameters: {maxNumOfEndpoints: many}}
- type: label-selector-filter
  parameters:
    matchLabels:
      zone: 5
- type: prefix-cache-scorer
  parameters: []  # wrong by itself
""") == [
        "4:53: plugins[0].parameters.matchLengthWeight: plugin 'a': matchLengthWeight is 2; it must be between 0 and 1",
        "5:50: plugins[1].parameters.maxNumOfEndpoints: plugin 'b': maxNumOfEndpoints is 'many'; write a whole number",
        "9:7: plugins[2].parameters.matchLabels.zone: plugin 'label-selector-filter': zone is 5; write it in quotes",
        "11:3: plugins[3].parameters: is a list; write a mapping",
    ]


def test_problems_come_in_the_order_of_the_file_whichever_step_finds_them(places):
    assert places("""\
schedulingProfiles:
- name: p
  plugins: [{pluginRef: nobody}]
featureGates: [flowcontrol]
requestHandler:
  parsers: [{pluginRef: queue-scorer}]
plugins:
- type: queue-scorer
""") == [
        "5:14: schedulingProfiles[0].plugins[0].pluginRef: no plugin is named 'nobody'; known are queue-scorer",
        "6:16: featureGates[0]: feature gate 'flowcontrol' is not known; did you mean 'flowControl'?",
        (
            "8:14: requestHandler.parsers[0].pluginRef: plugin 'queue-scorer' (type queue-scorer) does not implement "
            "Parser"
        ),
    ]


def test_json_is_read_and_placed_as_yaml_is_even_with_tabs(places):
    head = '{\n\t"apiVersion": "llm-d.ai/v1alpha1",\n\t"kind": "EndpointPickerConfig",\n'
    text = '\t"plugins": [\n\t\t{"type":\t"queue-scorer", "nmae": "q"}\n\t]\n}'
    assert places(text, head=head) == ["5:28: plugins[0].nmae: unknown key; did you mean 'name'?"]


def test_anchors_and_merge_keys_bring_in_what_they_name(build):
    assembly = build("""\
plugins:
- &base
  type: prefix-cache-scorer
  name: one
  parameters: &few {matchLengthScaleTokens: 2}
- <<: *base
  name: two
- <<: [*base]
  name: three
  parameters:
    <<: *few
    matchLengthScaleTokens: 3
""")
    scorers = [plugin for plugin in assembly.plugins if plugin.plugin_type == "prefix-cache-scorer"]
    found = {scorer.name: scorer.parameters.match_length_scale_tokens for scorer in scorers}
    assert found == {"one": 2, "two": 2, "three": 3}


def test_what_a_merge_key_brings_in_stands_where_it_is_written_unless_it_is_overridden(places):
    assert places("""\
plugins:
- &base
  type: max-score-picker
  nmae: one
- <<: *base
  name: 5
schedulingProfiles: [{name: p, plugins: [{pluginRef: one}, {pluginRef: "5"}]}]
""") == [
        "6:3: plugins[0].nmae: unknown key; did you mean 'name'?",
        "6:3: plugins[1].nmae: unknown key; did you mean 'name'?",
        "8:3: plugins[1].name: is 5; write it in quotes",
    ]


def test_key_that_a_mapping_both_merges_and_has_does_not_stand_twice(build):
    by_name = build("""\
plugins:
- {type: label-selector-filter, name: a, parameters: {matchLabels: &one {zone: a, pool: x}}}
- {type: label-selector-filter, name: b, parameters: {matchLabels: &two {<<: *one, zone: b}}}
- {type: label-selector-filter, name: c, parameters: {matchLabels: {<<: *two, zone: c}}}
""").instances.by_name
    labels = {name: by_name[name].parameters.match_labels for name in "abc"}
    assert labels == {name: {"zone": name, "pool": "x"} for name in "abc"}


def test_keys_are_strings_and_one_without_a_value_is_left_out(build, places):
    text = "plugins: [{type: label-selector-filter, parameters: {matchLabels: {1: a, on: b, since: 2026-01-31}}}]"
    parameters = build(text).instances.by_name["label-selector-filter"].parameters
    assert parameters.match_labels == {"1": "a", "on": "b", "since": "2026-01-31"}
    assert places("on: 1\n")[0].startswith("3:1: on: unknown key")
    assembly = build("plugins:\nschedulingProfiles:\ndataLayer:\nflowControl:\n")
    assert list(assembly.pipeline.scheduler.profiles) == ["default"]
    assert places("plugins:\n- type:\n") == ["4:3: plugins[0].type: is missing; add it"]
    assert places("plugns:\n") == ["3:1: plugns: unknown key; did you mean 'plugins'?"]


ALIASES = "plugins:\n- &a0 {type: x}\n" + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: a\nplugins: [\n", "c.yaml:3:1: is not valid YAML: a value is missing, or a bracket is not closed"),
        ("kind: a\n  plugins: []\n", "c.yaml:2:10: is not valid YAML: a colon is not expected here: put the value in"),
        ("kind: a\nplugins: [x, y\n", "c.yaml:2:10: is not valid YAML: [ is not closed, or a comma is missing"),
        ("plugins: {x: 1 y: 2}\n", "c.yaml:1:10: is not valid YAML: { is not closed, or a comma is missing"),
        ("kind: 'a\nname: b\n", "c.yaml:1:7: is not valid YAML: a quote is opened and not closed"),
        ("a: 1\nkind:a\nb: 2\n", "c.yaml:2:1: is not valid YAML: a key is not followed by a colon and a space"),
        ("kind: a\n\tplugins: []\n", "c.yaml:2:1: is not valid YAML: a tab in the indentation; write spaces"),
        ("a: 1\n---\nb: 2\n", "c.yaml: contains no EndpointPickerConfig, but a mapping, a mapping; begin with "),
        ("", "c.yaml: is empty; begin with apiVersion: llm-d.ai/v1alpha1 and kind: EndpointPickerConfig"),
        ("# nothing\n---\n", "c.yaml: is empty; begin with "),
        ("kind: a\nname: 'x\x01y'\n", "c.yaml:2:9: is not valid YAML: character U+0001 is not allowed"),
        ("kind: é\nname: '\ud800'\n", "c.yaml:2:8: is not valid YAML: character U+D800 is not allowed"),
        ("? [a, b]\n: 1\n", "c.yaml:1:3: is not valid YAML: while constructing a mapping, found unhashable key"),
        ("kind: *nobody\n", "c.yaml:1:7: is not valid YAML: found undefined alias"),
        ("plugins: &a [*a]\n", "c.yaml:1:14: is not usable: an alias is inside its own anchor"),
        ("plugins: &a {b: [*a]}\n", "c.yaml:1:18: is not usable: an alias is inside its own anchor"),
        (ALIASES, "c.yaml:8:28: is not usable: its aliases expand to more than 1000000 values: write fewer"),
        ("kind: !secret x\n", "c.yaml:1:7: is not valid YAML: could not determine a constructor for the tag '!secret'"),
        ("kind: !!int many\n", "c.yaml:1:7: is not valid YAML: 'many' is not a valid int"),
        ("kind: !!bool perhaps\n", "c.yaml:1:7: is not valid YAML: 'perhaps' is not a valid bool"),
        ("kind: 0b_\n", "c.yaml:1:7: is not valid YAML: '0b_' is not a valid int"),
        ("kind: {<<: 5}\n", "c.yaml:1:12: is not valid YAML: while constructing a mapping, expected a mapping"),
        ("[" * 20_000, "c.yaml:1:65: is not usable: nested more than 64 deep"),
        ("- a\n", "c.yaml: contains no EndpointPickerConfig, but a list; begin with "),
        ("42\n", "c.yaml: contains no EndpointPickerConfig, but a value; begin with "),
    ],
)
def test_text_that_cannot_be_read_says_from_where_on(text, problem):
    assert not_yaml(text).startswith(problem)


@given(st.text(alphabet="ab1.-:,?!&*#|>'\"%@`[]{}<~_ \t\n\x00\x7f\ud800é", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        documents = read_documents(Text(text))
    except NotYamlError:
        return
    for document in documents:
        assert all(isinstance(key, str) for _, keys in mappings(document.content) for key in keys)


VALID = yaml.safe_load("""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: disagg-profile-handler
  parameters: {deciders: {prefill: decider}, profiles: {decode: d, prefill: p}}
- {type: prefix-based-pd-decider, name: decider, parameters: {nonCachedTokens: 16}}
- {type: topology-affinity-scorer, parameters: {weights: {host: 1.0, rack: 0.5}}}
- type: session-affinity-filter
  parameters: {strategy: session_id, sessionIdConfig: {sources: [{header: x-a}, {header: x-b}]}}
- {type: max-score-picker, name: best, parameters: {maxNumOfEndpoints: 2}}
- {type: metrics-data-source}
- {type: core-metrics-extractor}
- {type: openai-parser}
schedulingProfiles:
- {name: d, plugins: [{pluginRef: topology-affinity-scorer, weight: 2, onError: Fail}, {pluginRef: best}]}
- {name: p, plugins: [{pluginRef: session-affinity-filter}]}
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}
flowControl:
  maxBytes: 10Gi
  defaultPriorityBand: {maxBytes: 1G}
  priorityBands: [{priority: 1, maxRequests: 5}]
  saturationDetector: {pluginRef: utilization-detector}
requestHandler: {parsers: [{pluginRef: openai-parser}]}
""")


def mappings(content, path=()):
    """Yield path and keys of every mapping in the document."""
    if isinstance(content, dict):
        yield path, set(content)
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for step, value in items:
        yield from mappings(value, (*path, step))


def with_key(content, path, at, key):
    """Return the document with one more key in the mapping at the path."""
    if path:
        copy = dict(content) if isinstance(content, dict) else list(content)
        copy[path[0]] = with_key(content[path[0]], path[1:], at, key)
        return copy
    items = list(content.items())
    items.insert(at, (key, None))
    return dict(items)


@st.composite
def misspelt(draw, keys):
    """Draw one of the keys with a letter lost, doubled, or in the place of its neighbour."""
    key = draw(st.sampled_from(sorted(keys)))
    at = draw(st.integers(1, len(key) - 2))
    before, letter, after = key[:at], key[at], key[at + 1 :]
    wrong = draw(st.sampled_from([before + after, before + letter * 2 + after, before + after[0] + letter + after[1:]]))
    assume(wrong not in keys)
    return wrong


PATHS = [path for path, _ in mappings(VALID)]
KEYS = set().union(*(keys for _, keys in mappings(VALID)))
MARK = "MISSPELT"


def test_valid_document_is_valid(build):
    profiles = build(yaml.safe_dump(VALID), head="").pipeline.scheduler.profiles
    assert list(profiles) == [profile["name"] for profile in VALID["schedulingProfiles"]]


@given(
    path=st.sampled_from(PATHS),
    at=st.integers(0, 3),
    wrong=misspelt(KEYS),
    write=st.sampled_from(
        [
            lambda content: yaml.safe_dump(content, sort_keys=False),
            lambda content: yaml.safe_dump(content, sort_keys=False, default_flow_style=True, width=60),
            lambda content: yaml.safe_dump(content, sort_keys=False, default_flow_style=None, indent=4),
            lambda content: json.dumps(content, indent=2),
            lambda content: json.dumps(content, indent="\t"),
        ]
    ),
)
def test_misspelt_key_anywhere_is_one_problem_and_placed_where_it_stands(refused, path, at, wrong, write):
    text = write(with_key(VALID, path, at, MARK))
    before = text[: text.index(MARK)].removesuffix('"')
    (problem,) = refused(text.replace(MARK, wrong), head="")
    assert problem.path == (*path, wrong)
    assert "unknown key" in problem.message
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    assert (problem.position.line, problem.position.column) == (line, column)
