# SPDX-License-Identifier: Apache-2.0
"""Figures of the hostile campaign and their verdicts."""

import pytest
from judging import Judge, share_of, slope


def verdicts(judge):
    return [figure.verdict for figure in judge.figures]


def test_time_has_its_target_in_a_full_run_and_25_times_as_much_in_a_short_one():
    short, full = Judge("row", "ci"), Judge("row", "full")
    for judge in (short, full):
        judge.within("longest", 0.021, 0.020)
        judge.within("longest", 0.020, 0.020)
        judge.within("longest", 0.501, 0.020)
    assert verdicts(full) == ["WRONG", "ok", "WRONG"]
    assert verdicts(short) == ["ok", "ok", "WRONG"]


@pytest.mark.parametrize("size", ["ci", "full"])
def test_counts_and_sizes_are_the_same_on_any_machine(size):
    judge = Judge("row", size)
    judge.at_most("memory", 48.1, 48, "MiB")
    judge.at_least("answered", 3, 3)
    judge.exactly("lost", 1, 0)
    judge.shows("share of a CPU", 0.5)
    assert verdicts(judge) == ["WRONG", "ok", "WRONG", "not judged"]
    assert not judge.holds


def test_row_that_does_not_run_to_its_end_is_wrong():
    judge = Judge("row", "full")
    judge.failed("AssertionError: waited 20 s in vain\nand more")
    assert judge.figures[0].name == "AssertionError: waited 20 s in vain"
    assert not judge.holds


def test_slope_is_that_of_the_line_through_all_points():
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 5), (1, 3), (2, 5), (3, 3)]) == pytest.approx(-0.4)  # sum of products -2, of squares 5
    assert slope([(1, 5)]) == 0


def test_share_of_nothing_is_zero():
    assert share_of([], 0.99) == 0
    assert share_of([3, 1, 2], 0.5) == 2
