# SPDX-License-Identifier: Apache-2.0
"""Where cold requests go, given where others went before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Destination, PrefixMatch, ProfileResult, Request, SchedulingResult
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from epp_scorers.affinity import NoHitLRUParameters, NoHitLRUScorer

POOL = candidates(waiting=[0, 0, 0, 0])
COLD = Request("cold")


def warm(matched=(0, 0, 1, 0), key=PREFIX_MATCH):
    request = Request("warm")
    request.put(key, PrefixMatch(np.array(matched, dtype=np.int32), 4, block_tokens=64))
    return request


def leg(name, position, pool=POOL):
    return ProfileResult(name, pool, np.zeros(len(pool)), np.array(position, dtype=np.intp))


def send(scorer, *positions, request=COLD, pool=POOL):
    for position in positions:
        result = leg("default", [position], pool)
        scorer.pre_request(request, SchedulingResult(Destination(result), {"default": result}, {}))


def scores(scorer, request=COLD, pool=POOL):
    return scorer.score(request, pool).tolist()


def test_never_used_endpoints_share_the_best_score():
    assert scores(NoHitLRUScorer()) == [1.0, 1.0, 1.0, 1.0]


def test_least_recently_used_is_best_and_most_recently_used_gets_zero():
    scorer = NoHitLRUScorer()
    send(scorer, 2, 0, 3, 1)
    # ranks 1, 3, 0, 2 of 0..3
    assert scores(scorer) == pytest.approx([1 - 1 / 3, 0.0, 1.0, 1 - 2 / 3])


def test_used_endpoints_rank_behind_all_that_were_never_used():
    scorer = NoHitLRUScorer()
    send(scorer, 2, 0)
    # 1 and 3 were never used and take ranks 0 and 1; then 2, then 0
    assert scores(scorer) == pytest.approx([0.0, 1.0, 1 - 2 / 3, 1.0])


def test_another_use_makes_an_endpoint_the_most_recent():
    scorer = NoHitLRUScorer()
    send(scorer, 0, 1, 2, 3, 0)
    assert scores(scorer) == pytest.approx([0.0, 1.0, 1 - 1 / 3, 1 - 2 / 3])


def test_ranks_are_among_the_candidates():
    scorer = NoHitLRUScorer()
    send(scorer, 0, 1, 2, 3)
    assert scores(scorer, pool=POOL.keep(np.array([False, True, False, True]))) == [1.0, 0.0]


def test_single_candidate_gets_one():
    scorer = NoHitLRUScorer()
    send(scorer, 0)
    assert scores(scorer, pool=POOL.keep(np.array([True, False, False, False]))) == [1.0]


def test_any_hit_among_the_candidates_makes_the_scorer_indifferent():
    scorer = NoHitLRUScorer()
    send(scorer, 0)
    assert scores(scorer, warm()) == [0.5, 0.5, 0.5, 0.5]


def test_hit_elsewhere_does_not_warm_the_candidates():
    scorer = NoHitLRUScorer()
    send(scorer, 0)
    assert scores(scorer, warm(), POOL.keep(np.array([True, True, False, False]))) == [0.0, 1.0]


def test_match_record_without_a_hit_is_cold():
    scorer = NoHitLRUScorer()
    send(scorer, 0, request=warm([0, 0, 0, 0]))
    assert scores(scorer, warm([0, 0, 0, 0])) == [0.0, 1.0, 1.0, 1.0]


def test_warm_requests_leave_no_trace():
    scorer = NoHitLRUScorer()
    send(scorer, 0, 1, request=warm())
    assert scores(scorer) == [1.0, 1.0, 1.0, 1.0]


def test_first_pick_of_every_profile_is_recorded_and_fallbacks_are_not():
    scorer = NoHitLRUScorer()
    decode, prefill = leg("decode", [1, 0]), leg("prefill", [3, 2])
    results = {"decode": decode, "prefill": prefill, "encode": None}
    scorer.pre_request(COLD, SchedulingResult(Destination(decode), results, {}))
    assert scores(scorer) == pytest.approx([1.0, 1 - 2 / 3, 1.0, 0.0])


def test_endpoint_that_left_is_forgotten():
    scorer = NoHitLRUScorer()
    send(scorer, 0, 1)
    scorer.slots_removed([1, 3])
    assert scores(scorer) == [0.0, 1.0, 1.0, 1.0]


def test_memory_is_bounded_by_lru_size():
    scorer = NoHitLRUScorer(NoHitLRUParameters(lru_size=2))
    send(scorer, 0, 1, 2)
    # 0 dropped out: never used, as 3; then 1, then 2
    assert scores(scorer) == pytest.approx([1.0, 1 - 2 / 3, 0.0, 1.0])


def test_pool_may_grow():
    scorer = NoHitLRUScorer()
    send(scorer, 0)
    assert scores(scorer, pool=candidates(waiting=[0] * 300)) == [0.0] + [1.0] * 299


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    scorer = NoHitLRUScorer(NoHitLRUParameters(prefix_match_info_producer_name="fine-blocks"))
    assert scorer.reads == (named,)
    assert scores(scorer, warm()) == [1.0] * 4
    assert scores(scorer, warm(key=named)) == [0.5] * 4


def test_deprecated_names_of_the_reference_are_taken_and_warned_of(build):
    scorer = build(NoHitLRUScorer, prefixPluginType="prefix-cache-scorer", prefixPluginName="mine")
    assert scorer.warnings == [
        "prefixPluginType is not used: write prefixMatchInfoProducerName",
        "prefixPluginName is not used: write prefixMatchInfoProducerName",
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["use", "leave"]), st.integers(0, 3)), max_size=40),
    st.integers(1, 5),
    st.sets(st.integers(0, 3), min_size=2),
)
def test_scores_are_those_of_a_plain_list_of_uses(steps, lru_size, alive):
    scorer = NoHitLRUScorer(NoHitLRUParameters(lru_size=lru_size))
    used = []  # least recently used first
    for step, slot in steps:
        if slot in used:
            used.remove(slot)
        if step == "use":
            send(scorer, slot)
            used.append(slot)
            del used[:-lru_size]
        else:
            scorer.slots_removed([slot])
    among = [slot for slot in used if slot in alive]
    best = len(alive) - 1
    expected = [1 - (best - among[::-1].index(slot)) / best if slot in among else 1.0 for slot in sorted(alive)]
    narrowed = POOL.keep(np.isin(np.arange(4), list(alive)))
    assert scores(scorer, pool=narrowed) == pytest.approx(expected)
