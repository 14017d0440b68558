# SPDX-License-Identifier: Apache-2.0
"""What the metrics page shows of the pool and its hardware."""

from math import nan

import numpy as np
import pytest

from epp.framework import Destination, Headers, ManualClock, ProfileResult, Request, SchedulingResult
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.snapshot import ACCELERATOR, ANSWERS, KV_USAGE, REFUSES, RUNNING, WAITING
from epp.framework.snapshot import SILENT as NO_ANSWER
from epp.framework.testing import candidates
from epp.routing.datastore import Datastore
from epp.routing.director import Cause
from epp.telemetry.metrics import Metrics
from tests.support.metric_page import ONE, SILENT, TWO


def test_pool_gauges_average_what_is_known(page):
    page.store.report(ONE, Report(columns={WAITING: 4, RUNNING: 10, KV_USAGE: 0.5}))
    page.store.report(TWO, Report(columns={WAITING: 1, RUNNING: nan, KV_USAGE: 0.25}))
    page.store.mark(TWO, REFUSES)
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("ready_endpoints", name="pool") == 2
    assert page.value("average_queue_size", name="pool") == 2.5  # of 4 and 1; `silent` said nothing
    assert page.value("average_running_requests", name="pool") == 10
    assert page.value("average_kv_cache_utilization", name="pool") == 0.375
    assert page.value("std_dev_queue_size", name="pool") == pytest.approx(4.5**0.5)  # 1.5 ** 2 + 1.5 ** 2, of 2 - 1
    assert page.value("std_dev_running_requests", name="pool") == 0  # of one alone
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="one") == 4
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="two") == 1
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="silent") is None


def test_load_that_is_too_old_does_not_count_in_the_averages_while_any_is_newer(page):
    page.metrics.refresh_pool(page.store.snapshot())
    assert (page.value("ready_endpoints", name="pool"), page.value("average_queue_size", name="pool")) == (3, 0)
    page.store.report(ONE, Report(columns={WAITING: 9}))
    page.clock.advance(1.5)
    page.store.report(TWO, Report(columns={WAITING: 1}))
    for seconds, average in ((0.0, 5.0), (1.0, 1.0), (60.0, 1.0)):
        page.clock.advance(seconds)
        page.metrics.refresh_pool(page.store.snapshot())
        assert page.value("average_queue_size", name="pool") == average
    page.store.replace([])
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("average_queue_size", name="pool") == 0


def test_endpoint_is_up_while_it_can_be_reached(page):
    page.store.mark(TWO, REFUSES)
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("endpoint_up", name="pool", model_server_endpoint="one") == 1
    assert page.value("endpoint_up", name="pool", model_server_endpoint="two") == 0
    page.store.mark(TWO, ANSWERS)
    for endpoint in (ONE, SILENT):
        page.store.mark(endpoint, NO_ANSWER)
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("endpoint_up", name="pool", model_server_endpoint="one") == 0
    assert page.value("endpoint_up", name="pool", model_server_endpoint="two") == 1
    assert page.value("ready_endpoints", name="pool") == 1
    page.store.mark(TWO, NO_ANSWER)
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("ready_endpoints", name="pool") == 0


def test_endpoint_that_left_has_no_series(page):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    routing.complete(Cause.NATURAL)
    e0 = routing.served
    page.store.replace([e0, TWO])
    page.store.report(e0, Report(columns={WAITING: 4}))
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.label_values("per_endpoint_queue_size", "model_server_endpoint") == {"e0"}
    assert page.label_values("endpoint_up", "model_server_endpoint") == {"e0", "two"}
    assert page.label_values("endpoint_responses_total", "model_server_endpoint") == {"e0"}
    page.store.replace([TWO])
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.label_values("endpoint_up", "model_server_endpoint") == {"two"}
    for name in ("endpoint_responses_total", "per_endpoint_queue_size"):
        assert page.label_values(name, "model_server_endpoint") == set()


def test_ome_15_picks_and_ready_endpoints_are_counted_by_hardware():
    tags = [AcceleratorTag(classes=("nvidia-h100",)), AcceleratorTag(model="t4"), AcceleratorTag()]
    pool = candidates(records={ACCELERATOR: tags})
    legs = {
        name: ProfileResult(name, pool, np.zeros(3), np.array([position]))
        for position, name in enumerate(("prefill", "decode"))
    }
    metrics = Metrics("pool", ManualClock())
    metrics.routed(Request("r"), SchedulingResult(Destination(legs["decode"]), legs, {}), scheduling_seconds=0.0)
    picked = metrics.registry.get_sample_value
    name = "llm_d_epp_accelerator_selections_total"
    assert picked(name, {"accelerator": "nvidia-h100", "profile": "prefill", "policy": ""}) == 1
    assert picked(name, {"accelerator": "t4", "profile": "decode", "policy": ""}) == 1
    cheapest = Request("r")
    cheapest.put(ACCELERATOR_SELECTION, Selections(Selection(policy="cheapest")))
    metrics.routed(cheapest, SchedulingResult(Destination(legs["decode"]), legs, {}), scheduling_seconds=0.0)
    assert picked(name, {"accelerator": "t4", "profile": "decode", "policy": "cheapest"}) == 1
    store = Datastore(ManualClock())
    store.replace([ONE, TWO, SILENT])
    store.tag(ONE, Report(attributes={ACCELERATOR: tags[0]}))
    store.tag(TWO, Report(attributes={ACCELERATOR: tags[0]}))
    metrics.refresh_pool(store.snapshot())
    ready = "llm_d_epp_accelerator_ready_endpoints"
    assert picked(ready, {"name": "pool", "accelerator": "nvidia-h100"}) == 2
    assert picked(ready, {"name": "pool", "accelerator": "unknown"}) == 1


def test_ome_15_dollars_an_hour_are_told_by_hardware_and_those_that_work():
    store = Datastore(ManualClock())
    store.replace([ONE, TWO, SILENT])
    h100 = AcceleratorTag(model="h100", cost=Cost(per_hour=2.5), count=2)
    store.tag(ONE, Report(attributes={ACCELERATOR: h100}))
    store.tag(TWO, Report(attributes={ACCELERATOR: h100}))
    store.tag(SILENT, Report(attributes={ACCELERATOR: AcceleratorTag(model="t4")}))
    store.ledger.open(0)
    metrics = Metrics("pool", ManualClock())
    metrics.refresh_pool(store.snapshot())
    shown = metrics.registry.get_sample_value
    labels = {"name": "pool", "accelerator": "h100"}
    assert shown("llm_d_epp_accelerator_cost_per_hour", labels) == 10  # two endpoints of two devices
    assert shown("llm_d_epp_accelerator_busy_cost_per_hour", labels) == 5
    assert shown("llm_d_epp_accelerator_cost_per_hour", {**labels, "accelerator": "t4"}) is None  # without a price
    assert shown("llm_d_epp_endpoints_without_price", {"name": "pool"}) == 1


def test_age_of_the_snapshot_is_that_of_its_oldest_report(page):
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("snapshot_age_seconds", name="pool") == 0  # nobody has reported
    for endpoint in (ONE, TWO):
        page.store.report(endpoint, Report(columns={WAITING: 1}))
        page.clock.advance(2.0)
    page.metrics.refresh_pool(page.store.snapshot())
    assert page.value("snapshot_age_seconds", name="pool") == 4


def test_ome_15_classes_of_a_cluster_beyond_256_are_counted_together():
    metrics = Metrics("pool", ManualClock())
    for number in range(300):
        pool = candidates(records={ACCELERATOR: [AcceleratorTag(classes=(f"c{number}",))]})
        leg = ProfileResult("p", pool, np.zeros(1), np.array([0]))
        metrics.routed(Request("r"), SchedulingResult(Destination(leg), {"p": leg}, {}), scheduling_seconds=0.0)
    labels = {"accelerator": "other", "profile": "p", "policy": ""}
    assert metrics.registry.get_sample_value("llm_d_epp_accelerator_selections_total", labels) == 300 - 256
