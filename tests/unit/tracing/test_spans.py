# SPDX-License-Identifier: Apache-2.0
"""Spans of requests that a real director routes, waits with or refuses."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import StatusCode

from epp.admission.flow_control.settings import Outcome
from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, Request, RequestBody, RequestError, SystemClock
from epp.framework.plugin import SchedulingObserver
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Routing, Runtime
from epp.routing.director.observers import TRACE
from epp.telemetry.tracing import TracingSettings
from epp.telemetry.tracing.exporting import ExportThread, SpanCounts
from epp.telemetry.tracing.spans import SpanMaker
from epp.telemetry.tracing.trace import GatewayTracer, Trace, TracedScheduling, Unsampled

HEADERS = Headers([(":path", "/v1/completions"), (":method", "POST"), ("x-request-id", "r1")])
BODY = b'{"model": "m", "prompt": "%s"}' % (b"word " * 500)
POOL = [
    Endpoint("p", "10.0.0.1", 8000, labels={"llm-d.ai/role": "prefill"}),
    Endpoint("d", "10.0.0.2", 8000, labels={"llm-d.ai/role": "decode"}),
]
SETTINGS = TracingSettings(exporters=(), service_name=None, share=None, delay_seconds=0.01)
DISAGGREGATED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: openai-parser}
- {type: prefill-filter}
- {type: decode-filter}
- {type: queue-scorer}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}]}
dataLayer: {injectDefaults: false}
"""
NOBODY = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: openai-parser}
- {type: label-selector-filter, parameters: {matchLabels: {llm-d.ai/role: nobody}}}
- {type: queue-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]}]
dataLayer: {injectDefaults: false}
"""


@dataclass
class Traced:
    """A director whose requests are traced, and the spans that have ended."""

    tracer: GatewayTracer
    director: Director
    maker: SpanMaker
    thread: ExportThread
    traces: list[Trace]

    @classmethod
    def by(cls, config: str, *exporters: SpanExporter, sampler: Sampler = ALWAYS_ON) -> "Traced":
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        thread = ExportThread(exporters, SETTINGS, SpanCounts(()))
        provider.add_span_processor(thread)
        spans, traces = provider.get_tracer("test"), list[Trace]()
        tracer = GatewayTracer(spans, get_global_textmap(), traces.append)
        clock = SystemClock()
        store = Datastore(clock)
        store.replace(POOL)
        observer = TracedScheduling(SchedulingObserver(), tracer)
        pipeline = assemble(load_text(config), Builder(Registry(), clock), observer=observer).pipeline
        return cls(tracer, Director(Runtime(store, clock, tracer), pipeline), SpanMaker(spans), thread, traces)

    def request(self, body: bytes = BODY) -> list[ReadableSpan]:
        """Route a request to the end of its response, or until it is refused; return its spans."""
        trace = self.tracer.begin(HEADERS, {})
        trace.complete()
        try:
            routing = self.director.route(HEADERS, body, None, trace=trace)
        except RequestError as error:
            trace.refused(error)
            trace.ended(None, Cause.ERROR)
        else:
            assert isinstance(routing, Routing)
            routing.response_started(200, Headers, event_stream=False)
            routing.complete(Cause.NATURAL)
            trace.ended(routing, Cause.NATURAL)
            trace.ended(routing, Cause.CLIENT_DISCONNECT)  # as a stream that closes after its end
        for each in self.traces:
            self.maker.make(each)
        return list(self.thread.spans)


def begun(traced: Traced) -> Trace:
    trace = traced.tracer.begin(HEADERS, {})
    assert isinstance(trace, Trace)
    return trace


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def test_both_profiles_of_a_disaggregated_request_have_their_filters_scorers_and_picks():
    spans = Traced.by(DISAGGREGATED).request()
    runs = named(spans, "run_scheduler_profile")
    profiles = {run.context.span_id: run.attributes["llm_d.epp.scheduling.profile.name"] for run in runs}
    assert sorted(profiles.values()) == ["decode", "prefill"]
    for name in ("filter_endpoints", "llm_d.epp.scoring", "pick_endpoints"):
        assert sorted(profiles[span.parent.span_id] for span in named(spans, name)) == ["decode", "prefill"]
    for span in named(spans, "filter_endpoints"):
        counts = [span.attributes[f"llm_d.epp.filter.{kind}_endpoints"] for kind in ("candidate", "filtered")]
        assert counts == [2, 1]
        assert [event.attributes["after"] for event in span.events] == [1]
    tops = {profiles[span.parent.span_id]: span for span in named(spans, "pick_endpoints")}
    assert tops["prefill"].attributes["llm_d.epp.picker.top_endpoints"] == ("p",)
    assert tops["decode"].attributes["llm_d.epp.picker.top_endpoints"] == ("d",)
    (prepared,) = named(spans, "prepare_disaggregation")
    assert prepared.attributes["llm_d.epp.pd.disaggregation_used"] is True
    assert prepared.attributes["llm_d.epp.pd.prefill_pod_address"] == "10.0.0.1"
    assert named(spans, "pick_disagg_profile")


def test_filter_that_drops_all_is_in_the_trace_of_the_refused_request():
    spans = Traced.by(NOBODY).request()
    (run,) = named(spans, "run_scheduler_profile")
    (filters,) = named(spans, "filter_endpoints")
    assert run.status.status_code is StatusCode.ERROR
    assert {event.attributes["plugin"] for event in filters.events} == {"label-selector-filter"}  # and asked for causes
    assert not named(spans, "pick_endpoints")
    (request,) = named(spans, "gateway.request")
    assert request.status.status_code is StatusCode.ERROR
    assert request.attributes["llm_d.epp.request.outcome"] == "refused"


def test_calls_of_a_request_that_is_not_recorded_are_not_noted():
    traced = Traced.by(DISAGGREGATED, sampler=ALWAYS_OFF)
    assert isinstance(traced.tracer.begin(HEADERS, {}), Unsampled)
    assert traced.request() == []
    assert traced.traces == []


def test_calls_after_a_recorded_request_are_not_its_own():
    traced = Traced.by(DISAGGREGATED)
    traced.request()
    (first,) = traced.traces
    calls = len(first.calls)
    traced.director.route(HEADERS, BODY, None)  # with no trace
    assert len(first.calls) == calls


def test_time_in_a_queue_is_a_part_of_the_orchestration_and_ends_with_it_where_the_client_leaves():
    traced = Traced.by(DISAGGREGATED)
    trace = begun(traced)
    trace.complete()
    request = Request("r1", RequestBody(model="m"))
    request.put(TRACE, trace)
    traced.tracer.queued(request)
    traced.tracer.left(request, Outcome.EVICTED_CONTEXT_CANCELLED, 0.0)
    trace.ended(None, Cause.CLIENT_DISCONNECT)
    traced.maker.make(trace)
    waited, orchestration, request = traced.thread.spans
    assert (waited.name, waited.parent) == ("llm_d.epp.flow_control", orchestration.context)
    assert waited.attributes == {"llm_d.epp.flow_control.outcome": "EvictedContextCancelled"}
    assert waited.end_time <= orchestration.end_time == request.end_time
    assert request.attributes["llm_d.epp.request.outcome"] == "client-disconnect"
    assert request.status.status_code is StatusCode.UNSET


class Slow(SpanExporter):
    """Takes spans when it is let."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.sent: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.gate.wait(20)
        self.sent += spans
        return SpanExportResult.SUCCESS


THEIRS, OURS = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, THEIRS),
        ({"traceparent": f"00-{OURS}-00f067aa0ba902b7-01", "tracestate": ""}, OURS),
        ({"traceparent": "00-no-trace"}, THEIRS),
        ({"baggage": "a=b"}, THEIRS),
    ],
)
def test_trace_of_the_gateways_call_goes_before_that_of_the_clients_headers(metadata, expected):
    headers = Headers([*HEADERS.items(), ("traceparent", f"00-{THEIRS}-b7ad6b7169203331-01")])
    assert Traced.by(DISAGGREGATED).tracer.begin(headers, metadata).ids["trace_id"] == expected


def test_traces_that_end_while_others_are_sent_are_sent_at_the_stop():
    slow = Slow()
    traced = Traced.by(DISAGGREGATED, slow)
    thread = traced.thread
    thread.start(traced.maker)
    for _ in range(2):
        trace = begun(traced)
        trace.ended(None, Cause.CLIENT_DISCONNECT)
        thread.add(trace)
        assert slow.asked.wait(20)
    threading.Timer(0.05, slow.gate.set).start()
    thread.stop(20)
    assert len(slow.sent) == 2


def test_traces_beyond_the_limit_are_dropped_and_counted():
    counts = SpanCounts(())
    thread = ExportThread((), SETTINGS, counts)  # which has not started, so that nothing is taken from it
    trace = begun(Traced.by(DISAGGREGATED))
    for _ in range(600):
        thread.add(trace)
    assert counts.dropped == 600 - 512


def test_spans_beyond_the_limit_are_dropped_and_counted():
    counts = SpanCounts(())
    thread = ExportThread((), replace(SETTINGS, most_queued=3), counts)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(thread)
    for _ in range(5):
        provider.get_tracer("test").start_span("one").end()
    assert (len(thread.spans), counts.dropped) == (3, 2)
