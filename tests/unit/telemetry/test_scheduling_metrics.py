# SPDX-License-Identifier: Apache-2.0
"""What the metrics page shows of scheduling and plugins."""

import pytest
from structlog.testing import capture_logs

from epp.framework import Request, RequestBody
from epp.framework.plugin import Guard
from epp.framework.roles import Producer
from epp.framework.testing import candidates
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.plugins.profile_handlers import RandomPicker
from tests.support.metric_page import RESULT


def test_runs_of_the_scheduler_are_timed_and_counted_by_endpoint(page):
    request = Request("r", RequestBody(model="m"), target_model="t")
    page.metrics.scheduled(request, 0.0003, RESULT)
    page.metrics.routed(request, RESULT, scheduling_seconds=0.5)
    page.metrics.scheduled(request, 0.0002, None)
    assert page.value("scheduler_e2e_duration_seconds_sum") == pytest.approx(0.0005)
    picked = {"endpoint_name": "e0", "namespace": "default", "port": str(RESULT.targets[0].port)}
    assert page.value("scheduler_attempts_total", status="success", target_model_name="t", **picked) == 1
    nowhere = dict.fromkeys(picked, "")
    assert page.value("scheduler_attempts_total", status="failure", target_model_name="t", **nowhere) == 1
    page.metrics.refresh_pool(page.store.snapshot())  # which has no endpoint e0
    assert page.label_values("scheduler_attempts_total", "status") == {"failure"}


PICKER = RandomPicker(name="mine")


LABELS = {"extension_point": "Picker", "plugin_type": "random-picker", "plugin_name": "mine"}


def test_calls_of_plugins_are_a_histogram_under_the_name_of_llm_d_router(page):
    for seconds in (0.00005, 0.0001, 0.0003, 0.25):
        page.metrics.plugin_called(RandomPicker.role, PICKER, seconds)
    buckets = {le: page.value("plugin_duration_seconds_bucket", le=le, **LABELS) for le in ("0.0001", "0.0005", "+Inf")}
    assert buckets == {"0.0001": 2, "0.0005": 3, "+Inf": 4}
    assert page.value("plugin_duration_seconds_count", **LABELS) == 4
    assert page.value("plugin_duration_seconds_sum", **LABELS) == pytest.approx(0.25045)


def test_ome_15_time_of_the_selection_of_accelerators_is_a_histogram(page):
    producer, request, pool = AcceleratorSelectionProducer(), Request("r"), candidates(waiting=[0, 0])
    times = iter((1.0, 1.0003))
    guard = Guard(page.metrics, timer=lambda: next(times))
    guard.call(Producer.role, producer, producer.produce, request, pool)
    kind = "accelerator-selection-producer"
    labels = {"extension_point": "DataProducer", "plugin_type": kind, "plugin_name": kind}
    assert page.value("plugin_duration_seconds_count", **labels) == 1
    assert page.value("plugin_duration_seconds_sum", **labels) == pytest.approx(0.0003)


def test_slow_calls_are_counted_and_logged_once_where_they_are_many(page):
    with capture_logs() as logs:
        for number in range(1000):
            page.metrics.plugin_called(RandomPicker.role, PICKER, 0.02 if number % 50 == 49 else 0.0001)
    assert page.value("plugin_slow_calls_total", **LABELS) == 20
    assert logs == []  # few among many
    with capture_logs() as logs:
        for _ in range(20):
            page.metrics.plugin_called(RandomPicker.role, RandomPicker(name="slow"), 0.02)
    assert page.value("plugin_slow_calls_total", **LABELS | {"plugin_name": "slow"}) == 20
    (entry,) = logs
    assert (entry["log_level"], entry["plugin"], entry["slow_calls"], entry["mean_ms"]) == ("warning", "slow", 5, 20.0)


def test_scores_that_are_replaced_are_counted_by_plugin_and_logged_once(page):
    with capture_logs() as logs:
        for _ in range(3):
            page.metrics.scores_rejected("mine", 2)
            page.metrics.scores_clamped("mine", 1)
        page.metrics.scores_clamped("other", 5)
    assert page.value("scheduler_scores_rejected_total", plugin_name="mine") == 6
    assert page.value("scheduler_scores_clamped_total", plugin_name="mine") == 3
    assert page.value("scheduler_scores_clamped_total", plugin_name="other") == 5
    assert [(entry["plugin"], entry["count"]) for entry in logs] == [("mine", 2), ("mine", 1), ("other", 5)]
    assert "NaN" in logs[0]["event"]
    assert "above 1" in logs[1]["event"]
