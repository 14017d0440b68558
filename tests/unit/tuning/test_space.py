# SPDX-License-Identifier: Apache-2.0
"""The search space of a configuration."""

from typing import get_args, get_type_hints

import msgspec
import pytest
import yaml

from epp.config import Builder, assemble, load_text
from epp.config.load import sample_texts
from epp.framework import ConfigurationError, ManualClock, Tunable
from epp.framework.registry import Registry
from epp.lab.tuning.problem import SearchSpace

QUEUES = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: load-aware-scorer
  parameters: {threshold: 64}
- {type: weighted-random-picker, name: dice}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: load-aware-scorer}
  - {pluginRef: dice}
"""


def space(text=QUEUES, *also):
    return SearchSpace(load_text(text, "config.yaml"), Registry(), also)


def test_parameters_with_a_range_and_weights_are_tuned():
    assert {each.name: each.current for each in space().dimensions} == {
        "load-aware-scorer.threshold": 64.0,
        "dice.temperature": 1.0,
        "queue-scorer.weight": 2.0,
        "load-aware-scorer.weight": 1.0,
    }


def test_values_are_put_where_they_belong():
    content = space().with_values({"load-aware-scorer.threshold": 8.0, "queue-scorer.weight": 0.5})
    assert content["plugins"][1] == {"type": "load-aware-scorer", "parameters": {"threshold": 8.0}}
    assert content["schedulingProfiles"][0]["plugins"][0] == {"pluginRef": "queue-scorer", "weight": 0.5}
    assert content["plugins"][2] == {"type": "weighted-random-picker", "name": "dice"}


def test_one_scorer_alone_has_no_weight_to_tune():
    text = QUEUES.replace("  - {pluginRef: load-aware-scorer}\n", "").replace("- type: load-aware-scorer\n", "")
    text = text.replace("  parameters: {threshold: 64}\n", "")
    assert [each.name for each in space(text).dimensions] == ["dice.temperature"]


def test_a_configuration_without_profiles_has_the_weights_of_the_implied_one():
    text = QUEUES[: QUEUES.index("schedulingProfiles")]
    assert "queue-scorer.weight" in {each.name for each in space(text).dimensions}
    first, *others = space(text).with_values({"queue-scorer.weight": 3.0})["schedulingProfiles"][0]["plugins"]
    assert first == {"pluginRef": "queue-scorer", "weight": 3.0}
    assert others == [{"pluginRef": "load-aware-scorer"}, {"pluginRef": "dice"}]


def test_a_plugin_may_be_replaced_or_left_out():
    chosen = space(QUEUES, "queue-scorer=running-requests-size-scorer,none")
    assert chosen.dimensions[0].choices == ("queue-scorer", "running-requests-size-scorer", "none")
    replaced = chosen.with_values({"queue-scorer": "running-requests-size-scorer"})
    assert replaced["plugins"][0] == {"type": "running-requests-size-scorer", "name": "queue-scorer"}
    without = chosen.with_values({"queue-scorer": "none", "queue-scorer.weight": 1.0})
    assert [each["type"] for each in without["plugins"]] == ["load-aware-scorer", "weighted-random-picker"]
    assert [each["pluginRef"] for each in without["schedulingProfiles"][0]["plugins"]] == ["load-aware-scorer", "dice"]


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ("queue-scorer", "write NAME=TYPE,TYPE"),
        ("queue-scorer=", "write NAME=TYPE,TYPE"),
        ("queu-scorer=none", "did you mean 'queue-scorer'"),
        ("queue-scorer=no-such-type", "no-such-type"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(also, message):
    with pytest.raises(ConfigurationError, match=message):
        space(QUEUES, also)


def test_a_configuration_with_nothing_to_tune_is_refused():
    with pytest.raises(ConfigurationError, match="nothing to tune"):
        space("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: random-picker\n")


@pytest.mark.parametrize("name", sorted({*sample_texts()} - {"random", "round-robin"}))  # nothing to tune
def test_ready_made_configurations_load_at_both_ends_of_each_range(name):
    found = space(sample_texts()[name])
    for end in ("low", "high"):
        values = {each.name: getattr(each.range, end) for each in found.dimensions}
        values = {each.name: int(values[each.name]) if each.is_int else values[each.name] for each in found.dimensions}
        text = yaml.safe_dump(found.with_values(values))
        assemble(load_text(text, name), Builder(Registry(), ManualClock()))


def test_defaults_lie_in_the_range_to_tune():
    classes, _ = Registry().load_all()
    tuned = 0
    for kind, cls in classes.items():
        hints = get_type_hints(cls.parameters_type, include_extras=True)
        for field in msgspec.structs.fields(cls.parameters_type):
            for mark in (each for each in get_args(hints[field.name]) if isinstance(each, Tunable)):
                tuned += 1
                assert mark.low < mark.high, (kind, field.name)
                assert mark.low > 0 or not mark.log, (kind, field.name)
                assert field.default is msgspec.NODEFAULT or field.default <= mark.high, (kind, field.name)
    assert tuned > 40
