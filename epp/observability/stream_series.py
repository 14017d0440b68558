# SPDX-License-Identifier: Apache-2.0
"""Metrics of ext_proc streams: how many are open, for how long, and how they end."""

from epp.extproc.open_streams import StreamObserver
from epp.observability.buckets import STREAM_SECONDS
from epp.observability.families import Families


class StreamSeries(StreamObserver):
    """Shown only where they are asked for, as in llm-d-router."""

    def __init__(self, families: Families) -> None:
        self._open = families.gauges("extproc_streams_inflight", "ext_proc streams that are open.").labels()
        self._seconds = families.histograms(
            "extproc_stream_duration_seconds", "Time for which ext_proc streams were open.", STREAM_SECONDS
        ).labels()
        self._ended = families.counters(
            "extproc_streams_total",
            "ext_proc streams that have ended, by gRPC status: OK, Canceled by the gateway, or an error.",
            ("code",),
        )

    def opened(self) -> None:
        """Count a stream."""
        self._open.inc()

    def ended(self, code: str, seconds: float) -> None:
        """Count its end."""
        self._open.dec()
        self._seconds.observe(seconds)
        self._ended.labels(code).inc()
