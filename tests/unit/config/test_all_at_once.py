# SPDX-License-Identifier: Apache-2.0
"""Mistakes of keys, types and parameters are told together, then those of references, each once and at its place."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config import Builder, InvalidConfigError, assemble, load_text
from epp.config.document import written
from epp.framework import ManualClock
from epp.framework.registry import Registry

CONFIG = Path(__file__).parents[3] / "config"

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
MANY = """\
apiVersion: llm-d.ai/v2
kind: EndpointPickerConfig
featureGates: [flowcontrol]
plugins:
- type: queue-scorer
  parameters: {normalizeBy: relativeCapcity, topMissing: 1}
- type: prefix-cash-scorer
- type: prefix-cache-scorer
  name: 5
  parameters:
    matchLengthWeight: "0.5"
    matchLengthScaleTokens: -1
- typ: max-score-picker
  parameters:
    maxNumOfEndpoints: 2.5
- name: typeless
- type: disagg-profile-handler
  parameters:
    deciders: {prefill: nobody}
    stageOrder: sideways
- type: cost-aware-spill
  parameters:
    limits:
      t4: {maxConcurrency: many}
      l4: {kvThreshold: 80}
    bound: 0
- type: session-affinity-filter
  parameters:
    sessionIdConfig:
      sources:
      - {header: x-a}
      - {haeder: x-b}
- type: label-selector-filter
  parameters: {matchLabels: {zone: 5}}
- type: label-selector-filter
schedulingProfiles:
- name: decode
  plugins:
  - {pluginRef: queue-scorer, weight: "2"}
  - {pluginRef: "5", wieght: -1}
  - {pluginRef: active-request-scorer}
  - {pluginRef: typeless}
  - {pluginRef: cost-aware-spill, weight: 3}
  - {pluginRef: max-score-picker, onError: skip}
- plugins: []
- name: prefill
  plugins:
  - {pluginRef: session-affinity-filtr}
dataLayer:
  injectDefaults: "false"
  sources: [{pluginRef: queue-scorer}]
requestHandler:
  parsers: [{pluginRef: queue-scorer}]
flowControl:
  maxBytes: lots
"""


def problems_of(text, **options):
    with pytest.raises(InvalidConfigError) as caught:
        assemble(load_text(text, "c.yaml"), Builder(Registry(), ManualClock(), **options))
    return caught.value.problems


def places_of(text):
    """Return where each problem stands; what they say is tested where each is found."""
    found = problems_of(text)
    return [f"{each.position.line}:{each.position.column} {written(each.path)}" for each in found]


def test_mistakes_of_keys_types_and_parameters_are_told_at_once():
    assert places_of(MANY) == [
        "1:1 apiVersion",
        "6:16 plugins[0].parameters.normalizeBy",
        "6:46 plugins[0].parameters.topMissing",
        "7:3 plugins[1].type",
        "9:3 plugins[2].name",
        "13:3 plugins[3].typ",
        "16:3 plugins[4].type",
        "20:5 plugins[5].parameters.stageOrder",
        "24:12 plugins[6].parameters.limits.t4.maxConcurrency",
        "25:12 plugins[6].parameters.limits.l4.kvThreshold",
        "26:5 plugins[6].parameters.bound",
        "32:10 plugins[7].parameters.sessionIdConfig.sources[1].haeder",
        "34:30 plugins[8].parameters.matchLabels.zone",
        "35:3 plugins[9]",
        "39:31 schedulingProfiles[0].plugins[0].weight",
        "40:22 schedulingProfiles[0].plugins[1].wieght",
        "44:35 schedulingProfiles[0].plugins[5].onError",
        "45:3 schedulingProfiles[1].name",
        "50:3 dataLayer.injectDefaults",
        "55:3 flowControl.maxBytes",
    ]


OF_READING = [
    ("wieght: -1", "weight: -1"),
    ("v2", "v1"),
    ("{normalizeBy: relativeCapcity, topMissing: 1}", "{normalizeBy: relativeCapacity}"),
    ("name: 5", 'name: "5"'),
    ('matchLengthWeight: "0.5"', "matchLengthWeight: 0.5"),
    ("matchLengthScaleTokens: -1", "matchLengthScaleTokens: 1"),
    ("typ: ", "type: "),
    ("2.5", "2"),
    ("- name: typeless", "- {type: decode-filter, name: typeless}\n- {type: always-disagg-pd-decider}"),
    ("sideways", "decode-first"),
    ("many", "4"),
    ("80", "0.8"),
    ("bound: 0\n", "bound: 1\n"),
    ("haeder", "header"),
    ("zone: 5", "zone: b"),
    ("- type: label-selector-filter\nscheduling", "scheduling"),
    ('weight: "2"', "weight: 2"),
    (", weight: 3", ""),
    (", onError: skip", ""),
    ("- plugins: []\n", ""),
    ('"false"', "false"),
    ("lots", "10Gi"),
    ("- type: prefix-cash-scorer\n", "- type: active-request-scorer\n"),
]
"""The correction of each mistake of keys, types and parameters."""
OF_REFERENCES = [
    ("flowcontrol", "flowControl"),
    ("prefill: nobody", "prefill: always-disagg-pd-decider"),
    ("weight: -1", "weight: 1"),
    ("session-affinity-filtr", "session-affinity-filter"),
    ("sources: [{pluginRef: queue-scorer}]", "sources: []"),
    ("parsers: [{pluginRef: queue-scorer}]", "parsers: []"),
]


def corrected(text, corrections):
    for wrong, correct in corrections:
        assert text.count(wrong) == 1, wrong
        text = text.replace(wrong, correct)
    return text


def test_wrong_references_are_told_at_once_when_all_parts_are_readable():
    assert places_of(corrected(MANY, OF_READING)) == [
        "3:16 featureGates[0]",
        "20:16 plugins[6].parameters.deciders.prefill",
        "40:22 schedulingProfiles[0].plugins[1].weight",
        "47:6 schedulingProfiles[1].plugins[0].pluginRef",
        "50:14 dataLayer.sources[0].pluginRef",
        "52:14 requestHandler.parsers[0].pluginRef",
    ]


def profile(*names):
    return f"schedulingProfiles: [{{name: p, plugins: [{', '.join(f'{{pluginRef: {name}}}' for name in names)}]}}]\n"


TWICE = f"""\
plugins: [{{type: queue-scorer}}]
{profile("queue-scorer", "r")}
plugins: [{{type: nope, name: r}}]
"""
TOLD = """\
plugins:
- {type: inflight-load-producer, parameters: {x: 1}}
- {type: endpoint-notification-source}
dataLayer:
  sources: [{pluginRef: endpoint-notification-source, extractors: [{pluginRef: inflight-load-producer}]}]
"""
TAKEN = """\
plugins: [{type: queue-scorer, name: max-score-picker}]
schedulingProfiles: [{name: p}, {name: q, plugins: [{pluginRef: x}]}]
"""


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        # a plugin that cannot be built is known by its name, wherever it is named
        (profile("q") + "plugins: [{type: queue-scorer, name: q, parameters: {x: 1}}]", ["plugins[0].parameters.x"]),
        (f"{profile('q')}plugns: [{{type: queue-scorer, name: q}}, {{type: nope}}]", ["plugns"]),
        (f"{profile('q')}plugins: {{q: {{type: queue-scorer}}}}", ["plugins"]),
        (f"{profile('q')}plugins: [{{name: [q], type: 5}}]", ["plugins[0].name", "plugins[0].type"]),
        (
            "plugins: [{type: 1}, {type: 2}, {type: queue-scorer, nope: 1}]",
            ["plugins[0].type", "plugins[1].type", "plugins[2].nope"],
        ),
        # a plugin that cannot be built may be told of endpoints all the same
        (TOLD, ["plugins[0].parameters.x"]),
        # profiles that cannot be read are not missed
        (
            "plugins: [{type: disagg-profile-handler}]\nschedulingProfiles: [{nmae: decode}, {plugins: []}]",
            ["schedulingProfiles[0].nmae", "schedulingProfiles[1].name"],
        ),
        ("schedulingProfiles: [{name: a}, {}]", ["schedulingProfiles[1].name"]),
        # a mistake in one profile hides none in the next
        (TAKEN, [*["schedulingProfiles"] * 3, "schedulingProfiles[1].plugins[0].pluginRef"]),
        # lists under a key that stands twice are joined
        (TWICE, ["", "plugins[1].type"]),
    ],
)  # fmt: skip
def test_no_mistake_is_told_for_another(text, paths):
    assert [written(problem.path) for problem in problems_of(HEAD + text)] == paths


def test_experimental_plugin_is_told_with_its_mistakes():
    text = f"{HEAD}plugins: [{{type: joint-aggregator, parameters: {{x: 1}}}}]"
    assert [written(problem.path) for problem in problems_of(text)] == ["plugins[0]", "plugins[0].parameters.x"]


def test_version_that_is_not_known_is_refused_with_those_that_are():
    assert str(problems_of(MANY)[0]) == (
        "c.yaml:1:1: apiVersion: is 'llm-d.ai/v2', but takes 'llm-d.ai/v1', 'llm-d.ai/v1alpha1' or "
        "'inference.networking.x-k8s.io/v1alpha1'"
    )


def test_warnings_are_told_beside_mistakes():
    text = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: tokenizer}, {type: nope}]\n"
    with pytest.raises(InvalidConfigError) as caught:
        assemble(load_text(text), Builder(Registry(), ManualClock(), experimental=True))
    assert [warning.message for warning in caught.value.warnings if "deprecated" in warning.message]


FILES = {file.name: file.read_text() for file in sorted(CONFIG.glob("*.yaml"))} | {
    "many.yaml": corrected(MANY, [*OF_READING, *OF_REFERENCES])
}
WRONG_VALUES = ["x", "5", 5, -1, 2.5, True, None, [], {}, ["x"], {"x": 1}, "", [[]], 10**400, "\t", "\u2028"]


def leaves(content, path=()):
    """Yield the path of every part of a document."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


def changed(content, path, change):
    """Return a copy in which the part at the path is changed."""
    copy = dict(content) if isinstance(content, dict) else list(content)
    step, *rest = path
    if rest:
        copy[step] = changed(content[step], rest, change)
    else:
        change(copy, step)
    return copy


def put(value):
    return lambda holder, step: holder.__setitem__(step, value)


def drop(holder, step):
    del holder[step]


def rename(holder, step):
    if isinstance(holder, dict):
        items = [(f"{key}{key[-1:]}" if key == step else key, value) for key, value in holder.items()]
        holder.clear()
        holder.update(items)


def repeat(holder, step):
    if isinstance(holder, list):
        holder.insert(step, holder[step])


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=settings().max_examples // 4)  # the files are examples as well
@given(data=st.data())
def test_corruption_of_any_one_field_is_placed_in_the_file_or_harmless(file, data):
    content = yaml.safe_load(FILES[file])
    path = data.draw(st.sampled_from(list(leaves(content))), label="path")
    change = data.draw(st.one_of(st.sampled_from(WRONG_VALUES).map(put), st.sampled_from([drop, rename, repeat])))
    text = yaml.safe_dump(changed(content, path, change), sort_keys=False, allow_unicode=data.draw(st.booleans()))
    try:
        assemble(load_text(text, "c.yaml"), Builder(Registry(), ManualClock(), experimental=True))
    except InvalidConfigError as error:
        found = error.problems
    else:
        return
    assert found
    lines = text.split("\n")
    for problem in found:
        if problem.position is None:
            assert "holds no EndpointPickerConfig" in problem.message
        else:
            assert 1 <= problem.position.column <= len(lines[problem.position.line - 1])
    assert len(set(map(str, found))) == len(found)


@pytest.mark.parametrize("file", FILES)
def test_files_that_were_corrupted_are_right_as_they_are(file):
    again = yaml.safe_dump(yaml.safe_load(FILES[file]), sort_keys=False)
    assemble(load_text(again), Builder(Registry(), ManualClock(), experimental=True))
