# SPDX-License-Identifier: Apache-2.0
"""Endpoints by load."""

from math import nan

import pytest

from epp.framework import ConfigurationError, ManualClock, Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, WAITING
from epp.framework.testing import candidates
from epp.plugins.saturation import UtilizationFilter
from tests.support.plugins import built

NOW = 1000.0


def detector(kind, **parameters):
    return Registry().build(kind, parameters, name="mine", clock=ManualClock(NOW))


def kept(kind, pool, **parameters):
    return detector(kind, **parameters).filter(Request("r"), pool).tolist()


def reported(*ages, **columns):
    return candidates(metrics_at=[NOW - age for age in ages], **columns)


def test_endpoint_at_a_threshold_is_dropped():
    pool = reported(0, 0, 0, waiting=[4, 5, 0], kv_usage=[0.79, 0, 0.8])
    assert kept("utilization-detector", pool) == [True, False, False]


def test_headroom_is_a_share_of_each_threshold():
    # up to 5 * 1.2 = 6 requests, and 0.5 * 1.2 = 0.6 of the cache
    pool = reported(0, 0, 0, waiting=[5, 6, 0], kv_usage=[0, 0, 0.6])
    assert kept("utilization-detector", pool, headroom=0.2, kvCacheUtilThreshold=0.5) == [True, False, False]


def test_stale_metrics_are_not_trusted():
    pool = reported(0.1, 0.3, nan, waiting=[0, 0, 0], kv_usage=[0, 0, 0])
    assert kept("utilization-detector", pool) == [True, False, False]
    assert kept("utilization-detector", pool, metricsStalenessThreshold="1s") == [True, True, False]


def test_single_unknown_metric_is_not_above_its_threshold():
    pool = reported(0, 0, 0, waiting=[nan, nan, 4], kv_usage=[0.1, 0.9, nan])
    assert kept("utilization-detector", pool) == [True, False, True]


def test_all_endpoints_are_kept_where_all_are_full_or_silent():
    assert kept("utilization-detector", reported(0, 9, waiting=[50, 0], kv_usage=[0, 0])) == [True, True]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("requests", [True, False, True, False]),
        ("tokens", [True, True, False, False]),
        ("hybrid", [True, False, False, False]),
    ],
)
def test_what_this_picker_has_in_flight_counts_by_mode(mode, expected):
    pool = candidates(in_flight=[9, 10, 9, 10], in_flight_tokens=[99, 99, 100, 100])
    limits = {"maxConcurrency": 10, "maxTokenConcurrency": 100}
    assert kept("concurrency-detector", pool, concurrencyMode=mode, **limits) == expected


def test_limit_with_headroom_is_a_whole_number():
    # int(3 * 1.5) = 4: three in flight are kept, four are not
    pool = candidates(in_flight=[3, 4])
    assert kept("concurrency-detector", pool, maxConcurrency=3, headroom=0.5) == [True, False]


def test_concurrency_leaves_nothing_of_a_full_pool_unless_it_is_told_to():
    assert kept("concurrency-detector", candidates(in_flight=[100, 101])) == [False, False]
    assert detector("concurrency-detector").may_empty
    assert not detector("utilization-detector").may_empty


@pytest.mark.parametrize("kind", ["utilization-detector", "concurrency-detector"])
def test_headroom_that_looks_like_a_percentage_is_warned_of(kind):
    assert detector(kind, headroom=20).warnings == ("headroom is 20: endpoints are kept up to 21 times a threshold",)


def gpu(model, *classes):
    return AcceleratorTag(kind=AcceleratorKind.GPU, model=model, classes=classes)


H100, L4, UNKNOWN = gpu("h100", "Hopper"), gpu("l4"), AcceleratorTag()


def test_gie_14_each_accelerator_class_has_its_own_limit():
    pool = candidates(records={ACCELERATOR: [H100, H100, L4, L4, UNKNOWN, UNKNOWN]}, in_flight=[39, 40, 7, 8, 19, 20])
    limits = {"maxConcurrency": 20, "classes": {"h100": {"maxConcurrency": 40}, "l4": {"maxConcurrency": 8}}}
    assert kept("concurrency-detector", pool, **limits) == [True, False, True, False, True, False]
    fullness = detector("concurrency-detector", **limits).fullness(pool).tolist()
    assert fullness == [39 / 40, 1, 7 / 8, 1, 19 / 20, 1]


def test_gie_14_class_is_known_by_its_name_in_any_case_before_its_model():
    pool = candidates(records={ACCELERATOR: [H100]}, in_flight=[10])
    limits = {"classes": {"h100": {"maxConcurrency": 5}, "HOPPER": {"maxConcurrency": 11}}}
    assert kept("concurrency-detector", pool, **limits) == [True]


def test_gie_14_what_a_class_leaves_out_is_that_of_all_endpoints():
    # tokens: 100 of 200 for the L4, 100 of 100 for others; requests: 8 of 10 for both
    pool = candidates(records={ACCELERATOR: [L4, H100]}, in_flight=[8, 8], in_flight_tokens=[100, 100])
    limits = {
        "concurrencyMode": "hybrid",
        "maxConcurrency": 10,
        "maxTokenConcurrency": 100,
        "classes": {"l4": {"maxTokenConcurrency": 200}},
    }
    assert detector("concurrency-detector", **limits).fullness(pool).tolist() == [0.8, 1.0]
    assert kept("concurrency-detector", pool, **limits) == [True, False]


def test_gie_14_queue_and_cache_have_limits_by_class():
    tags = [H100, H100, L4, L4, UNKNOWN]
    pool = reported(*[0] * 5, waiting=[19, 20, 1, 2, 4], kv_usage=[0, 0, 0.5, 0, 0.79], records={ACCELERATOR: tags})
    limits = {"classes": {"h100": {"queueDepthThreshold": 20}, "l4": {"queueDepthThreshold": 2}}}
    assert kept("utilization-detector", pool, **limits) == [True, False, True, False, True]
    limits["classes"]["l4"]["kvCacheUtilThreshold"] = 0.5
    assert kept("utilization-detector", pool, **limits) == [True, False, False, False, True]
    found = detector("utilization-detector", **limits).fullness(pool)
    assert found.tolist() == pytest.approx([19 / 20, 1, 1, 1, 0.79 / 0.8])


def test_gie_14_headroom_widens_the_limits_of_each_class():
    pool = candidates(records={ACCELERATOR: [L4, L4, H100, H100]}, in_flight=[9, 10, 11, 12])
    limits = {"headroom": 0.25, "maxConcurrency": 10, "classes": {"l4": {"maxConcurrency": 8}}}  # 10, and 12
    assert kept("concurrency-detector", pool, **limits) == [True, False, True, False]


def test_gie_14_names_of_classes_are_checked_and_tags_read_only_where_there_are_any():
    by_class = detector("concurrency-detector", classes={"H100": {"maxConcurrency": 1}})
    assert (by_class.accelerator_names, ACCELERATOR in by_class.reads) == (("H100",), True)
    assert ACCELERATOR not in detector("concurrency-detector").reads
    assert ACCELERATOR not in detector("utilization-detector").reads


def test_gie_14_limit_of_a_class_that_is_no_number_is_refused():
    with pytest.raises(ConfigurationError, match="maxConcurrency"):
        detector("concurrency-detector", classes={"h100": {"maxConcurrency": 0}})


def build(*caps, **parameters):
    conditions = [{"metric": metric, "maxValue": value} for metric, value in caps]
    given = {"conditions": conditions} | parameters
    return built(UtilizationFilter, given)


def kept_below(pool, *caps):
    return build(*caps).filter(Request("r"), pool).tolist()


@pytest.mark.parametrize(
    ("metric", "column"),
    [("active-requests", "in_flight"), ("running-requests", "running"), ("waiting-queue", "waiting")],
)
def test_endpoint_above_the_cap_is_dropped_and_one_at_it_stays(metric, column):
    assert kept_below(candidates(**{column: [3, 4, 5]}), (metric, 4)) == [True, True, False]


def test_kv_cache_utilization_is_a_share():
    assert kept_below(candidates(kv_usage=[0.5, 0.9, 0.95]), ("kv-cache-utilization", 0.9)) == [True, True, False]


def test_every_cap_must_hold():
    pool = candidates(waiting=[0, 9, 0], kv_usage=[0.1, 0.1, 0.9])
    assert kept_below(pool, ("waiting-queue", 5), ("kv-cache-utilization", 0.8)) == [True, False, False]


def test_unknown_is_estimated_from_requests_in_flight():
    # 9 of the 16 requests of the second wait; the others hold 0, 8 and 16 requests
    pool = candidates(waiting=[nan, 9, nan, nan], running=[nan, 7, nan, nan], in_flight=[0, 16, 8, 16])
    assert kept_below(pool, ("waiting-queue", 5)) == [True, False, True, False]


def test_without_any_report_the_limit_holds_above_a_batch_of_256():
    assert kept_below(candidates(in_flight=[100, 261, 262]), ("waiting-queue", 5)) == [True, True, False]


def test_all_over_the_limit_leaves_none():
    assert kept_below(candidates(waiting=[9, 9]), ("waiting-queue", 5)) == [False, False]


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
