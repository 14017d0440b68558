# SPDX-License-Identifier: Apache-2.0
"""Limits of the load of endpoints."""

from math import nan

import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.snapshot import KV_USAGE, WAITING
from epp.framework.testing import candidates
from epp.plugins.filters.saturation import UtilizationFilter
from tests.support.plugins import built


def build(*caps, **parameters):
    conditions = [{"metric": metric, "maxValue": value} for metric, value in caps]
    given = {"conditions": conditions} | parameters
    return built(UtilizationFilter, given)


def kept(pool, *caps):
    return build(*caps).filter(Request("r"), pool).tolist()


@pytest.mark.parametrize(
    ("metric", "column"),
    [("active-requests", "in_flight"), ("running-requests", "running"), ("waiting-queue", "waiting")],
)
def test_endpoint_above_the_cap_is_dropped_and_one_at_it_stays(metric, column):
    assert kept(candidates(**{column: [3, 4, 5]}), (metric, 4)) == [True, True, False]


def test_kv_cache_utilization_is_a_share():
    assert kept(candidates(kv_usage=[0.5, 0.9, 0.95]), ("kv-cache-utilization", 0.9)) == [True, True, False]


def test_every_cap_must_hold():
    pool = candidates(waiting=[0, 9, 0], kv_usage=[0.1, 0.1, 0.9])
    assert kept(pool, ("waiting-queue", 5), ("kv-cache-utilization", 0.8)) == [True, False, False]


def test_unknown_is_estimated_from_requests_in_flight():
    # 9 of the 16 requests of the second wait; the others hold 0, 8 and 16 requests
    pool = candidates(waiting=[nan, 9, nan, nan], running=[nan, 7, nan, nan], in_flight=[0, 16, 8, 16])
    assert kept(pool, ("waiting-queue", 5)) == [True, False, True, False]


def test_without_any_report_the_limit_holds_above_a_batch_of_256():
    assert kept(candidates(in_flight=[100, 261, 262]), ("waiting-queue", 5)) == [True, True, False]


def test_all_over_the_limit_leaves_none():
    assert kept(candidates(waiting=[9, 9]), ("waiting-queue", 5)) == [False, False]


def test_only_the_metrics_that_are_capped_are_read():
    caps = [("waiting-queue", 5), ("kv-cache-utilization", 0.8), ("waiting-queue", 3)]
    assert build(*caps).reads == (WAITING, KV_USAGE)


@pytest.mark.parametrize(
    ("caps", "sentence"),
    [
        ([], "conditions is empty; list at least one"),
        ([("queue", 1)], "'queue' is not known; use 'active-requests', "),
        ([("waiting-queue", -1)], "maxValue is -1; it must be 0 or more"),
        ([("waiting-queue", nan)], "maxValue is nan; it must be 0 or more"),
    ],
)
def test_caps_that_mean_nothing_are_refused(caps, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(*caps)
