# SPDX-License-Identifier: Apache-2.0
"""Endpoints picked; the same request gets the same ones."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.testing import candidates
from epp.plugins.pickers import MaxScorePicker, PickerParameters, RandomPicker, WeightedRandomPicker

REQUEST = Request("r")


def seeded(seed=0):
    return lambda: np.random.default_rng(seed)


def no_draw():
    raise AssertionError("this picker draws no random number")


def pick(picker, pool, totals, *, request=REQUEST, draw=no_draw):
    return picker.pick(request, pool, np.array(totals, dtype=np.float64), draw).tolist()


def up_to(count):
    return PickerParameters(max_num_of_endpoints=count)


def test_highest_total_is_picked():
    assert pick(MaxScorePicker(), candidates(waiting=[0, 0, 0]), [0.1, 0.9, 0.5]) == [1]


def test_fallbacks_follow_in_order_of_their_totals():
    pool = candidates(waiting=[0, 0, 0, 0])
    assert pick(MaxScorePicker(up_to(3)), pool, [0.1, 0.9, 0.5, 0.7]) == [1, 3, 2]


def test_fewer_candidates_than_asked_for_are_all_returned():
    assert pick(MaxScorePicker(up_to(5)), candidates(waiting=[0, 0]), [0.1, 0.9]) == [1, 0]


def test_tie_goes_to_the_least_recently_picked():
    pool = candidates(last_picked=[7, 3, 9, 1])
    assert pick(MaxScorePicker(), pool, [1.0, 1.0, 1.0, 0.0]) == [1]
    assert pick(MaxScorePicker(up_to(4)), pool, [1.0, 1.0, 1.0, 0.0]) == [1, 0, 2, 3]


def test_last_tie_is_broken_by_the_seed():
    pool = candidates(waiting=[0] * 4)
    picks = Counter(pick(MaxScorePicker(), pool, [1.0] * 4, request=Request("r", seed=i))[0] for i in range(400))
    # 400 seeds over 4 equals: 100 each on average, and 60 is more than four standard deviations (8.7) below
    assert all(picks[position] > 60 for position in range(4))
    assert pick(MaxScorePicker(), pool, [1.0] * 4) == pick(MaxScorePicker(), pool, [1.0] * 4)


def test_last_tie_follows_the_endpoint_not_its_position():
    pool = candidates(waiting=[0] * 8)
    (first,) = pick(MaxScorePicker(), pool, [1.0] * 8)
    rest = pool.keep(np.arange(8) >= first)
    assert pick(MaxScorePicker(), rest, [1.0] * len(rest)) == [0]


def test_request_id_that_is_not_utf8_can_be_picked_for():
    pool = candidates(waiting=[0, 0])
    assert len(pick(MaxScorePicker(), pool, [1.0, 1.0], request=Request("\udcff"))) == 1


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_max_score_agrees_with_a_full_sort(rows, count):
    pool = candidates(last_picked=[last for _, last in rows])
    picked = pick(MaxScorePicker(up_to(count)), pool, [total for total, _ in rows])
    ranks = [(-rows[position][0], rows[position][1]) for position in picked]
    assert ranks == sorted((-total, last) for total, last in rows)[:count]
    assert len(set(picked)) == len(picked)


def test_random_picker_ignores_the_totals_and_repeats_itself_for_the_same_seed():
    pool = candidates(waiting=[0] * 4)
    picks = Counter(pick(RandomPicker(), pool, [9.0, 0, 0, 0], draw=seeded(i))[0] for i in range(400))
    assert all(picks[position] > 60 for position in range(4))
    assert pick(RandomPicker(), pool, [0.0] * 4, draw=seeded(5)) == pick(
        RandomPicker(), pool, [0.0] * 4, draw=seeded(5)
    )


@pytest.mark.parametrize("picker", [RandomPicker, WeightedRandomPicker])
def test_random_pickers_never_pick_twice(picker):
    assert sorted(pick(picker(up_to(9)), candidates(waiting=[0] * 4), [1.0, 0, 2.0, 0], draw=seeded())) == [0, 1, 2, 3]


def test_weighted_picks_are_in_proportion_to_the_totals():
    pool = candidates(waiting=[0] * 3)
    picks = Counter(pick(WeightedRandomPicker(), pool, [3.0, 1.0, 0.0], draw=seeded(i))[0] for i in range(1000))
    # 3 : 1 of 1000 is 750, standard deviation sqrt(1000 * .75 * .25) = 13.7; nothing falls on weight 0
    assert 690 < picks[0] < 810
    assert picks[2] == 0


def test_candidate_without_weight_comes_after_all_that_have_some():
    pool = candidates(waiting=[0] * 3)
    for seed in range(20):
        assert pick(WeightedRandomPicker(up_to(3)), pool, [0.0, 1e-300, 0.0], draw=seeded(seed))[0] == 1


@pytest.mark.parametrize("total", [0.0, -1.0])
def test_no_weight_anywhere_is_a_uniform_choice(total):
    pool = candidates(waiting=[0] * 4)
    picks = Counter(pick(WeightedRandomPicker(), pool, [total] * 4, draw=seeded(i))[0] for i in range(400))
    assert all(picks[position] > 60 for position in range(4))
