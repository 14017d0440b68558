# SPDX-License-Identifier: Apache-2.0
"""The policy of the request's selection ranks the accelerators."""

import gc

import pytest

from epp.framework import Request
from epp.framework.accelerators.requirements import SelectionParameters
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selection, Selections
from epp.framework.quantities import GIB
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.accelerator_state import AcceleratorPolicyParameters, AcceleratorPolicyScorer
from epp_scorers.capability import BestFitScorer


@pytest.fixture
def pool(h100, a100, t4):
    return candidates(records={ACCELERATOR: [h100, a100, t4]}, waiting=[0, 0, 0], kv_usage=[0, 0, 0])


def winner(pool, selection: Selection, *, profile: str = "", default_policy: str = "") -> str:
    request = Request("r")
    request.put(ACCELERATOR_SELECTION, Selections(by_profile={"decode": selection}))
    scorer = AcceleratorPolicyScorer(AcceleratorPolicyParameters(default_policy=default_policy))
    scores = scorer.score(request, pool.within(profile))
    return pool.records(ACCELERATOR)[int(scores.argmax())].model if scores.any() else ""


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(policy="most-capable"), "h100"),
        (Selection(policy="cheapest"), "t4"),
        (Selection(policy="best-fit", min_memory_bytes=40 * GIB, preferred_precisions=("fp16",)), "a100"),
        (Selection(policy="first-available", preference_order=("nvidia-a100", "nvidia-h100")), "a100"),
        (Selection(), ""),
    ],
)
def test_ome_5_policy_of_the_profile_ranks(pool, selection, expected):
    assert winner(pool, selection, profile="decode") == expected


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
