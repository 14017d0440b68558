# SPDX-License-Identifier: Apache-2.0
"""What the metrics page shows after events fed by hand."""

from math import nan

import numpy as np
import pytest
from structlog.testing import capture_logs

from epp.accelerators.selection.producer import AcceleratorSelectionProducer
from epp.datastore import Credit, Datastore
from epp.director import Cause, ParserTable, Pipeline, Refusal, Rewrite, Routing
from epp.framework import (
    Destination,
    Endpoint,
    Headers,
    ManualClock,
    ProfileResult,
    Request,
    RequestBody,
    SchedulingResult,
)
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.errors import ModelMissingError, NoEndpointsError, SaturatedError, SheddableDroppedError
from epp.framework.roles import Producer
from epp.framework.snapshot import ACCELERATOR, ANSWERS, KV_USAGE, REFUSES, RUNNING, WAITING
from epp.framework.snapshot import SILENT as NO_ANSWER
from epp.framework.testing import candidates
from epp.observability.metrics import Metrics
from epp.outliers import OutlierMemory
from epp.plugins.pickers import RandomPicker
from epp.plugins.profile_handlers import SingleProfileHandler
from epp.scheduling import Guard, Scheduler

POOL = candidates(waiting=[0])
PICKED = ProfileResult("default", POOL, POOL.values(WAITING), POOL.slots)
UNUSED = Scheduler({}, SingleProfileHandler(), SingleProfileHandler())
RESULT = SchedulingResult(Destination(PICKED), {"default": PICKED}, {})
ONE = Endpoint("one", "10.0.0.1", 8000)
TWO = Endpoint("two", "10.0.0.2", 8000)
SILENT = Endpoint("silent", "10.0.0.3", 8000)


class Page:
    """Metrics that start at 0 s on a clock that stands still, and their page."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics("pool", self.clock)
        self.store = Datastore(self.clock)
        self.store.replace([ONE, TWO, SILENT])

    def route(self, model: str = "m", *, flow: str = "f", streaming: bool = False, size_bytes: int = 0) -> Routing:
        request = Request(
            "r",
            RequestBody(model=model, streaming=streaming),
            fairness_id=flow,
            size_bytes=size_bytes,
            received_at=self.clock.now(),
        )
        self.metrics.routed(request, RESULT, scheduling_seconds=0.0003)
        return Routing(
            request,
            RESULT,
            Credit(self.store.ledger.open(0)),
            Pipeline(ParserTable(()), UNUSED),
            guard=Guard(self.metrics),
            observer=self.metrics,
            find=self.store.find,
            outliers=OutlierMemory(self.store, self.clock),
        )

    def stream(self, *pauses: float, tokens: int) -> Routing:
        """A whole streamed response: a piece after each pause, and the end, which tells the tokens."""
        routing = self.route(streaming=True)
        routing.response_started(200, Headers, event_stream=True)
        for pause in pauses:
            self.clock.advance(pause)
            routing.response_piece(b"data: {}\n\n", last=False, now=self.clock.now)
        end = f'data: {{"usage":{{"prompt_tokens":4,"completion_tokens":{tokens}}}}}\n\n'.encode()
        routing.response_piece(end, last=True, now=self.clock.now)
        routing.complete(Cause.NATURAL)
        return routing

    def value(self, name: str, /, **labels: str) -> float | None:
        """The one sample with these labels, None where there is none; `model` stands for both labels of the model."""
        if "model" in labels:
            model = labels.pop("model")
            labels |= {"model_name": model, "target_model_name": model}
            labels = {"fairness_id": "f", "priority": "0", **labels}
        return self.metrics.registry.get_sample_value(f"llm_d_epp_{name}", labels)

    def label_values(self, name: str, label: str) -> set[str]:
        families = self.metrics.registry.collect()
        return {s.labels[label] for family in families for s in family.samples if s.name == f"llm_d_epp_{name}"}


@pytest.fixture
def page() -> Page:
    return Page()


def test_request_is_running_from_its_routing_to_its_end(page):
    first, second = page.route(), page.route()
    assert page.value("request_total", model="m") == 2
    assert page.value("request_running", model="m") == 2
    first.complete(Cause.NATURAL)
    first.complete(Cause.NATURAL)
    assert page.value("request_running", model="m") == 1
    second.complete(Cause.ERROR)
    assert page.value("request_running", model="m") == 0
    assert page.value("request_total", model="m") == 2


@pytest.mark.parametrize(("streaming", "label"), [(True, "true"), (False, "false")])
def test_times_and_sizes_are_observed(page, streaming, label):
    routing = page.route(streaming=streaming, size_bytes=100)
    page.clock.advance(0.25)
    routing.response_piece(b"x" * 0, last=False, now=page.clock.now)  # an empty piece is no first byte
    page.clock.advance(0.25)
    routing.response_piece(b"x" * 30, last=False, now=page.clock.now)
    page.clock.advance(1.5)
    routing.response_piece(b"x" * 12, last=False, now=page.clock.now)
    routing.complete(Cause.NATURAL)
    assert page.value("request_ttft_seconds_sum", model="m", streaming=label) == 0.5
    assert page.value("request_duration_seconds_sum", model="m") == 2.0
    assert page.value("request_size_bytes_sum", model="m") == 100
    assert page.value("response_size_bytes_sum", model="m") == 42


def test_pieces_and_tokens_of_a_stream_are_timed(page):
    page.stream(0.5, 0.25, 0.75, tokens=5)
    assert page.value("request_ttft_seconds_sum", model="m", streaming="true") == 0.5
    assert page.value("request_streaming_itl_seconds_sum", model="m") == 1.0  # 0.25 + 0.75 + 0, with the end
    assert page.value("request_streaming_itl_seconds_count", model="m") == 3
    assert page.value("request_streaming_tpot_seconds_sum", model="m") == 0.25  # 1 s over the 4 tokens after the first


def test_stream_of_one_token_has_no_time_per_token(page):
    page.stream(0.5, tokens=1)
    assert not page.value("request_streaming_tpot_seconds_count", model="m")


def test_time_of_a_response_that_is_cut_off_counts_up_to_its_first_byte(page):
    routing = page.route(streaming=True)
    routing.response_started(200, Headers, event_stream=True)
    page.clock.advance(0.5)
    routing.response_piece(b"data: {}\n\n", last=False, now=page.clock.now)
    page.clock.advance(60)
    routing.complete(Cause.CLIENT_DISCONNECT)
    assert page.value("request_ttft_seconds_sum", model="m", streaming="true") == 0.5
    for name in ("request_duration_seconds", "response_size_bytes", "request_ntpot_seconds"):
        assert not page.value(f"{name}_count", model="m")


@pytest.mark.parametrize(
    ("details", "count"), [(b"", 0), (b',"prompt_tokens_details":{"cached_tokens":0}', 1)], ids=["untold", "none"]
)
def test_cached_tokens_count_where_the_response_tells_them(page, details, count):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    body = b'{"usage":{"prompt_tokens":40,"completion_tokens":8' + details + b"}}"
    routing.response_piece(body, last=True, now=page.clock.now)
    routing.complete(Cause.NATURAL)
    assert page.value("request_input_tokens_count", model="m") == 1
    assert (page.value("request_cached_tokens_count", model="m") or 0) == count


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
    page.metrics.refresh_pool(page.store)  # which has no endpoint e0
    assert page.label_values("scheduler_attempts_total", "status") == {"failure"}


def test_100_000_invented_models_are_few_series(page):
    for number in range(100_000):
        page.route(f"invented-{number}").complete(Cause.NATURAL)
        page.metrics.scheduled(Request("r", RequestBody(model=f"invented-{number}")), 0.0, None)
    page.route("m").complete(Cause.NATURAL)
    assert len(page.label_values("scheduler_attempts_total", "target_model_name")) <= 256 + 64 + 1
    assert sum(len(family.samples) for family in page.metrics.registry.collect()) < 20_000


def test_response_without_a_byte_has_no_time_to_first_token(page):
    page.route().complete(Cause.NATURAL)
    assert not page.value("request_ttft_seconds_count", model="m", streaming="false")
    assert page.value("request_duration_seconds_count", model="m") == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_response_that_was_not_shown_has_its_duration_and_no_size(page, streaming):
    routing = page.route(streaming=streaming)
    routing.status = 200
    page.clock.advance(0.5)
    routing.response_unseen(page.clock.now(), event_stream=streaming)
    page.clock.advance(1.5)
    routing.complete(Cause.UNSEEN)
    assert page.value("request_duration_seconds_sum", model="m") == 2.0
    assert not page.value("response_size_bytes_count", model="m")
    times = page.value("request_ttft_seconds_count", model="m", streaming=str(streaming).lower())
    assert bool(times) is not streaming
    assert page.label_values("request_error_total", "error_code") == set()


@pytest.mark.parametrize(
    ("status", "cause", "code"),
    [
        (404, Cause.NATURAL, "404"),
        (404, Cause.UNSEEN, "404"),
        (503, Cause.NATURAL, "503"),
        (503, Cause.UNSEEN, "503"),
        (200, Cause.CLIENT_DISCONNECT, "client-disconnect"),
        (500, Cause.ERROR, "error"),
    ],
)
def test_failure_of_a_routed_request_has_its_code(page, status, cause, code):
    routing = page.route()
    routing.response_started(status, Headers, event_stream=False)
    routing.complete(cause)
    assert page.value("request_error_total", model="m", error_code=code) == 1
    assert page.label_values("request_error_total", "error_code") == {code}


def test_success_is_no_error(page):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    routing.complete(Cause.NATURAL)
    assert page.label_values("request_error_total", "error_code") == set()


def test_refused_request_counts_as_error_and_not_as_request(page):
    page.metrics.refused(Refusal(SaturatedError(), model="m"))
    page.metrics.refused(Refusal(NoEndpointsError(), model="m"))
    page.metrics.refused(Refusal(ModelMissingError()))
    refused = {"fairness_id": "default-flow"}
    assert page.value("request_total", model="m", **refused) is None
    assert page.value("request_error_total", model="m", error_code="ResourceExhausted", **refused) == 1
    assert page.value("request_error_total", model="m", error_code="ServiceUnavailable", **refused) == 1
    assert page.value("request_error_total", model="", error_code="BadRequest", **refused) == 1
    assert page.value("request_running", model="m", **refused) is None


def test_failures_of_plugins_and_pages_are_counted(page):
    page.metrics.scores_rejected("s", 3)
    page.metrics.scores_rejected("s", 2)
    page.metrics.poll_error("metrics-data-source")
    page.metrics.extract_error("metrics-data-source", "core-metrics-extractor")
    assert page.value("scheduler_scores_rejected_total", plugin_name="s") == 5
    assert page.value("datalayer_poll_errors_total", source_type="metrics-data-source") == 1
    assert (
        page.value(
            "datalayer_extract_errors_total",
            source_type="metrics-data-source",
            extractor_type="core-metrics-extractor",
        )
        == 1
    )


def test_pool_gauges_average_what_is_known(page):
    page.store.report(ONE, Report(columns={WAITING: 4, RUNNING: 10, KV_USAGE: 0.5}))
    page.store.report(TWO, Report(columns={WAITING: 1, RUNNING: nan, KV_USAGE: 0.25}))
    page.store.mark(TWO, REFUSES)
    page.metrics.refresh_pool(page.store)
    assert page.value("ready_endpoints", name="pool") == 2
    assert page.value("average_queue_size", name="pool") == 2.5  # of 4 and 1; `silent` said nothing
    assert page.value("average_running_requests", name="pool") == 10
    assert page.value("average_kv_cache_utilization", name="pool") == 0.375
    assert page.value("std_dev_queue_size", name="pool") == pytest.approx(4.5**0.5)  # 1.5 ** 2 + 1.5 ** 2, of 2 - 1
    assert page.value("std_dev_running_requests", name="pool") == 0  # of one alone
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="one") == 4
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="two") == 1
    assert page.value("per_endpoint_queue_size", name="pool", model_server_endpoint="silent") is None


def test_endpoint_is_up_while_it_can_be_reached(page):
    page.store.mark(TWO, REFUSES)
    page.metrics.refresh_pool(page.store)
    assert page.value("endpoint_up", name="pool", model_server_endpoint="one") == 1
    assert page.value("endpoint_up", name="pool", model_server_endpoint="two") == 0
    page.store.mark(TWO, ANSWERS)
    for endpoint in (ONE, SILENT):
        page.store.mark(endpoint, NO_ANSWER)
    page.metrics.refresh_pool(page.store)
    assert page.value("endpoint_up", name="pool", model_server_endpoint="one") == 0
    assert page.value("endpoint_up", name="pool", model_server_endpoint="two") == 1
    assert page.value("ready_endpoints", name="pool") == 1


def test_pool_of_silent_endpoints_has_none_that_is_ready(page):
    for endpoint in (ONE, TWO, SILENT):
        page.store.mark(endpoint, NO_ANSWER)
    page.metrics.refresh_pool(page.store)
    assert page.value("ready_endpoints", name="pool") == 0


def test_endpoint_that_left_has_no_series(page):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    routing.complete(Cause.NATURAL)
    e0 = routing.served
    page.store.replace([e0, TWO])
    page.metrics.refresh_pool(page.store)
    assert page.label_values("endpoint_up", "model_server_endpoint") == {"e0", "two"}
    assert page.label_values("endpoint_responses_total", "model_server_endpoint") == {"e0"}
    page.store.replace([TWO])
    page.metrics.refresh_pool(page.store)
    assert page.label_values("endpoint_up", "model_server_endpoint") == {"two"}
    assert page.label_values("endpoint_responses_total", "model_server_endpoint") == set()


def test_pool_without_reports_averages_zero(page):
    page.metrics.refresh_pool(page.store)
    assert page.value("ready_endpoints", name="pool") == 3
    assert page.value("average_queue_size", name="pool") == 0
    assert page.value("average_kv_cache_utilization", name="pool") == 0


def test_endpoint_that_left_has_no_gauge(page):
    page.store.report(ONE, Report(columns={WAITING: 4}))
    page.metrics.refresh_pool(page.store)
    page.store.replace([TWO])
    page.metrics.refresh_pool(page.store)
    assert page.value("ready_endpoints", name="pool") == 1
    assert page.label_values("per_endpoint_queue_size", "model_server_endpoint") == set()


def test_usage_is_observed_as_the_endpoint_counted_it(page):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    page.clock.advance(2.0)
    body = b'{"usage":{"prompt_tokens":40,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":32}}}'
    routing.response_piece(body, last=True, now=page.clock.now)
    routing.complete(Cause.NATURAL)
    assert page.value("request_input_tokens_sum", model="m") == 40
    assert page.value("request_cached_tokens_sum", model="m") == 32
    assert page.value("request_output_tokens_sum", model="m") == 8
    assert page.value("request_ntpot_seconds_sum", model="m") == 0.25  # 2 s over 8 tokens


@pytest.mark.parametrize(
    ("status", "cause", "outcome"),
    [
        (200, Cause.NATURAL, "2xx"),
        (404, Cause.NATURAL, "4xx"),
        (503, Cause.NATURAL, "5xx"),
        (200, Cause.CLIENT_DISCONNECT, "client-disconnect"),
    ],
)
def test_endings_are_counted_by_endpoint(page, status, cause, outcome):
    routing = page.route()
    routing.response_started(status, Headers, event_stream=False)
    routing.complete(cause)
    assert page.value("endpoint_responses_total", model_server_endpoint="e0", outcome=outcome) == 1


def test_rewritten_request_runs_under_the_model_that_was_asked_for(page):
    request = Request("r", RequestBody(model="asked"), target_model="tuned")
    page.metrics.routed(request, RESULT, scheduling_seconds=0.0)
    both = {"model_name": "asked", "target_model_name": "tuned", "fairness_id": "default-flow", "priority": "0"}
    assert page.value("request_total", **both) == 1
    assert page.value("request_running", **both) == 1


def test_priority_is_a_label_of_routed_and_of_refused_requests(page):
    request = Request("r", RequestBody(model="m"), priority=-1)
    page.metrics.routed(request, RESULT, scheduling_seconds=0.0)
    assert page.value("request_total", model="m", fairness_id="default-flow", priority="-1") == 1
    page.metrics.refused(Refusal(SheddableDroppedError(), model="m", request=request))
    labels = {"fairness_id": "default-flow", "priority": "-1", "error_code": SheddableDroppedError.code}
    assert page.value("request_error_total", model="m", **labels) == 1


def test_model_rewrites_are_counted_by_rule_and_models(page):
    request = Request("r", RequestBody(model="m"), target_model="m-v2")
    for _ in range(2):
        page.metrics.model_rewritten(request, Rewrite("canary", models=("m-v2",), weights=(1,)))
    labels = {"model_rewrite_name": "canary", "model_name": "m", "target_model": "m-v2"}
    assert page.value("model_rewrite_decisions_total", **labels) == 2


def test_models_that_clients_invent_for_a_generic_rule_are_few_series(page):
    named = Rewrite("named", models=("t",), weights=(1,))
    generic = Rewrite("generic", generic=True, models=("t",), weights=(1,))
    for number in range(1000):
        request = Request("r", RequestBody(model=f"invented-{number}" + "x" * 200), target_model="t")
        page.metrics.model_rewritten(request, generic)
    page.metrics.model_rewritten(Request("r", RequestBody(model="m"), target_model="t"), named)
    models = page.label_values("model_rewrite_decisions_total", "model_name")
    assert len(models) == 16 + 1 + 1  # the first ones, `other` for the rest, and that of the other rule
    assert {"m", "other"} < models
    assert max(map(len, models)) <= 128


def test_rules_beyond_256_are_counted_together(page):
    for number in range(300):
        rewrite = Rewrite(f"r{number}", models=("t",), weights=(1,))
        page.metrics.model_rewritten(Request("r", RequestBody(model="m"), target_model="t"), rewrite)
    assert len(page.label_values("model_rewrite_decisions_total", "model_rewrite_name")) == 257
    labels = dict.fromkeys(("model_rewrite_name", "model_name", "target_model"), "other")
    assert page.value("model_rewrite_decisions_total", **labels) == 300 - 256


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
    metrics.refresh_pool(store)
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
    metrics.refresh_pool(store)
    shown = metrics.registry.get_sample_value
    labels = {"name": "pool", "accelerator": "h100"}
    assert shown("llm_d_epp_accelerator_cost_per_hour", labels) == 10  # two endpoints of two devices
    assert shown("llm_d_epp_accelerator_busy_cost_per_hour", labels) == 5
    assert shown("llm_d_epp_accelerator_cost_per_hour", {**labels, "accelerator": "t4"}) is None  # without a price
    assert shown("llm_d_epp_endpoints_without_price", {"name": "pool"}) == 1


def test_age_of_the_snapshot_is_that_of_its_oldest_report(page):
    page.metrics.refresh_pool(page.store)
    assert page.value("snapshot_age_seconds", name="pool") == 0  # nobody has reported
    for endpoint in (ONE, TWO):
        page.store.report(endpoint, Report(columns={WAITING: 1}))
        page.clock.advance(2.0)
    page.metrics.refresh_pool(page.store)
    assert page.value("snapshot_age_seconds", name="pool") == 4


def test_ome_15_classes_of_a_cluster_beyond_256_are_counted_together():
    metrics = Metrics("pool", ManualClock())
    for number in range(300):
        pool = candidates(records={ACCELERATOR: [AcceleratorTag(classes=(f"c{number}",))]})
        leg = ProfileResult("p", pool, np.zeros(1), np.array([0]))
        metrics.routed(Request("r"), SchedulingResult(Destination(leg), {"p": leg}, {}), scheduling_seconds=0.0)
    labels = {"accelerator": "other", "profile": "p", "policy": ""}
    assert metrics.registry.get_sample_value("llm_d_epp_accelerator_selections_total", labels) == 300 - 256


def test_last_reload_counts_as_successful_until_one_fails(page):
    assert page.value("config_last_reload_successful") == 1
    page.metrics.config_refused("bad")
    assert page.value("config_last_reload_successful") == 0
    page.metrics.config_taken(2)
    assert page.value("config_last_reload_successful") == 1


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


def test_slow_plugin_is_counted_and_logged_once(page):
    with capture_logs() as logs:
        for _ in range(20):
            page.metrics.plugin_called(RandomPicker.role, PICKER, 0.02)
    assert page.value("plugin_slow_calls_total", **LABELS) == 20
    (entry,) = logs
    assert (entry["log_level"], entry["plugin"], entry["slow_calls"], entry["mean_ms"]) == ("warning", "mine", 5, 20.0)


def test_few_slow_calls_among_many_are_counted_and_not_logged(page):
    with capture_logs() as logs:
        for number in range(1000):
            page.metrics.plugin_called(RandomPicker.role, PICKER, 0.02 if number % 50 == 49 else 0.0001)
    assert page.value("plugin_slow_calls_total", **LABELS) == 20
    assert logs == []


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
