# SPDX-License-Identifier: Apache-2.0
"""Figures of an overload, from answers written down by hand."""

import pytest
from clients import Answer, Tenant
from shares_and_waits import (
    fair_shares,
    jain,
    median_rate,
    share_of,
    share_within_two,
    tokens_per_second,
    told_and_real,
    undisturbed,
    windows_of,
)
from stage import LOW


def served(sent_at, left_at, tokens=20):
    return Answer("served", sent_at, left_at, left_at + 2.0, 200, tokens)


def refused(at, told):
    return Answer("refused", at, at, at, 429, retry_after=str(told))


def test_time_until_a_place_is_when_all_that_waited_had_left():
    # at 10 s two wait: one goes at 12 s, the other at 14 s; the third comes later
    flood = Tenant("flood", LOW, answers=[served(8, 12), served(9, 14), refused(10, 5), served(11, 16)])
    assert told_and_real(flood) == [(5, 4)]


def test_refusal_that_tells_nothing_or_with_nothing_ahead_is_left_out():
    flood = Tenant("flood", LOW, answers=[served(1, 2), refused(5, 3), served(6, 9), refused(7, "soon")])
    assert told_and_real(flood) == []


def test_ratio_of_two_either_way_is_true():
    assert share_within_two([(4, 2), (4, 8), (4, 1.9), (4, 8.1)]) == 0.5


def test_window_with_a_stall_is_left_out():
    windows = windows_of(0, 30)
    assert windows == [(0, 10), (10, 20), (20, 30)]
    assert undisturbed(windows, [(9.9, 10.2)]) == [(20, 30)]


def test_rate_is_of_answers_that_came_in_a_window():
    answers = [served(0, 1, tokens=30), served(0, 9, tokens=50)]  # they came at 3 s and at 11 s
    assert tokens_per_second(answers, (0, 10)) == 3
    assert median_rate(answers, [(0, 10), (10, 20), (20, 30)]) == 3


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [([1, 1, 100, 100], [1, 1, 9, 9]), ([30, 30], [10, 10]), ([1, 2], [1, 2])],
)
def test_those_who_want_less_leave_their_share_to_others(wanted, shares):
    assert fair_shares(wanted, 20) == shares


def test_index_of_fairness():
    assert jain([5, 5, 5]) == pytest.approx(1)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 0


def test_share_of_no_values_is_zero():
    assert share_of([], 0.95) == 0
    assert share_of(range(101), 0.95) == 95
