# SPDX-License-Identifier: Apache-2.0
"""A list of preferences for classes, with conditions on the request."""

import pytest
from msgspec.structs import replace

from epp.framework import Headers, LoraState, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG
from epp.framework.snapshot import LORA
from epp.framework.testing import candidates
from epp_scorers.preference_order import TIE, PreferenceOrderScorer
from tests.support.plugins import built
from tests.support.scoring import A100, H100, T4, scores

SMALL_ON_A100 = [
    {"class": "nvidia-a100", "score": 100, "conditions": [{"modelSize": "<30B"}, {"promptTokens": "<2048"}]},
    {"class": "nvidia-h100", "score": 90},
    {"class": "nvidia-a100", "score": 40},
]


def asking(prompt_tokens=500, model="llama-3-8b", **fields):
    return Request("r", RequestBody(model=model, prompt_tokens=prompt_tokens, **fields))


def preferred(order, *tags, request=None, **more):
    return scores(PreferenceOrderScorer, tags, request, preferenceOrder=order, **more)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asking(500), [0.9, 1.0]),  # 500 tokens for 8B parameters: both conditions hold
        (asking(6000), [0.9, 0.4]),  # only the unconditional entries apply
        (asking(500, "llama-3-70b"), [0.9, 0.4]),  # a small request, but for a large model
    ],
)
def test_ome_6_small_requests_go_to_the_a100_and_large_ones_to_the_h100(request_, expected):
    assert preferred(SMALL_ON_A100, H100, A100, request=request_) == expected


@pytest.mark.parametrize(("request_", "score"), [(asking(5000), 1.0), (asking(5, "big-405b"), 1.0), (asking(5), 0.0)])
def test_ome_6_any_condition_will_do_where_the_entry_says_so(request_, score):
    order = [{"class": "nvidia-h100", "match": "any", "conditions": [{"modelSize": ">70B"}, {"requestSize": ">4096"}]}]
    assert preferred(order, H100, request=request_) == [score]


def test_ome_6_class_without_an_entry_gets_nothing_and_stays():
    order = [{"class": "nvidia-a100", "score": 70}]
    assert preferred(order, A100, T4, NO_TAG) == [0.7, 0.0, 0.0]
    plugin = built(PreferenceOrderScorer, {"preferenceOrder": order})
    assert plugin.filter(asking(), candidates(accelerators=[A100, T4, NO_TAG])).tolist() == [True, True, True]
    assert not plugin.may_empty


def test_ome_6_exclusive_drops_endpoints_to_which_nothing_applies():
    order = [{"class": "nvidia-a100", "conditions": [{"promptTokens": "<2048"}]}, {"class": "nvidia-h100", "score": 0}]
    plugin = built(PreferenceOrderScorer, {"preferenceOrder": order, "exclusive": True})
    pool = candidates(accelerators=[H100, A100, T4])
    assert plugin.may_empty
    assert plugin.filter(asking(500), pool).tolist() == [True, True, False]
    assert plugin.filter(asking(5000), pool).tolist() == [True, False, False]


@pytest.mark.parametrize(("score", "expected"), [(80, [0.8 - TIE, 0.8, 0.8 - 2 * TIE]), (0, [0.0, 0.0, 0.0])])
def test_ome_6_list_decides_between_equal_scores(score, expected):
    order = [{"class": name, "score": score} for name in ("nvidia-a100", "nvidia-h100", "nvidia-t4")]
    assert preferred(order, H100, A100, T4) == pytest.approx(expected, abs=1e-12)


def test_ome_11_unknown_class_does_not_disable_the_others():
    order = [{"class": "typo"}, {"class": "NVIDIA-H100", "score": 90}, {"class": "nvidia-a100", "score": 50}]
    assert preferred(order, H100, A100) == [0.9, 0.5]


@pytest.mark.parametrize(
    ("model", "expected"), [("chat", 1.0), ("llama-3-8b", 0.0), ("llama-3-13b", 1.0), ("nameless", 0.0)]
)
def test_sizes_that_are_configured_go_before_what_names_say(model, expected):
    order = [{"class": "nvidia-a100", "conditions": [{"modelSize": "8B..70B"}]}]
    sizes = {"chat": "70B", "llama-3-8b": "1T"}
    assert preferred(order, A100, request=asking(model=model), modelSizes=sizes) == [expected]


@pytest.mark.parametrize(("model", "expected"), [("sql", [1.0, 1.0]), ("llama-3-8b", [0.0, 0.0])])
def test_adapter_is_known_by_the_endpoints_that_have_it(model, expected):
    order = [{"class": "nvidia-a100", "conditions": [{"lora": True}]}]
    records = {LORA: [LoraState(running=frozenset({"sql"}), max_adapters=2), LoraState()]}
    assert preferred(order, A100, A100, request=asking(model=model), records=records) == expected


def test_header_may_decide():
    order = [{"class": "nvidia-a100", "conditions": [{"header": {"name": "X-Tier", "value": "gold"}}]}]
    assert preferred(order, A100, request=Request("r", headers=Headers([("x-tier", "gold")]))) == [1.0]
    assert preferred(order, A100) == [0.0]


def test_model_stands_in_where_no_class_matches():
    assert preferred([{"class": "h100"}], replace(H100, classes=()), H100) == [1.0, 0.0]
