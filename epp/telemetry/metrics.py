# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics under the names of llm-d-router, updated by director, scheduler, collector and configuration."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from epp.admission.flow_control import FlowControl
from epp.admission.quotas import Quotas
from epp.config import ConfigObserver
from epp.framework import Request, SchedulingResult
from epp.framework.clock import Clock
from epp.framework.guard import SchedulingObserver
from epp.framework.snapshot import Snapshot
from epp.pool.collectors import CollectorObserver
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing
from epp.routing.outliers import Failure, Verdict
from epp.telemetry.endpoint_series import OutlierSeries, PollSeries
from epp.telemetry.families import PREFIX, Families
from epp.telemetry.flow_series import FlowSeries, RevocationSeries
from epp.telemetry.pool_series import PoolSeries, QuotaSeries, served_models
from epp.telemetry.process_series import ConfigSeries
from epp.telemetry.request_metrics import RequestMetrics
from epp.telemetry.request_series import MAX_COMBINATIONS
from epp.telemetry.scheduling_metrics import LoopLag, SchedulingMetrics


class Metrics(DirectorObserver, SchedulingObserver, CollectorObserver, ConfigObserver):
    """The metrics of one picker, in `registry`.

    Events that one group of them records reach it without a call in between: there are many for each request.
    """

    def __init__(
        self, pool_name: str, clock: Clock, *, max_combinations: int = MAX_COMBINATIONS, legacy: bool = True
    ) -> None:
        """Prepare; with `legacy`, metrics are shown under older names of llm-d-router too."""
        self.registry = CollectorRegistry()
        families = self.families = Families(self.registry, legacy=legacy)
        """Makes further metrics."""
        self._clock = clock
        self._requests = requests = RequestMetrics(families, clock, max_combinations=max_combinations)
        self.model_rewritten = requests.model_rewritten  # type: ignore[method-assign]  # without a call in between
        self.first_piece = requests.first_piece  # type: ignore[method-assign]
        self.request_processed = requests.processed  # type: ignore[method-assign]
        self._scheduling = scheduling = SchedulingMetrics(families)
        self.scheduled = scheduling.scheduled  # type: ignore[method-assign]
        self.plugin_called = scheduling.plugin_called  # type: ignore[method-assign]
        self.plugin_failed = scheduling.plugin_failed  # type: ignore[method-assign]
        self.scores_rejected = scheduling.scores_rejected  # type: ignore[method-assign]
        self.scores_clamped = scheduling.scores_clamped  # type: ignore[method-assign]
        self._endpoint_responses = families.counters(
            "endpoint_responses_total",
            "Ended requests by endpoint and outcome: a class of status codes, or the reason of an abort.",
            ("model_server_endpoint", "outcome"),
        )
        self._expired = families.counters(
            "reservations_expired_total",
            "Requests that count as load of their endpoint no more, as no response has begun for --reservation-ttl.",
        ).labels()
        self._polls = polls = PollSeries(families)
        self.poll_error = polls.failed  # type: ignore[method-assign]
        self.extract_error = polls.unreadable  # type: ignore[method-assign]
        self.page_limited = polls.limited  # type: ignore[method-assign]
        self.poll_interval = polls.interval  # type: ignore[method-assign]
        self._config = ConfigSeries(families)
        self.config_taken = self._config.taken  # type: ignore[method-assign]
        self.loop_lag = LoopLag(families, scheduling.slowest_call)
        self._outliers = OutlierSeries(self.registry)
        revocations = RevocationSeries(pool_name, families)
        self.revoked = revocations.decided  # type: ignore[method-assign]
        self.revocation_confirmed = revocations.confirmed  # type: ignore[method-assign]
        self.revocations_given_up = revocations.expired  # type: ignore[method-assign]
        self._pool = PoolSeries(pool_name, families)
        self._flow = FlowSeries(pool_name, clock, requests.series, families)
        self.queued = self._flow.queued  # type: ignore[method-assign]
        self.left = self._flow.left  # type: ignore[method-assign]
        self.enqueued = self._flow.enqueued  # type: ignore[method-assign]
        self.cycled = self._flow.cycled  # type: ignore[method-assign]
        self._quotas = QuotaSeries(clock, self.registry)
        self.alert = self._quotas.alert  # type: ignore[method-assign]

    def endpoint_suspected(self, verdict: Verdict) -> None:
        """Count the state of an endpoint's port after a failed connection."""
        self._outliers.suspected(verdict)

    def endpoint_ejected(self, cause: Failure) -> None:
        """Count an ejection."""
        self._outliers.ejected(cause)

    def ejection_spared(self, cause: Failure) -> None:
        """Count an endpoint that would have been ejected."""
        self._outliers.spared(cause)

    def endpoints_ejected(self, count: int) -> None:
        """Set how many are ejected."""
        self._outliers.now(count)

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002  see `scheduled`
        """Count a routed request."""
        series = self._requests.routed(request)
        self._flow.routed(request, series)
        self._scheduling.routed(request, result, series)

    def refused(self, refusal: Refusal) -> None:
        """Count a request that is not routed."""
        self._requests.refused(refusal)
        self._flow.refused(refusal.request)
        self._quotas.refused(refusal.error)

    def expired(self, routing: Routing) -> None:  # noqa: ARG002  their number says enough
        """Count a routed request that no endpoint has answered for too long."""
        self._expired.inc()

    def completed(self, routing: Routing, cause: Cause) -> None:
        """Count the end of a routed request."""
        outcome = self._requests.completed(routing, cause)
        if outcome:
            self._endpoint_responses.labels(routing.served.name, outcome).inc()

    def config_refused(self, reason: str) -> None:  # noqa: ARG002  it is logged
        """Record that the configuration file was rejected."""
        self._config.refused()

    def task_failed(self, kind: str, error: Exception) -> None:  # noqa: ARG002  the supervisor logs it
        """Count an error of a background task."""
        self._config.task_failed(kind)

    def count_lost_log_lines(self, lost: Callable[[], int]) -> None:
        """Add the number of lost log lines to the metrics."""
        self.registry.register(_LostLogLines(lost))

    def count_protocol_errors(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Add the errors of gateways, by kind, to the metrics."""
        self.registry.register(_ProtocolErrors(counts))

    def refresh_pool(self, snapshot: Snapshot, flow: FlowControl | None = None) -> None:
        """Update the gauges of the pool and of its queues, and the models that it serves."""
        self._requests.series.reported(served_models(snapshot))
        self._pool.show(snapshot, self._clock.now())
        self._flow.show(snapshot, flow, self._clock.now())
        names = self._pool.names
        for name, outcome in self._endpoint_responses.values():
            if name not in names:
                self._endpoint_responses.remove(name, outcome)
        self._scheduling.keep(self._pool.ids)

    def refresh_quotas(self, quotas: Quotas, named: Iterable[str] = ()) -> None:
        """Update the gauges of quotas, those of the tenants of the configuration before others."""
        self._quotas.show(quotas, named)

    @property
    def picks(self) -> Mapping[str, int]:
        """How often each endpoint of the pool was picked, by `namespace/name`; for the event loop."""
        return self._scheduling.picks

    @property
    def quota_alerts(self) -> Sequence[Mapping[str, object]]:
        """Limits of quotas that are almost used up; may be read in any thread."""
        return self._quotas.alerts


class _LostLogLines(Collector):
    def __init__(self, lost: Callable[[], int]) -> None:
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(f"{PREFIX}log_lines_lost", "Log lines that could not be written.", self._lost())


class _ProtocolErrors(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            f"{PREFIX}extproc_protocol_errors",
            "Streams that ended as the gateway broke the protocol, by kind.",
            labels=("kind",),
        )
        for kind, count in self._counts().items():
            family.add_metric((kind,), count)
        yield family
