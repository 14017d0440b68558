# SPDX-License-Identifier: Apache-2.0
"""Endpoints of cold requests after earlier requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import PrefixMatch, Request
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from epp_scorers.affinity import NoHitLRUParameters, NoHitLRUScorer
from tests.support.plugins import built
from tests.support.results import legs_to, sent_to

POOL = candidates(waiting=[0, 0, 0, 0])
COLD = Request("cold")


def warm(matched=(0, 0, 1, 0), key=PREFIX_MATCH):
    request = Request("warm")
    request.put(key, PrefixMatch(np.array(matched, dtype=np.int32), 4, block_tokens=64))
    return request


def sent(*positions, request=COLD, **parameters):
    """Return a scorer after requests to these positions, in this order."""
    scorer = NoHitLRUScorer(NoHitLRUParameters(**parameters))
    for position in positions:
        scorer.pre_request(request, sent_to(POOL, position))
    return scorer


def scores(scorer, request=COLD, pool=POOL):
    return scorer.score(request, pool).tolist()


def only(*slots):
    return POOL.keep(np.isin(np.arange(4), slots))


@pytest.mark.parametrize(
    ("used", "parameters", "expected"),
    [
        ([], {}, [1.0, 1.0, 1.0, 1.0]),
        ([2, 0, 3, 1], {}, [1 - 1 / 3, 0.0, 1.0, 1 - 2 / 3]),  # ranks 1, 3, 0, 2 of 0..3
        # 1 and 3 were never used and take ranks 0 and 1; then 2, then 0
        ([2, 0], {}, [0.0, 1.0, 1 - 2 / 3, 1.0]),
        ([0, 1, 2, 3, 0], {}, [0.0, 1.0, 1 - 1 / 3, 1 - 2 / 3]),  # another use makes it the most recent
        # 0 dropped out: never used, as 3; then 1, then 2
        ([0, 1, 2], {"lru_size": 2}, [1.0, 1 - 2 / 3, 0.0, 1.0]),
    ],
)
def test_least_recently_used_is_best_and_most_recently_used_gets_zero(used, parameters, expected):
    assert scores(sent(*used, **parameters)) == pytest.approx(expected)


def test_ranks_are_among_the_candidates():
    scorer = sent(0, 1, 2, 3)
    assert scores(scorer, pool=only(1, 3)) == [1.0, 0.0]
    assert scores(scorer, pool=only(0)) == [1.0]


def test_any_hit_among_the_candidates_makes_the_scorer_indifferent():
    assert scores(sent(0), warm()) == [0.5, 0.5, 0.5, 0.5]
    assert scores(sent(0), warm(), only(0, 1)) == [0.0, 1.0]  # the hit is elsewhere
    without_a_hit = warm([0, 0, 0, 0])
    assert scores(sent(0, request=without_a_hit), without_a_hit) == [0.0, 1.0, 1.0, 1.0]


def test_warm_requests_leave_no_trace():
    assert scores(sent(0, 1, request=warm())) == [1.0, 1.0, 1.0, 1.0]


def test_first_pick_of_every_profile_is_recorded_and_fallbacks_are_not():
    scorer = NoHitLRUScorer()
    scorer.pre_request(COLD, legs_to(POOL, decode=[1, 0], prefill=[3, 2], encode=None))
    assert scores(scorer) == pytest.approx([1.0, 1 - 2 / 3, 1.0, 0.0])


def test_endpoint_that_left_is_forgotten_and_the_pool_may_grow():
    scorer = sent(0, 1)
    scorer.slots_removed([1, 3])
    assert scores(scorer) == [0.0, 1.0, 1.0, 1.0]
    assert scores(scorer, pool=candidates(waiting=[0] * 300)) == [0.0] + [1.0] * 299


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    scorer = sent(prefix_match_info_producer_name="fine-blocks")
    assert scorer.reads == (named,)
    assert scores(scorer, warm()) == [1.0] * 4
    assert scores(scorer, warm(key=named)) == [0.5] * 4


def test_deprecated_names_of_the_reference_are_taken_and_warned_of():
    given = {"prefixPluginType": "prefix-cache-scorer", "prefixPluginName": "mine"}
    expected = [f"{name} is not used: write prefixMatchInfoProducerName" for name in given]
    assert built(NoHitLRUScorer, given).warnings == expected


@given(
    st.lists(st.tuples(st.sampled_from(["use", "leave"]), st.integers(0, 3)), max_size=40),
    st.integers(1, 5),
    st.sets(st.integers(0, 3), min_size=2),
)
def test_scores_are_those_of_a_plain_list_of_uses(steps, lru_size, alive):
    scorer = sent(lru_size=lru_size)
    used = []  # least recently used first
    for step, slot in steps:
        if slot in used:
            used.remove(slot)
        if step == "use":
            scorer.pre_request(COLD, sent_to(POOL, slot))
            used.append(slot)
            del used[:-lru_size]
        else:
            scorer.slots_removed([slot])
    among = [slot for slot in used if slot in alive]
    best = len(alive) - 1
    expected = [1 - (best - among[::-1].index(slot)) / best if slot in among else 1.0 for slot in sorted(alive)]
    assert scores(scorer, pool=only(*alive)) == pytest.approx(expected)
