# SPDX-License-Identifier: Apache-2.0
"""The policy of the request's selection ranks the accelerators."""

import gc

import pytest

from epp.framework import Request, RequestBody
from epp.framework.accelerators.requirements import SelectionParameters, preferences
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, SERVED_CLASS, Selection, Selections
from epp.framework.quantities import GIB
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.request_conditions import Condition, Preference
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.capability import BestFitScorer
from epp_scorers.strategies import AcceleratorPolicyParameters, AcceleratorPolicyScorer


def prefer(*classes: str) -> tuple[Preference, ...]:
    return tuple(preferences(classes))


@pytest.fixture
def pool(h100, a100, t4):
    return candidates(records={ACCELERATOR: [h100, a100, t4]}, waiting=[0, 0, 0], kv_usage=[0, 0, 0])


def winner(pool, selection: Selection, *, profile: str = "", body: RequestBody | None = None, **parameters) -> str:
    request = Request("r", body or RequestBody())
    request.put(ACCELERATOR_SELECTION, Selections(by_profile={"decode": selection}))
    scorer = AcceleratorPolicyScorer(AcceleratorPolicyParameters(**parameters))
    scores = scorer.score(request, pool.within(profile))
    return pool.records(ACCELERATOR)[int(scores.argmax())].model if scores.any() else ""


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
def test_ome_5_policy_of_the_profile_ranks(pool, selection, expected):
    assert winner(pool, selection, profile="decode") == expected


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
def test_ome_17_preferred_classes_decide_before_the_strategy(pool, selection, expected):
    assert winner(pool, selection, profile="decode") == expected


def test_ome_17_strategy_decides_where_no_condition_of_a_preference_holds(pool):
    if_small = Preference("nvidia-a100", 100, (Condition(model_size="<30B"), Condition(request_size="<2048")))
    selection = Selection(policy="performance", preference_order=(if_small,))
    small, long, large = (
        RequestBody(model=f"llama-{size}", prompt_tokens=tokens)
        for size, tokens in (("13b", 500), ("13b", 5000), ("70b", 500))
    )
    assert winner(pool, selection, profile="decode", body=small) == "a100"
    assert winner(pool, selection, profile="decode", body=long) == "h100"
    assert winner(pool, selection, profile="decode", body=large) == "h100"
    assert winner(pool, selection, profile="decode", body=large, model_sizes={"llama-70b": "7B"}) == "a100"


def test_ome_17_preference_has_three_quarters_of_the_score(pool):
    request = Request("r")
    selection = Selection(policy="cheapest", preference_order=prefer("nvidia-h100", "nvidia-a100"))
    request.put(ACCELERATOR_SELECTION, Selections(selection))
    # preference 1, 1/2, 0; price 1/4, 1/2, 1
    expected = [0.75 + 0.25 / 4, 0.75 / 2 + 0.25 / 2, 0.25]
    assert AcceleratorPolicyScorer().score(request, pool).tolist() == pytest.approx(expected)


def test_without_a_policy_the_default_one_ranks(pool):
    assert winner(pool, Selection(), profile="decode", default_policy="cheapest") == "t4"
    assert winner(pool, Selection(policy="cheapest"), profile="prefill", default_policy="most-capable") == "h100"


def test_selections_that_clients_make_up_do_not_pile_up(h100):
    def best_fit_scorers() -> int:
        gc.collect()
        return sum(isinstance(one, BestFitScorer) for one in gc.get_objects())

    scorer, before = AcceleratorPolicyScorer(), best_fit_scorers()
    for size in range(400):
        request = Request("r")
        selection = Selection(policy="best-fit", min_memory_bytes=size)
        request.put(ACCELERATOR_SELECTION, Selections(default=selection))
        scorer.score(request, candidates(records={ACCELERATOR: [h100]}))  # a snapshot remembers scores for itself
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
def test_ome_19_class_of_the_session_comes_first_within_the_stated_time(pool, seconds, expected):
    selection = Selection(policy="performance", class_stickiness_seconds=seconds)
    request = Request("r", RequestBody(prompt_tokens=1000))
    request.put(ACCELERATOR_SELECTION, Selections(selection))
    request.put(SERVED_CLASS, "nvidia-t4")
    # first tokens after 0.1, 0.2 and 1.1 s
    request.put(ENDPOINT_RATES, endpoint_rates([10_000, 5_000, 1000 / 1.1]))
    scores = AcceleratorPolicyScorer().score(request, pool)
    assert pool.records(ACCELERATOR)[int(scores.argmax())].model == expected


def test_ome_19_class_of_the_session_comes_first_where_no_rates_are_known(pool):
    request = Request("r")
    request.put(ACCELERATOR_SELECTION, Selections(Selection(policy="cheapest", class_stickiness_seconds=1)))
    request.put(SERVED_CLASS, "nvidia-a100")
    # prices 1/4, 1/2, 1; the class of the session is the second one
    assert AcceleratorPolicyScorer().score(request, pool).tolist() == [0.125, 0.75, 0.5]
