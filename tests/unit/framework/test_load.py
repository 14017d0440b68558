# SPDX-License-Identifier: Apache-2.0
"""Load of endpoints that do not report it."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import IN_FLIGHT, KV_USAGE, RUNNING, WAITING, Column, comparable_load, expected_load, fill_unknown
from epp.framework.expected_times import batch_sizes
from epp.framework.testing import candidates

COLUMNS = (WAITING, RUNNING, KV_USAGE)
EACH = pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)


def reporting(in_flight, waiting, running, kv_usage, *silent):
    """Endpoints that report these, then one without a report for each further number of requests in flight."""
    unknown = [nan] * len(silent)
    reported = {"waiting": waiting, "running": running, "kv_usage": kv_usage}
    columns = {name: [*values, *unknown] for name, values in reported.items()}
    return candidates(in_flight=[*in_flight, *silent], **columns)


def test_endpoint_without_a_report_is_like_an_equal_one_that_has_as_many_requests():
    pool = reporting([10], [2], [8], [0.4], 10)
    assert [comparable_load(pool, column).tolist() for column in COLUMNS] == [[2, 2], [8, 8], [0.4, 0.4]]


@EACH
def test_endpoint_that_reports_nothing_at_all_is_judged_by_many_requests_of_our_own(column):
    pool = candidates(in_flight=[30, 4, 2], waiting=[0, 1, 0], running=[0, 3, 2], kv_usage=[0.0, 0.2, 0.1])
    load = comparable_load(pool, column)
    assert load[0] > load[1:].max()
    honest = candidates(in_flight=[7, 4], waiting=[0, 1], running=[0, 3], kv_usage=[0.0, 0.2])
    assert comparable_load(honest, column)[0] == 0  # few requests may be younger than the report


def test_tf_15_after_a_restart_requests_that_engines_report_count():
    # nothing of ours is in flight yet; later our own 9 are more than the 5 that the engine last reported
    assert batch_sizes(candidates(running=[5, 5], in_flight=[0, 9])).tolist() == [5, 9]
    assert comparable_load(candidates(waiting=[3, 0], in_flight=[0, 0]), WAITING).tolist() == [3, 0]


def test_tf_15_inherited_requests_are_others_to_endpoints_that_report_nothing():
    """They are in flight where they are reported, and as many are expected where nothing is, not none."""
    # 20 run at two endpoints, all of them inherited; the third reports nothing and has none of ours
    reported = {"waiting": [0, 0, nan], "running": [20, 20, nan], "kv_usage": [0.2, 0.2, nan]}
    pool = candidates(**reported, in_flight=[20, 20, 0], inherited=[20, 20, 0])
    assert comparable_load(pool, RUNNING).tolist() == [20, 20, 20]
    assert batch_sizes(pool).tolist() == [20, 20, 20]


def test_fewer_requests_are_less_load_in_proportion():
    pool = reporting([10], [2], [8], [0.4], 5)
    assert [comparable_load(pool, column)[1] for column in COLUMNS] == [1, 4, 0.2]


def test_each_request_above_the_busiest_that_reports_is_one_more():
    # 3 above 10; the KV cache grows by what a request of the busiest takes
    pool = reporting([10], [0], [10], [0.4], 13)
    assert [comparable_load(pool, column)[1] for column in COLUMNS] == pytest.approx([3, 13, 0.52])


def test_best_of_those_that_hold_as_many_is_the_model():
    # the first has a queue at 70 requests, the second none at 10: nor has one with 10; with 20 there is only the first
    pool = reporting([70, 10], [7, 0], [63, 10], [0.5, 0.01], 10, 20)
    assert comparable_load(pool, WAITING).tolist() == [7, 0, 0, 2]


def test_requests_of_others_are_those_of_the_median_that_reports():
    # 20, 30 and 100 run, 10 of each are ours: 10, 20 and 90 of others; 5 of ours and 20 of others are 25
    pool = reporting([10, 10, 10], [0, 0, 0], [20, 30, 100], [0.2, 0.3, 1.0], 5)
    assert comparable_load(pool, RUNNING)[3] == 25
    assert expected_load(pool, RUNNING)[3] == 5  # to be refused for a guess would be wrong


@EACH
def test_where_no_endpoint_reports_fewest_requests_are_least_load(column):
    load = comparable_load(candidates(in_flight=[3, 0, 7]), column)
    assert load.argsort().tolist() == [1, 0, 2]
    assert load[1] == 0


def test_limits_assume_a_batch_of_256_where_nothing_is_known():
    pool = candidates(in_flight=[0, 128, 300])
    assert expected_load(pool, WAITING).tolist() == [0, 0, 44]
    assert expected_load(pool, RUNNING).tolist() == [0, 128, 300]
    assert expected_load(pool, KV_USAGE).tolist() == [0, 0.5, 1.0]


def test_limits_take_a_queue_from_one_that_reports_it():
    # 6 of the 22 requests of the busiest wait: of 11, 3 do; 10 above the 22 run as well as not
    pool = reporting([22], [6], [16], [0.5], 11, 32)
    assert expected_load(pool, WAITING).tolist() == pytest.approx([6, 3, 6 + 10 * 6 / 22])


def test_other_columns_stay_unknown():
    column = Column("temperature", "degrees")
    pool = candidates(in_flight=[1, 1], reported={"temperature": [nan, 3]})
    assert np.isnan(comparable_load(pool, column)[0])
    assert np.isnan(expected_load(pool, column)[0])


def test_absurd_reports_stay_and_estimates_beside_them_are_finite():
    pool = candidates(
        waiting=[1e308, inf, nan], running=[1e308, 1, nan], kv_usage=[1e308, nan, nan], in_flight=[0, 1, 9]
    )
    for column in COLUMNS:
        for load in (comparable_load(pool, column), expected_load(pool, column)):
            assert load[0] == 1e308
            assert np.isfinite(load[2])


def test_no_candidates_have_no_load():
    none = candidates(waiting=[nan]).keep(np.array([False]))
    assert comparable_load(none, WAITING).tolist() == expected_load(none, WAITING).tolist() == []


def test_any_load_can_be_filled():
    pool = candidates(in_flight=[2, 1, 4])
    # 30 for each request of the first; 2 above its 2
    assert fill_unknown(np.array([60.0, nan, nan]), pool).tolist() == [60, 30, 120]
    assert fill_unknown(np.full(3, nan), pool, per_request=5).tolist() == [10, 5, 20]


counts = st.integers(0, 500).map(float)
usages = st.floats(0, 1)


@st.composite
def mixed(draw):
    """Endpoints that report, and some that do not; a report has at least the requests in flight."""
    reports = draw(st.lists(st.tuples(counts, counts, counts, usages), max_size=8))
    own = [min(waiting + running, sent) for sent, waiting, running, _ in reports]
    rest = [list(column) for column in zip(*(report[1:] for report in reports), strict=True)] or [[], [], []]
    return reporting(own, *rest, *draw(st.lists(counts, min_size=1, max_size=8)))


@EACH
@given(pool=mixed())
def test_reports_stay_and_estimates_are_finite(column, pool):
    reported = pool.values(column)
    known = ~np.isnan(reported)
    for load in (comparable_load(pool, column), expected_load(pool, column)):
        assert np.isfinite(load).all()
        assert (load >= 0).all()
        assert load[known].tolist() == reported[known].tolist()


@EACH
@given(pool=mixed())
def test_more_requests_in_flight_are_never_less_load(column, pool):
    silent = np.isnan(pool.values(column))
    order = pool.values(IN_FLIGHT)[silent].argsort(kind="stable")
    for load in (comparable_load(pool, column), expected_load(pool, column)):
        assert (np.diff(load[silent][order]) >= -1e-9).all()


@EACH
@given(pool=mixed())
def test_endpoint_without_a_report_is_no_worse_than_an_equal_one_and_worse_than_all_above_them(column, pool):
    load, own = comparable_load(pool, column), pool.values(IN_FLIGHT)
    known = ~np.isnan(pool.values(column))
    engine = np.nan_to_num(pool.values(WAITING)) + np.nan_to_num(pool.values(RUNNING))
    others = np.sort((engine - own)[known])[(known.sum() - 1) // 2] if known.any() else 0.0
    for position in np.flatnonzero(~known):
        as_many = known & (engine >= own[position] + others)
        assert (load[position] <= load[as_many] + 1e-9).all()  # never starved
        if known.any() and not as_many.any():
            busiest = np.flatnonzero(known & (engine == engine[known].max()))
            assert load[position] >= min(load[busiest].min(), 1.0)  # never flooded
