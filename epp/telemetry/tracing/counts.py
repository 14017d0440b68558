# SPDX-License-Identifier: Apache-2.0
"""How many spans were sent, and whether they are: for metrics, `/healthz` and log lines."""

from collections.abc import Iterator

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_REMEDY = "see that the address in OTEL_EXPORTER_OTLP_ENDPOINT is that of a collector for OTLP, and that it is up"

_log = structlog.get_logger()


class SpanCounts(Collector):
    """Written by the event loop and by the thread that sends spans; read by any thread."""

    def __init__(self, exporters: tuple[str, ...]) -> None:
        self._exporters = exporters
        self.exported = 0
        self.failed = 0
        """Spans that could not be sent."""
        self.dropped = 0
        """Spans that were too many to wait; a request whose spans were not made counts as one."""
        self._problem = ""

    def sent(self, count: int, problem: str) -> None:
        """Record that spans were sent, or why they were not; log it where it is news."""
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
        """A part of `/healthz`."""
        return {
            "exporters": list(self._exporters),
            "exported_spans": self.exported,
            "failed_spans": self.failed,
            "dropped_spans": self.dropped,
            "failing": self._problem or None,
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        family = CounterMetricFamily(
            "llm_d_epp_trace_spans", "Spans of traces, by what became of them.", labels=("outcome",)
        )
        family.add_metric(("exported",), self.exported)
        family.add_metric(("failed",), self.failed)
        family.add_metric(("dropped",), self.dropped)
        yield family
