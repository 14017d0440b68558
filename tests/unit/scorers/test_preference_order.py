# SPDX-License-Identifier: Apache-2.0
"""A list of preferences for classes, with conditions on the request."""

import msgspec
import pytest

from epp.framework import ConfigurationError, Headers, LoraState, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG
from epp.framework.snapshot import ACCELERATOR, LORA
from epp.framework.testing import candidates
from epp_scorers.preference_order import TIE, PreferenceOrderScorer

SMALL_ON_A100 = [
    {"class": "nvidia-a100", "score": 100, "conditions": [{"modelSize": "<30B"}, {"promptTokens": "<2048"}]},
    {"class": "nvidia-h100", "score": 90},
    {"class": "nvidia-a100", "score": 40},
]


def asking(prompt_tokens=500, model="llama-3-8b", **fields):
    return Request("r", RequestBody(model=model, prompt_tokens=prompt_tokens, **fields))


def test_ome_6_small_requests_go_to_the_a100_and_large_ones_to_the_h100(scores, h100, a100):
    # 500 tokens for 8B parameters: both conditions hold; 6,000: only the unconditional entries apply
    tags = [h100, a100]
    assert scores(PreferenceOrderScorer, tags, asking(500), preferenceOrder=SMALL_ON_A100) == [0.9, 1.0]
    assert scores(PreferenceOrderScorer, tags, asking(6000), preferenceOrder=SMALL_ON_A100) == [0.9, 0.4]


def test_ome_6_all_conditions_have_to_hold(scores, a100):
    # a small request, but for a large model
    found = scores(PreferenceOrderScorer, [a100], asking(500, "llama-3-70b"), preferenceOrder=SMALL_ON_A100)
    assert found == [0.4]


def test_ome_6_any_condition_will_do_where_the_entry_says_so(scores, h100):
    order = [{"class": "nvidia-h100", "match": "any", "conditions": [{"modelSize": ">70B"}, {"requestSize": ">4096"}]}]
    assert scores(PreferenceOrderScorer, [h100], asking(5000), preferenceOrder=order) == [1.0]
    assert scores(PreferenceOrderScorer, [h100], asking(5, "big-405b"), preferenceOrder=order) == [1.0]
    assert scores(PreferenceOrderScorer, [h100], asking(5), preferenceOrder=order) == [0.0]


def test_ome_6_class_without_an_entry_gets_nothing_and_stays(scores, build, a100, t4):
    order = [{"class": "nvidia-a100", "score": 70}]
    assert scores(PreferenceOrderScorer, [a100, t4, NO_TAG], preferenceOrder=order) == [0.7, 0.0, 0.0]
    pool = candidates(records={ACCELERATOR: [a100, t4, NO_TAG]})
    plugin = build(PreferenceOrderScorer, preferenceOrder=order)
    assert plugin.filter(asking(), pool).tolist() == [True, True, True]
    assert not plugin.may_empty


def test_ome_6_exclusive_drops_endpoints_to_which_nothing_applies(build, h100, a100, t4):
    order = [{"class": "nvidia-a100", "conditions": [{"promptTokens": "<2048"}]}, {"class": "nvidia-h100", "score": 0}]
    plugin = build(PreferenceOrderScorer, preferenceOrder=order, exclusive=True)
    pool = candidates(records={ACCELERATOR: [h100, a100, t4]})
    assert plugin.may_empty
    assert plugin.filter(asking(500), pool).tolist() == [True, True, False]
    assert plugin.filter(asking(5000), pool).tolist() == [True, False, False]


def test_ome_6_list_decides_between_equal_scores(scores, h100, a100, t4):
    order = [{"class": name, "score": 80} for name in ("nvidia-a100", "nvidia-h100", "nvidia-t4")]
    found = scores(PreferenceOrderScorer, [h100, a100, t4], preferenceOrder=order)
    assert found == pytest.approx([0.8 - TIE, 0.8, 0.8 - 2 * TIE], abs=1e-12)


def test_tie_does_not_go_below_nothing(scores, h100, a100):
    order = [{"class": name, "score": 0} for name in ("nvidia-a100", "nvidia-h100")]
    assert scores(PreferenceOrderScorer, [h100, a100], preferenceOrder=order) == [0.0, 0.0]


def test_ome_11_unknown_class_does_not_disable_the_others(scores, h100, a100):
    order = [{"class": "typo"}, {"class": "NVIDIA-H100", "score": 90}, {"class": "nvidia-a100", "score": 50}]
    assert scores(PreferenceOrderScorer, [h100, a100], preferenceOrder=order) == [0.9, 0.5]


def test_sizes_that_are_configured_go_before_what_names_say(scores, a100):
    order = [{"class": "nvidia-a100", "conditions": [{"modelSize": "8B..70B"}]}]
    sizes = {"chat": "70B", "llama-3-8b": "1T"}
    for model, expected in (("chat", 1.0), ("llama-3-8b", 0.0), ("llama-3-13b", 1.0), ("nameless", 0.0)):
        found = scores(PreferenceOrderScorer, [a100], asking(model=model), preferenceOrder=order, modelSizes=sizes)
        assert found == [expected], model


def test_adapter_is_known_by_the_endpoints_that_have_it(build, a100):
    order = [{"class": "nvidia-a100", "conditions": [{"lora": True}]}]
    plugin = build(PreferenceOrderScorer, preferenceOrder=order)
    loaded = LoraState(running=frozenset({"sql"}), max_adapters=2)
    pool = candidates(records={ACCELERATOR: [a100, a100], LORA: [loaded, LoraState()]})
    assert plugin.score(asking(model="sql"), pool).tolist() == [1.0, 1.0]
    assert plugin.score(asking(model="llama-3-8b"), pool).tolist() == [0.0, 0.0]


def test_header_may_decide(scores, a100):
    order = [{"class": "nvidia-a100", "conditions": [{"header": {"name": "X-Tier", "value": "gold"}}]}]
    gold = Request("r", headers=Headers([("x-tier", "gold")]))
    assert scores(PreferenceOrderScorer, [a100], gold, preferenceOrder=order) == [1.0]
    assert scores(PreferenceOrderScorer, [a100], preferenceOrder=order) == [0.0]


def test_model_stands_in_where_no_class_matches(scores, h100):
    bare = msgspec.structs.replace(h100, classes=())
    assert scores(PreferenceOrderScorer, [bare, h100], preferenceOrder=[{"class": "h100"}]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "preferenceOrder is missing"),
        ({"preferenceOrder": []}, "preferenceOrder is empty"),
        ({"preferenceOrder": [{"class": ""}]}, "class is empty"),
        ({"preferenceOrder": [{"class": "a", "score": 101}]}, "score is 101; it must be between 0 and 100"),
        ({"preferenceOrder": [{"class": "a"}], "modelSizes": {"m": "big"}}, "'big' is not a number"),
        ({"preferenceOrder": [{"class": "a", "conditions": [{"priorty": 1}]}]}, "did you mean 'priority'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        build(PreferenceOrderScorer, **parameters)
