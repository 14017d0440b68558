# SPDX-License-Identifier: Apache-2.0
"""Export of spans with the OpenTelemetry SDK: a thread that creates and sends spans, and the tracing of a picker."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from threading import Event, Thread
from typing import Any

import structlog
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from prometheus_client.registry import CollectorRegistry

from epp.framework.plugin import SchedulingObserver
from epp.telemetry.families import Computed, Row, rows_of
from epp.telemetry.tracing import TracingError, TracingSettings
from epp.telemetry.tracing.spans import SpanMaker
from epp.telemetry.tracing.trace import GatewayTracer, Trace, TracedScheduling

_MOST_TRACES = 512
"""Most traces that wait for their spans; each may hold the scores of all endpoints."""
_WAKE_AT = 64
_PAUSE = 2.0
"""Pause after the work on each trace, as a multiple of that work: the event loop runs meanwhile."""

_log = structlog.get_logger()


_REMEDY = "check that OTEL_EXPORTER_OTLP_ENDPOINT is the address of an OTLP collector, and that the collector runs"
_SCOPE = "llm-d-router"
"""Instrumentation scope of llm-d-router, by which backends group spans."""
_GROUP = "opentelemetry_traces_exporter"
_PACKAGES = {
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
}
_LAST_SECONDS = 5.0
_MOST_TEXTS = 100


class SpanCounts:
    """Counts of spans, written by the event loop and by the thread that sends spans, read by any thread."""

    def __init__(self, exporters: tuple[str, ...]) -> None:
        self._exporters = exporters
        self.exported = 0
        self.failed = 0
        """Spans that could not be sent."""
        self.dropped = 0
        """Spans dropped from full queues; a request whose spans were not created counts as one."""
        self._problem = ""

    def sent(self, count: int, problem: str) -> None:
        """Record sent spans or, with a problem, failed ones; log the first failure and the recovery."""
        if not problem:
            self.exported += count
            if self._problem:
                _log.info("traces are exported again", failed=self.failed)
        else:
            self.failed += count
            if not self._problem:
                _log.warning("traces cannot be exported", reason=problem, spans=count, remedy=_REMEDY)
        self._problem = problem

    @property
    def as_fields(self) -> dict[str, object]:
        """Fields for `/healthz`."""
        return {
            "exporters": list(self._exporters),
            "exported_spans": self.exported,
            "failed_spans": self.failed,
            "dropped_spans": self.dropped,
            "failing": self._problem or None,
        }

    def show(self, registry: CollectorRegistry) -> None:

        def rows() -> Sequence[Row]:
            return rows_of({"exported": self.exported, "failed": self.failed, "dropped": self.dropped})

        Computed(registry, ("outcome",), {"llm_d_epp_trace_spans_total": "Spans of traces, by outcome."}, rows)


class ExportThread(SpanProcessor):
    """Creates the spans of ended traces, and sends them in batches."""

    def __init__(self, exporters: Sequence[SpanExporter], settings: TracingSettings, counts: SpanCounts) -> None:
        self._exporters = exporters
        self._settings = settings
        self._counts = counts
        self._traces: deque[Trace] = deque()
        self.spans: deque[ReadableSpan] = deque()
        """Ended spans that wait to be sent."""
        self._wake = Event()
        self._stopping = False
        self._thread: Thread | None = None

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it if the queue is full; called in the thread."""
        if len(self.spans) < self._settings.most_queued:
            self.spans.append(span)
        else:
            self._counts.dropped += 1

    def start(self, maker: SpanMaker) -> None:
        self._thread = Thread(target=self._run, args=(maker,), name="traces", daemon=True)
        self._thread.start()

    def add(self, trace: Trace) -> None:
        """Queue a trace whose exchange has ended, without blocking; drop and count it if the queue is full."""
        if len(self._traces) >= _MOST_TRACES:
            self._counts.dropped += 1
            return
        self._traces.append(trace)
        if len(self._traces) == _WAKE_AT:
            self._wake.set()

    def stop(self, seconds: float) -> None:
        """Send the queued spans; give up after this time."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, maker: SpanMaker) -> None:
        due = time.monotonic() + self._settings.delay_seconds
        is_last = False
        while not is_last:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            is_last = self._stopping
            self._make_spans(maker)
            is_due = time.monotonic() >= due or is_last
            while len(self.spans) >= (1 if is_due else self._settings.batch):
                self._send()
            if is_due:
                due = time.monotonic() + self._settings.delay_seconds
        for exporter in self._exporters:
            exporter.shutdown()

    def _make_spans(self, maker: SpanMaker) -> None:
        while self._traces:
            trace = self._traces.popleft()
            began = time.perf_counter()
            try:
                maker.make(trace)
            except Exception:  # noqa: BLE001  only this trace is lost
                self._counts.dropped += 1
                _log.exception("a trace cannot be exported")
            if not self._stopping:
                time.sleep(_PAUSE * (time.perf_counter() - began))

    def _send(self) -> None:
        spans = [self.spans.popleft() for _ in range(min(self._settings.batch, len(self.spans)))]
        for exporter in self._exporters:
            problem = ""
            try:
                if exporter.export(spans) is not SpanExportResult.SUCCESS:
                    problem = "the receiver cannot be reached, or refuses them"
            except Exception as error:  # noqa: BLE001  any package may provide the exporter
                problem = f"{type(error).__name__}: {error}"
            self._counts.sent(len(spans), problem)


class Tracing:
    """Traces requests until `close`; raises TracingError."""

    def __init__(self, settings: TracingSettings) -> None:
        self.counts = SpanCounts(settings.exporters)
        _forward_logs()
        try:
            exporters = [_exporter(name) for name in settings.exporters]
            named = {} if settings.service_name is None else {"service.name": settings.service_name}
            resource = Resource.create({**named, "service.version": version("inference-epp")})
            sampler = None if settings.share is None else ParentBasedTraceIdRatio(settings.share)
            provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
            propagator = get_global_textmap()
        except TracingError:
            raise
        except Exception as error:  # packages raise many types for invalid variables
            raise TracingError(f"{type(error).__name__}: {error}; check the variables OTEL_*") from error
        self._thread = ExportThread(exporters, settings, self.counts)
        provider.add_span_processor(self._thread)
        tracer = provider.get_tracer(_SCOPE, version("inference-epp"))
        self.tracer = GatewayTracer(tracer, propagator, self._thread.add)
        self._thread.start(SpanMaker(tracer))

    def beside(self, observer: SchedulingObserver) -> SchedulingObserver:
        """Return an observer of the scheduler that calls this observer and the tracer."""
        return TracedScheduling(observer, self.tracer)

    def close(self) -> None:
        """Send the queued spans; blocks for a few seconds at most."""
        self._thread.stop(_LAST_SECONDS)


def _exporter(name: str) -> SpanExporter:
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        known = sorted({"otlp", "none", *(point.name for point in entry_points(group=_GROUP))})
        package = _PACKAGES.get(name)
        remedy = f"install {package}" if package else f"write one of {', '.join(known)}"
        raise TracingError(f"no package provides the exporter {name!r:.60} of OTEL_TRACES_EXPORTER: {remedy}")
    made: Any = found.load()()
    if not isinstance(made, SpanExporter):
        raise TracingError(f"the exporter {name!r:.60} of OTEL_TRACES_EXPORTER is not an exporter of spans")
    return made


class _ForwardingHandler(logging.Handler):
    """Forwards the log messages of the OpenTelemetry packages, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning, except for problems with the receiver, which `SpanCounts` logs."""
        text = str(record.msg)
        if record.name.startswith("opentelemetry.exporter") or text in self._texts or len(self._texts) >= _MOST_TEXTS:
            return
        self._texts.add(text)
        _log.warning("OpenTelemetry", detail=record.getMessage())


def _forward_logs() -> None:
    log = logging.getLogger("opentelemetry")
    log.propagate = False
    if not any(isinstance(handler, _ForwardingHandler) for handler in log.handlers):
        log.addHandler(_ForwardingHandler())
