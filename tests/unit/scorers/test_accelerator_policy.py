# SPDX-License-Identifier: Apache-2.0
"""The policy of the request's selection ranks the accelerators."""

import gc

import pytest

from epp.framework import Request, RequestBody
from epp.framework.accelerators.requirements import SelectionParameters, preferences
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, SERVED_CLASS, Selection, Selections
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.quantities import GIB
from epp.framework.request_conditions import Condition, Preference
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.capability import BestFitScorer
from epp_scorers.strategies import AcceleratorPolicyParameters, AcceleratorPolicyScorer
from tests.support.scoring import A100, H100, T4

MODELS = ["h100", "a100", "t4"]
POOL = candidates(accelerators=[H100, A100, T4], waiting=[0, 0, 0], kv_usage=[0, 0, 0])


def prefer(*classes: str) -> tuple[Preference, ...]:
    return tuple(preferences(classes))


def scored(selection: Selection, body=None, *, profile="decode", served="", rates=None, **parameters) -> list[float]:
    """Scores of the H100, the A100 and the T4 for a request with this selection in the decode profile."""
    request = Request("r", body or RequestBody())
    request.put(ACCELERATOR_SELECTION, Selections(by_profile={"decode": selection}))
    if served:
        request.put(SERVED_CLASS, served)
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    scorer = AcceleratorPolicyScorer(AcceleratorPolicyParameters(**parameters))
    return scorer.score(request, POOL.within(profile)).tolist()


def winner(selection: Selection, body=None, **more) -> str:
    scores = scored(selection, body, **more)
    return MODELS[scores.index(max(scores))] if any(scores) else ""


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(policy="most-capable"), "h100"),
        (Selection(policy="cheapest"), "t4"),
        (Selection(policy="best-fit", min_memory_bytes=40 * GIB, preferred_precisions=("fp16",)), "a100"),
        (Selection(policy="first-available", preference_order=prefer("nvidia-a100", "nvidia-h100")), "a100"),
        (Selection(), ""),
    ],
)
def test_ome_5_policy_of_the_profile_ranks(selection, expected):
    assert winner(selection) == expected


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(policy="cost"), "t4"),
        (Selection(policy="performance"), "h100"),
        (Selection(preference_order=prefer("nvidia-a100", "nvidia-h100")), "a100"),
        (Selection(policy="cost", preference_order=prefer("nvidia-a100", "nvidia-h100")), "a100"),
        (Selection(policy="cost", preference_order=prefer("mi300x")), "t4"),
    ],
)
def test_ome_17_preferred_classes_decide_before_the_strategy(selection, expected):
    assert winner(selection) == expected


@pytest.mark.parametrize(
    ("model", "tokens", "parameters", "expected"),
    [
        ("llama-13b", 500, {}, "a100"),
        ("llama-13b", 5000, {}, "h100"),
        ("llama-70b", 500, {}, "h100"),
        ("llama-70b", 500, {"model_sizes": {"llama-70b": "7B"}}, "a100"),
    ],
)
def test_ome_17_strategy_decides_where_no_condition_of_a_preference_holds(model, tokens, parameters, expected):
    if_small = Preference("nvidia-a100", 100, (Condition(model_size="<30B"), Condition(request_size="<2048")))
    selection = Selection(policy="performance", preference_order=(if_small,))
    assert winner(selection, RequestBody(model=model, prompt_tokens=tokens), **parameters) == expected


def test_ome_17_preference_has_three_quarters_of_the_score():
    selection = Selection(policy="cheapest", preference_order=prefer("nvidia-h100", "nvidia-a100"))
    # preference 1, 1/2, 0; price 1/4, 1/2, 1
    assert scored(selection) == pytest.approx([0.75 + 0.25 / 4, 0.75 / 2 + 0.25 / 2, 0.25])


def test_without_a_policy_the_default_one_ranks():
    assert winner(Selection(), default_policy="cheapest") == "t4"
    assert winner(Selection(policy="cheapest"), profile="prefill", default_policy="most-capable") == "h100"


def test_selections_that_clients_make_up_do_not_pile_up():
    def best_fit_scorers() -> int:
        gc.collect()
        return sum(isinstance(one, BestFitScorer) for one in gc.get_objects())

    scorer, before = AcceleratorPolicyScorer(), best_fit_scorers()
    for size in range(400):
        request = Request("r")
        request.put(ACCELERATOR_SELECTION, Selections(Selection(policy="best-fit", min_memory_bytes=size)))
        scorer.score(request, candidates(accelerators=[H100]))  # a snapshot remembers scores for itself
    assert best_fit_scorers() - before == 256


@pytest.mark.parametrize(
    ("alias", "policy"),
    [
        ("performance", "most-capable"),
        ("MostCapable", "most-capable"),
        ("cost", "cheapest"),
        ("balanced", "best-fit"),
        ("BestFit", "best-fit"),
        ("first-available", "first-available"),
    ],
)
def test_ome_4_policies_have_the_names_of_the_proposal_too(alias, policy):
    assert SelectionParameters(policy=alias).selection().policy == policy


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, "h100"), (0.5, "h100"), (2.0, "t4")])
def test_ome_19_class_of_the_session_comes_first_within_the_stated_time(seconds, expected):
    selection = Selection(policy="performance", class_stickiness_seconds=seconds)
    rates = endpoint_rates([10_000, 5_000, 1000 / 1.1])  # first tokens after 0.1, 0.2 and 1.1 s
    assert winner(selection, RequestBody(prompt_tokens=1000), served="nvidia-t4", rates=rates) == expected


def test_ome_19_class_of_the_session_comes_first_where_no_rates_are_known():
    # prices 1/4, 1/2, 1; the class of the session is the second one
    selection = Selection(policy="cheapest", class_stickiness_seconds=1)
    assert scored(selection, served="nvidia-a100") == [0.125, 0.75, 0.5]
