# SPDX-License-Identifier: Apache-2.0
"""Tracing of a process: exporters, sampler and resource by the variables of OpenTelemetry."""

import logging
from importlib.metadata import entry_points, version
from typing import Any

import structlog
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from epp.framework.plugin import SchedulingObserver
from epp.telemetry.tracing.environment import TracingError, TracingSettings
from epp.telemetry.tracing.exporting import ExportThread, SpanCounts
from epp.telemetry.tracing.spans import SpanMaker
from epp.telemetry.tracing.tracer import GatewayTracer, TracedScheduling

_SCOPE = "llm-d-router"
"""The name of llm-d-router's own instrumentation, by which backends group spans."""
_GROUP = "opentelemetry_traces_exporter"
_PACKAGES = {
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
}
_LAST_SECONDS = 5.0
_MOST_TEXTS = 100

_log = structlog.get_logger()


class Tracing:
    """Traces requests until `close`; raises TracingError."""

    def __init__(self, settings: TracingSettings) -> None:
        """Make the exporters, and start the thread that sends spans."""
        self.exporters = settings.exporters
        self.counts = SpanCounts(settings.exporters)
        _take_over_log()
        try:
            exporters = [_exporter(name) for name in settings.exporters]
            named = {} if settings.service_name is None else {"service.name": settings.service_name}
            resource = Resource.create({**named, "service.version": version("inference-epp")})
            sampler = None if settings.share is None else ParentBasedTraceIdRatio(settings.share)
            provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
            propagator = get_global_textmap()
        except TracingError:
            raise
        except Exception as error:  # whatever packages raise over values in the environment
            raise TracingError(f"{type(error).__name__}: {error}; see the variables OTEL_*") from error
        self._thread = ExportThread(exporters, settings, self.counts)
        provider.add_span_processor(self._thread)
        tracer = provider.get_tracer(_SCOPE, version("inference-epp"))
        self.tracer = GatewayTracer(tracer, propagator, self._thread.add)
        self._thread.start(SpanMaker(tracer))

    def beside(self, observer: SchedulingObserver) -> SchedulingObserver:
        """Return an observer of the scheduler that calls this observer and the tracer."""
        return TracedScheduling(observer, self.tracer)

    def close(self) -> None:
        """Send what there is, for a few seconds at most; blocks."""
        self._thread.stop(_LAST_SECONDS)


def _exporter(name: str) -> SpanExporter:
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        known = sorted({"otlp", "none", *(point.name for point in entry_points(group=_GROUP))})
        package = _PACKAGES.get(name)
        remedy = f"install {package}" if package else f"write one of {', '.join(known)}"
        raise TracingError(f"no package has the exporter {name!r:.60} of OTEL_TRACES_EXPORTER: {remedy}")
    made: Any = found.load()()
    if not isinstance(made, SpanExporter):
        raise TracingError(f"the exporter {name!r:.60} of OTEL_TRACES_EXPORTER makes no exporter of spans")
    return made


class _ToOurLog(logging.Handler):
    """Logs the messages of the OpenTelemetry packages, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning. `SpanCounts` reports problems with the receiver, once."""
        text = str(record.msg)
        if record.name.startswith("opentelemetry.exporter") or text in self._texts or len(self._texts) >= _MOST_TEXTS:
            return
        self._texts.add(text)
        _log.warning("OpenTelemetry", detail=record.getMessage())


def _take_over_log() -> None:
    log = logging.getLogger("opentelemetry")
    log.propagate = False
    if not any(isinstance(handler, _ToOurLog) for handler in log.handlers):
        log.addHandler(_ToOurLog())
