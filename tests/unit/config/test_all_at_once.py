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
- {type: queue-scorer, parameters: {topMissing: 1}}
- {type: prefix-cash-scorer}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: nobody}, stageOrder: sideways}}
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: queue-scorer, wieght: -1}]}
- {name: prefill, plugins: [{pluginRef: session-affinity-filtr}]}
- {plugins: []}
dataLayer: {injectDefaults: "false", sources: [{pluginRef: queue-scorer}]}
requestHandler: {parsers: [{pluginRef: queue-scorer}]}
flowControl: {maxBytes: lots}
"""
CORRECTIONS = [
    ("v2", "v1"),
    (", parameters: {topMissing: 1}", ""),
    ("- {type: prefix-cash-scorer}\n", ""),
    (", stageOrder: sideways", ""),
    ("wieght", "weight"),
    ("- {plugins: []}\n", ""),
    ('"false"', "false"),
    ("lots", "10Gi"),
]
"""Of each mistake of keys, types and parameters."""


def problems_of(text, **options):
    with pytest.raises(InvalidConfigError) as caught:
        assemble(load_text(text, "c.yaml"), Builder(Registry(), ManualClock(), **options))
    return caught.value.problems


def places_of(text):
    """Return where each problem stands; what they say is tested where each is found."""
    found = problems_of(text)
    return [f"{each.position.line}:{each.position.column} {written(each.path)}" for each in found]


def test_mistakes_of_keys_types_and_parameters_are_told_at_once_and_then_those_of_references():
    assert places_of(MANY) == [
        "1:1 apiVersion",
        "5:37 plugins[0].parameters.topMissing",
        "6:4 plugins[1].type",
        "7:76 plugins[2].parameters.stageOrder",
        "9:54 schedulingProfiles[0].plugins[0].wieght",
        "11:3 schedulingProfiles[2].name",
        "12:13 dataLayer.injectDefaults",
        "14:15 flowControl.maxBytes",
    ]
    readable = MANY
    for wrong, correct in CORRECTIONS:
        readable = readable.replace(wrong, correct)
    assert places_of(readable) == [
        "3:16 featureGates[0]",
        "6:58 plugins[1].parameters.deciders.prefill",
        "8:54 schedulingProfiles[0].plugins[0].weight",
        "9:30 schedulingProfiles[1].plugins[0].pluginRef",
        "10:47 dataLayer.sources[0].pluginRef",
        "11:29 requestHandler.parsers[0].pluginRef",
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
        # references are judged once all plugins can be built
        (profile("nobody") + "plugins: [{type: queue-scorer, parameters: {x: 1}}]", ["plugins[0].parameters.x"]),
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
        # the last of two lists under one key is judged
        (TWICE, ["", "plugins[0].type"]),
    ],
)  # fmt: skip
def test_no_mistake_is_told_for_another(text, paths):
    assert [written(problem.path) for problem in problems_of(HEAD + text)] == paths


def test_experimental_plugin_is_told_with_its_mistakes():
    text = f"{HEAD}plugins: [{{type: joint-aggregator, parameters: {{x: 1}}}}]"
    assert [written(problem.path) for problem in problems_of(text)] == ["plugins[0]", "plugins[0].parameters.x"]


def test_version_that_is_not_known_is_refused_with_those_that_are():
    known = "'llm-d.ai/v1', 'llm-d.ai/v1alpha1' or 'inference.networking.x-k8s.io/v1alpha1'"
    assert str(problems_of(MANY)[0]) == f"c.yaml:1:1: apiVersion: is 'llm-d.ai/v2', but must be {known}"


def test_warnings_are_told_beside_mistakes():
    with pytest.raises(InvalidConfigError) as caught:
        assemble(load_text(f"{HEAD}plugins: [{{type: tokenizer}}, {{type: nope}}]"), Builder(Registry(), ManualClock()))
    assert [warning.message for warning in caught.value.warnings if "deprecated" in warning.message]


FILES = {file.name: file.read_text() for file in sorted(CONFIG.glob("*.yaml"))}
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
            assert "contains no EndpointPickerConfig" in problem.message
        else:
            assert 1 <= problem.position.column <= len(lines[problem.position.line - 1])
    assert len(set(map(str, found))) == len(found)
