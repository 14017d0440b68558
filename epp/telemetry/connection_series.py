# SPDX-License-Identifier: Apache-2.0
"""Connections of the metrics port and the admin port, as metrics."""

from prometheus_client.registry import CollectorRegistry

from epp.extproc.open_streams import StreamObserver
from epp.runtime.http_connections import ConnectionCounts, Cut
from epp.telemetry.families import STREAM_SECONDS, Counters, Families, Gauges


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


class ConnectionSeries:
    """Counters and a gauge with the port as a label; each port is counted by one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._accepted = Counters(
            "llm_d_epp_page_connections_total",
            "Connections to the metrics port and the admin port.",
            ("port",),
            registry,
        )
        self._open = Gauges("llm_d_epp_page_connections_open", "Those that are open.", ("port",), registry)
        self._cut = Counters(
            "llm_d_epp_page_connections_cut_total",
            "Connections to the metrics port and the admin port that were closed or refused, by cause: made_room for "
            "others, no_descriptor, request_timeout, response_timeout, bad_request, unauthorized, busy, tls.",
            ("port", "cause"),
            registry,
        )

    def of(self, port: str) -> ConnectionCounts:
        """Return the counts of a port."""
        return _PortCounts(port, self._accepted, self._open, self._cut)


class _PortCounts(ConnectionCounts):
    def __init__(self, port: str, accepted: Counters, opened: Gauges, cut: Counters) -> None:
        self._port = port
        self._accepted = accepted.labels(port)
        self._open = opened.labels(port)
        self._cut = cut

    def opened(self) -> None:
        self._accepted.inc()
        self._open.inc()

    def closed(self) -> None:
        self._open.dec()

    def cut(self, cause: Cut) -> None:
        self._cut.labels(self._port, cause).inc()
