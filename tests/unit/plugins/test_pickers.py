# SPDX-License-Identifier: Apache-2.0
"""Endpoints picked; the same request gets the same ones."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, Request
from epp.framework.testing import candidates, run_scheduling
from epp.plugins.profile_handlers import (
    MaxScorePicker,
    RandomPicker,
    WeightedRandomPicker,
    WeightedRandomPickerParameters,
)
from tests.support.plugins import built

REQUEST = Request("r")


def seeded(seed=0):
    return lambda: np.random.default_rng(seed)


def no_draw():
    raise AssertionError("this picker draws no random number")


def pick(picker, pool, totals, *, request=REQUEST, draw=no_draw):
    return picker.pick(request, pool, np.array(totals, dtype=np.float64), draw).tolist()


def up_to(count):
    return WeightedRandomPickerParameters(max_num_of_endpoints=count)


def first_picks(picker, pool, totals, count, **parameters):
    """Return the number of seeds for which each position is the target."""
    made = built(picker, parameters)
    return Counter(pick(made, pool, totals, draw=seeded(seed))[0] for seed in range(count))


FOUR = candidates(waiting=[0] * 4)
USED = candidates(last_picked=[7, 3, 9, 1])


@pytest.mark.parametrize(
    ("pool", "count", "totals", "expected"),
    [
        (FOUR, 1, [0.1, 0.9, 0.5, 0.7], [1]),
        (FOUR, 3, [0.1, 0.9, 0.5, 0.7], [1, 3, 2]),  # fallbacks follow in order of their totals
        (FOUR, 5, [0.1, 0.9, 0.5, 0.7], [1, 3, 2, 0]),
        # a tie goes to the least recently picked
        (USED, 1, [1.0, 1.0, 1.0, 0.0], [1]),
        (USED, 4, [1.0, 1.0, 1.0, 0.0], [1, 0, 2, 3]),
    ],
)
def test_highest_totals_are_picked_in_their_order(pool, count, totals, expected):
    assert pick(MaxScorePicker(up_to(count)), pool, totals) == expected


def test_last_tie_is_broken_by_the_seed():
    picks = Counter(pick(MaxScorePicker(), FOUR, [1.0] * 4, request=Request("r", seed=i))[0] for i in range(400))
    # 400 seeds over 4 equals: 100 each on average, and 60 is more than four standard deviations (8.7) below
    assert all(picks[position] > 60 for position in range(4))
    assert pick(MaxScorePicker(), FOUR, [1.0] * 4) == pick(MaxScorePicker(), FOUR, [1.0] * 4)


def test_last_tie_follows_the_endpoint_not_its_position():
    pool = candidates(waiting=[0] * 8)
    (first,) = pick(MaxScorePicker(), pool, [1.0] * 8)
    rest = pool.keep(np.arange(8) >= first)
    assert pick(MaxScorePicker(), rest, [1.0] * len(rest)) == [0]


def test_request_id_that_is_not_utf8_can_be_picked_for():
    pool = candidates(waiting=[0, 0])
    assert len(pick(MaxScorePicker(), pool, [1.0, 1.0], request=Request("\udcff"))) == 1


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3)), min_size=1, max_size=12), st.integers(1, 5)
)
def test_max_score_agrees_with_a_full_sort(rows, count):
    pool = candidates(last_picked=[last for _, last in rows])
    picked = pick(MaxScorePicker(up_to(count)), pool, [total for total, _ in rows])
    ranks = [(-rows[position][0], rows[position][1]) for position in picked]
    assert ranks == sorted((-total, last) for total, last in rows)[:count]
    assert len(set(picked)) == len(picked)


@pytest.mark.parametrize(
    ("picker", "totals"),
    [
        (RandomPicker, [9.0, 0, 0, 0]),  # which ignores them
        (WeightedRandomPicker, [0.0] * 4),  # no weight anywhere is a uniform choice
        (WeightedRandomPicker, [-1.0] * 4),
    ],
)
def test_choice_is_uniform_and_repeats_itself_for_the_same_seed(picker, totals):
    assert all(first_picks(picker, FOUR, totals, 400)[position] > 60 for position in range(4))
    assert pick(picker(), FOUR, totals, draw=seeded(5)) == pick(picker(), FOUR, totals, draw=seeded(5))


@pytest.mark.parametrize("picker", [RandomPicker, WeightedRandomPicker])
def test_random_pickers_never_pick_twice(picker):
    assert sorted(pick(picker(up_to(9)), candidates(waiting=[0] * 4), [1.0, 0, 2.0, 0], draw=seeded())) == [0, 1, 2, 3]


def test_weighted_picks_are_in_proportion_to_the_totals():
    picks = first_picks(WeightedRandomPicker, candidates(waiting=[0] * 3), [3.0, 1.0, 0.0], 1000)
    # 3 : 1 of 1000 is 750, standard deviation sqrt(1000 * .75 * .25) = 13.7; nothing falls on weight 0
    assert 690 < picks[0] < 810
    assert picks[2] == 0


def test_candidate_without_weight_comes_after_all_that_have_some():
    pool = candidates(waiting=[0] * 3)
    for seed in range(20):
        assert pick(WeightedRandomPicker(up_to(3)), pool, [0.0, 1e-300, 0.0], draw=seeded(seed))[0] == 1


@pytest.mark.parametrize("picker", [RandomPicker, WeightedRandomPicker])
def test_gie_17_only_the_highest_totals_are_drawn_among(picker):
    assert set(first_picks(picker, FOUR, [0.1, 0.9, 0.5, 0.8], 200, topN=2)) == {1, 3}
    # of equal totals any may be among the highest
    assert set(first_picks(picker, FOUR, [0.5, 1.0, 0.5, 0.5], 200, topN=2)) == {0, 1, 2, 3}


def test_gie_17_top_n_beyond_the_pool_is_the_whole_pool():
    picker = built(RandomPicker, {"topN": 9, "maxNumOfEndpoints": 9})
    assert sorted(pick(picker, FOUR, [1, 2, 3, 4], draw=seeded())) == [0, 1, 2, 3]


@pytest.mark.parametrize(("temperature", "share"), [(0.25, 0.94), (1, 0.67), (10, 0.52)])
def test_gie_17_low_temperature_favours_the_best_and_a_high_one_evens_out(temperature, share):
    pool = candidates(waiting=[0] * 2)
    picks = first_picks(WeightedRandomPicker, pool, [0.6, 0.3], 1000, temperature=temperature)
    # chances 2^(1/T) : 1, so 16:1 = 0.94, 2:1 = 0.67 and 2^0.1:1 = 0.52; standard deviations are below 0.016
    assert picks[0] / 1000 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("picker", ["random-picker", "weighted-random-picker"])
def test_gie_17_same_seed_gives_the_same_endpoints_through_a_whole_scheduling(picker):
    config = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: {picker}
  parameters: {{topN: 3, maxNumOfEndpoints: 2}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: {picker}
"""
    pool = candidates(waiting=[0, 1, 2, 3, 4])

    def picked(seed):
        return [each.name for each in run_scheduling(config, pool, Request("r", seed=seed)).targets]

    assert [picked(seed) for seed in range(6)] == [picked(seed) for seed in range(6)]
    assert {picked(seed)[0] for seed in range(30)} == {"e0", "e1", "e2"}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [1, 2, 3, 0]),
        ({"closeScoreEpsilon": 0.2}, [1, 2, 3]),  # 3.0 - 2.8 = 0.2, up to rounding
        ({"closeScoreEpsilon": 0.1}, [1, 2]),
        ({"closeScoreEpsilon": 0}, [1]),
    ],
)
def test_gie_21_only_endpoints_with_a_total_close_to_that_of_the_target_are_fallbacks(parameters, expected):
    picker = built(MaxScorePicker, {"maxNumOfEndpoints": 4, **parameters})
    assert pick(picker, FOUR, [2.5, 3.0, 2.9, 2.8]) == expected


@pytest.mark.parametrize("picker", [RandomPicker, WeightedRandomPicker])
def test_gie_21_random_fallbacks_are_close_to_the_target_that_was_drawn(picker):
    pool, totals = candidates(waiting=[0, 0, 0]), [0.9, 0.85, 0.1]
    close = built(picker, {"maxNumOfEndpoints": 3, "closeScoreEpsilon": 0.1})
    drawn = {tuple(pick(close, pool, totals, draw=seeded(seed))) for seed in range(60)}
    assert {each for each in drawn if each[0] != 2} == {(0, 1), (1, 0)}
    assert all(set(each) == {0, 1, 2} for each in drawn if each[0] == 2)  # the others are no worse


def test_gie_21_epsilon_below_0_is_refused():
    with pytest.raises(ConfigurationError, match="closeScoreEpsilon"):
        built(MaxScorePicker, {"closeScoreEpsilon": -0.1})
