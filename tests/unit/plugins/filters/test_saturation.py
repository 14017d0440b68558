# SPDX-License-Identifier: Apache-2.0
"""Filters and saturation detectors by load."""

from math import nan

import pytest

from epp.framework import ConfigurationError, ManualClock, Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, WAITING
from epp.framework.testing import candidates
from epp.plugins.saturation import ConcurrencyDetector, UtilizationDetector, UtilizationFilter
from tests.support.plugins import built

NOW = 1000.0


def detector(cls, **parameters):
    return built(cls, parameters, clock=ManualClock(NOW))


def kept(cls, pool, **parameters):
    return detector(cls, **parameters).filter(Request("r"), pool).tolist()


def reported(*ages, **columns):
    return candidates(metrics_at=[NOW - age for age in ages], **columns)


STALE = reported(0.1, 0.3, nan, waiting=[0, 0, 0], kv_usage=[0, 0, 0])


@pytest.mark.parametrize(
    ("pool", "parameters", "expected"),
    [
        # one at a threshold is dropped
        (reported(0, 0, 0, waiting=[4, 5, 0], kv_usage=[0.79, 0, 0.8]), {}, [True, False, False]),
        # headroom is a share of each threshold: up to 5 * 1.2 = 6 requests, and 0.5 * 1.2 = 0.6 of the cache
        (
            reported(0, 0, 0, waiting=[5, 6, 0], kv_usage=[0, 0, 0.6]),
            {"headroom": 0.2, "kvCacheUtilThreshold": 0.5},
            [True, False, False],
        ),
        # stale metrics are not trusted
        (STALE, {}, [True, False, False]),
        (STALE, {"metricsStalenessThreshold": "1s"}, [True, True, False]),
        # a single unknown metric is not above its threshold
        (reported(0, 0, 0, waiting=[nan, nan, 4], kv_usage=[0.1, 0.9, nan]), {}, [True, False, True]),
        # all are kept where all are full or silent
        (reported(0, 9, waiting=[50, 0], kv_usage=[0, 0]), {}, [True, True]),
    ],
)
def test_endpoint_below_all_thresholds_by_metrics_that_are_not_stale_is_kept(pool, parameters, expected):
    assert kept(UtilizationDetector, pool, **parameters) == expected


IN_FLIGHT = candidates(in_flight=[9, 10, 9, 10], in_flight_tokens=[99, 99, 100, 100])
LIMITS = {"maxConcurrency": 10, "maxTokenConcurrency": 100}


@pytest.mark.parametrize(
    ("pool", "parameters", "expected"),
    [
        (IN_FLIGHT, {"concurrencyMode": "requests", **LIMITS}, [True, False, True, False]),
        (IN_FLIGHT, {"concurrencyMode": "tokens", **LIMITS}, [True, True, False, False]),
        (IN_FLIGHT, {"concurrencyMode": "hybrid", **LIMITS}, [True, False, False, False]),
        # int(3 * 1.5) = 4: three in flight are kept, four are not
        (candidates(in_flight=[3, 4]), {"maxConcurrency": 3, "headroom": 0.5}, [True, False]),
        (candidates(in_flight=[100, 101]), {}, [False, False]),
    ],
)
def test_what_this_picker_has_in_flight_counts_by_mode(pool, parameters, expected):
    assert kept(ConcurrencyDetector, pool, **parameters) == expected


def test_concurrency_leaves_nothing_of_a_full_pool_unless_it_is_told_to():
    assert detector(ConcurrencyDetector).may_empty
    assert not detector(UtilizationDetector).may_empty


@pytest.mark.parametrize("cls", [UtilizationDetector, ConcurrencyDetector])
def test_headroom_that_looks_like_a_percentage_is_warned_of(cls):
    warning = "headroom is 20: endpoints are kept up to 21 times a threshold"
    assert detector(cls, headroom=20).warnings == (warning,)


def gpu(model, *classes):
    return AcceleratorTag(kind=AcceleratorKind.GPU, model=model, classes=classes)


H100, L4, UNKNOWN = gpu("h100", "Hopper"), gpu("l4"), AcceleratorTag()


@pytest.mark.parametrize(
    ("tags", "columns", "limits", "expected", "fullness"),
    [
        (
            [H100, H100, L4, L4, UNKNOWN, UNKNOWN],
            {"in_flight": [39, 40, 7, 8, 19, 20]},
            {"maxConcurrency": 20, "classes": {"h100": {"maxConcurrency": 40}, "l4": {"maxConcurrency": 8}}},
            [True, False, True, False, True, False],
            [39 / 40, 1, 7 / 8, 1, 19 / 20, 1],
        ),
        # the class, in any case, goes before the model
        (
            [H100],
            {"in_flight": [10]},
            {"classes": {"h100": {"maxConcurrency": 5}, "HOPPER": {"maxConcurrency": 11}}},
            [True],
            [10 / 11],
        ),
        # what a class leaves out is that of all: tokens 100 of 200 for the L4, of 100 for others; requests 8 of 10
        (
            [L4, H100],
            {"in_flight": [8, 8], "in_flight_tokens": [100, 100]},
            {"concurrencyMode": "hybrid", **LIMITS, "classes": {"l4": {"maxTokenConcurrency": 200}}},
            [True, False],
            [0.8, 1.0],
        ),
        # headroom widens the limits of each class: 10, and 12
        (
            [L4, L4, H100, H100],
            {"in_flight": [9, 10, 11, 12]},
            {"headroom": 0.25, "maxConcurrency": 10, "classes": {"l4": {"maxConcurrency": 8}}},
            [True, False, True, False],
            [9 / 8, 10 / 8, 1.1, 1.2],
        ),
    ],
)
def test_gie_14_each_accelerator_class_has_its_own_limit(tags, columns, limits, expected, fullness):
    pool = candidates(accelerators=tags, **columns)
    assert kept(ConcurrencyDetector, pool, **limits) == expected
    assert detector(ConcurrencyDetector, **limits).fullness(pool).tolist() == pytest.approx(fullness)


def test_gie_14_queue_and_cache_have_limits_by_class():
    tags = [H100, H100, L4, L4, UNKNOWN]
    pool = reported(*[0] * 5, waiting=[19, 20, 1, 2, 4], kv_usage=[0, 0, 0.5, 0, 0.79], accelerators=tags)
    limits = {"classes": {"h100": {"queueDepthThreshold": 20}, "l4": {"queueDepthThreshold": 2}}}
    assert kept(UtilizationDetector, pool, **limits) == [True, False, True, False, True]
    limits["classes"]["l4"]["kvCacheUtilThreshold"] = 0.5
    assert kept(UtilizationDetector, pool, **limits) == [True, False, False, False, True]
    found = detector(UtilizationDetector, **limits).fullness(pool)
    assert found.tolist() == pytest.approx([19 / 20, 1, 1, 1, 0.79 / 0.8])


def test_gie_14_names_of_classes_are_checked_and_tags_read_only_where_there_are_any():
    by_class = detector(ConcurrencyDetector, classes={"H100": {"maxConcurrency": 1}})
    assert (by_class.accelerator_names, ACCELERATOR in by_class.reads) == (("H100",), True)
    assert ACCELERATOR not in detector(ConcurrencyDetector).reads
    assert ACCELERATOR not in detector(UtilizationDetector).reads


def test_gie_14_limit_of_a_class_that_is_no_number_is_refused():
    with pytest.raises(ConfigurationError, match="maxConcurrency"):
        detector(ConcurrencyDetector, classes={"h100": {"maxConcurrency": 0}})


def capped(*caps):
    return {"conditions": [{"metric": metric, "maxValue": value} for metric, value in caps]}


QUEUE = ("waiting-queue", 5)


@pytest.mark.parametrize(
    ("caps", "columns", "expected"),
    [
        # one above the cap is dropped, and one at it stays
        ([("active-requests", 4)], {"in_flight": [3, 4, 5]}, [True, True, False]),
        ([("running-requests", 4)], {"running": [3, 4, 5]}, [True, True, False]),
        ([("waiting-queue", 4)], {"waiting": [3, 4, 5]}, [True, True, False]),
        ([("kv-cache-utilization", 0.9)], {"kv_usage": [0.5, 0.9, 0.95]}, [True, True, False]),
        # every cap must hold
        (
            [QUEUE, ("kv-cache-utilization", 0.8)],
            {"waiting": [0, 9, 0], "kv_usage": [0.1, 0.1, 0.9]},
            [True, False, False],
        ),
        # unknown: 9 of the 16 requests of the second wait; the others hold 0, 8 and 16 requests
        (
            [QUEUE],
            {"waiting": [nan, 9, nan, nan], "running": [nan, 7, nan, nan], "in_flight": [0, 16, 8, 16]},
            [True, False, True, False],
        ),
        # without any report the limit holds above a batch of 256
        ([QUEUE], {"in_flight": [100, 261, 262]}, [True, True, False]),
        ([QUEUE], {"waiting": [9, 9]}, [False, False]),
    ],
)
def test_endpoint_above_a_cap_is_dropped(caps, columns, expected):
    assert kept(UtilizationFilter, candidates(**columns), **capped(*caps)) == expected


def test_only_the_metrics_that_are_capped_are_read():
    caps = capped(QUEUE, ("kv-cache-utilization", 0.8), ("waiting-queue", 3))
    assert built(UtilizationFilter, caps).reads == (WAITING, KV_USAGE)
