# SPDX-License-Identifier: Apache-2.0
"""What the metrics page shows of requests after events fed by hand."""

import pytest

from epp.framework import Headers, ManualClock, Request, RequestBody
from epp.framework.errors import ModelMissingError
from epp.framework.refusals import NoEndpointsError, SaturatedError, SheddableDroppedError
from epp.routing.director import Cause, Refusal, Rewrite
from epp.telemetry.metrics import Metrics
from tests.support.exchanges import BODY, new_bench, request_body, request_headers, response_body, response_headers
from tests.support.metric_page import RESULT


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


def test_times_begin_with_the_headers_however_long_the_body_takes():
    pages: list[Metrics] = []

    def observe(clock: ManualClock) -> Metrics:
        pages.append(Metrics("pool", clock))
        return pages[0]

    bench = new_bench(observe=observe)
    session = bench.session()
    session.receive(request_headers())
    bench.clock.advance(2.0)
    session.receive(request_body(BODY))
    bench.clock.advance(0.5)
    session.receive(response_headers())
    session.receive(response_body(b"{}", end=True))
    labels = {"model_name": "m", "target_model_name": "m", "fairness_id": "default-flow", "priority": "0"}
    value = pages[0].registry.get_sample_value
    assert value("llm_d_epp_request_duration_seconds_sum", labels) == 2.5
    assert value("llm_d_epp_request_ttft_seconds_sum", labels | {"streaming": "false"}) == 2.5


def test_pieces_and_tokens_of_a_stream_are_timed(page):
    page.stream(0.5, tokens=1)
    assert not page.value("request_streaming_tpot_seconds_count", model="m")  # there is no token after the first
    page.stream(0.5, 0.25, 0.75, tokens=5)
    assert page.value("request_ttft_seconds_sum", model="m", streaming="true") == 0.5 + 0.5
    assert page.value("request_streaming_itl_seconds_sum", model="m") == 1.0  # 0.25 + 0.75 + 0, with the ends
    assert page.value("request_streaming_itl_seconds_count", model="m") == 1 + 3
    assert page.value("request_streaming_tpot_seconds_sum", model="m") == 0.25  # 1 s over the 4 tokens after the first


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


@pytest.mark.parametrize("cached", [None, 0, 32])
def test_usage_is_observed_as_the_response_tells_it(page, cached):
    routing = page.route()
    routing.response_started(200, Headers, event_stream=False)
    page.clock.advance(2.0)
    details = "" if cached is None else f',"prompt_tokens_details":{{"cached_tokens":{cached}}}'
    body = f'{{"usage":{{"prompt_tokens":40,"completion_tokens":8{details}}}}}'.encode()
    routing.response_piece(body, last=True, now=page.clock.now)
    routing.complete(Cause.NATURAL)
    assert page.value("request_input_tokens_sum", model="m") == 40
    assert page.value("request_output_tokens_sum", model="m") == 8
    assert page.value("request_ntpot_seconds_sum", model="m") == 0.25  # 2 s over 8 tokens
    assert (page.value("request_cached_tokens_count", model="m") or 0) == (cached is not None)
    assert (page.value("request_cached_tokens_sum", model="m") or 0) == (cached or 0)


def test_1_000_invented_models_are_few_series(page):
    for number in range(1_000):
        page.route(f"invented-{number}").complete(Cause.NATURAL)
        page.metrics.scheduled(Request("r", RequestBody(model=f"invented-{number}")), 0.0, None)
    page.route("m").complete(Cause.NATURAL)
    assert len(page.label_values("scheduler_attempts_total", "target_model_name")) <= 256 + 64 + 1
    assert sum(len(family.samples) for family in page.metrics.registry.collect()) < 20_000


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
    ("status", "cause", "code", "outcome"),
    [
        (200, Cause.NATURAL, None, "2xx"),
        (404, Cause.NATURAL, "ModelServerError", "4xx"),
        (404, Cause.UNSEEN, "ModelServerError", "4xx"),
        (503, Cause.NATURAL, "ModelServerError", "5xx"),
        (503, Cause.UNSEEN, "ModelServerError", "5xx"),
        (200, Cause.SERVER_LOST, "ModelServerError", "server-lost"),
        (500, Cause.ERROR, "Unknown", "error"),
        (200, Cause.CLIENT_DISCONNECT, None, "client-disconnect"),
        (200, Cause.EVICTED, None, "evicted"),
        (200, Cause.SUPERSEDED, None, "superseded"),
    ],
)
def test_end_of_a_routed_request_has_its_outcome_and_if_it_is_a_failure_its_code(page, status, cause, code, outcome):
    routing = page.route()
    routing.response_started(status, Headers, event_stream=False)
    routing.complete(cause)
    assert page.label_values("request_error_total", "error_code") == ({code} if code else set())
    assert page.value("endpoint_responses_total", model_server_endpoint="e0", outcome=outcome) == 1


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


def test_failures_of_polls_are_counted(page):
    source, extractor = {"source_type": "metrics-data-source"}, {"extractor_type": "core-metrics-extractor"}
    page.metrics.poll_error("metrics-data-source")
    page.metrics.extract_error("metrics-data-source", "core-metrics-extractor")
    assert page.value("datalayer_poll_errors_total", **source) == 1
    assert page.value("datalayer_extract_errors_total", **source, **extractor) == 1


def test_rewritten_request_runs_under_the_model_that_was_asked_for(page):
    request = Request("r", RequestBody(model="asked"), target_model="tuned")
    page.metrics.routed(request, RESULT, scheduling_seconds=0.0)
    both = {"model_name": "asked", "target_model_name": "tuned", "fairness_id": "default-flow", "priority": "0"}
    assert page.value("request_total", **both) == page.value("request_running", **both) == 1


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


def test_last_reload_counts_as_successful_until_one_fails(page):
    assert page.value("config_last_reload_successful") == 1
    page.metrics.config_refused("bad")
    assert page.value("config_last_reload_successful") == 0
    page.metrics.config_taken(2)
    assert page.value("config_last_reload_successful") == 1
