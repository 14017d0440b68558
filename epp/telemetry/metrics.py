# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics under the names of llm-d-router, updated by director, scheduler, collector and configuration."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.registry import CollectorRegistry

from epp.admission.flow_control.control import FlowControl
from epp.admission.quotas import Quotas
from epp.config import ConfigObserver
from epp.framework import Request, SchedulingResult
from epp.framework.clock import Clock
from epp.framework.plugin import SchedulingObserver
from epp.framework.snapshot import Snapshot
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing
from epp.telemetry.families import Families
from epp.telemetry.flow_series import FlowSeries, RevocationSeries
from epp.telemetry.plugin_metrics import SchedulingMetrics
from epp.telemetry.pool_series import PoolSeries, QuotaSeries, ids_of, served_models, slots_by_name
from epp.telemetry.request_metrics import RequestMetrics
from epp.telemetry.request_series import MAX_COMBINATIONS

_POLLS, _OLDER_POLLS = "datalayer_", "llm_d_inference_scheduler_"
_OUTLIERS = "outlier_detection_"


class Metrics(DirectorObserver, SchedulingObserver, CollectorObserver, ConfigObserver):
    """The metrics of one picker, in `registry`.

    An event that one metric or one group of metrics records is its method itself, without a call in between: there are
    many events for each request.
    """

    def __init__(
        self,
        pool_name: str,
        clock: Clock,
        *,
        max_combinations: int = MAX_COMBINATIONS,
        legacy: bool = True,
        stale_seconds: float = 2.0,
    ) -> None:
        """Prepare; with `legacy`, metrics are shown under older names of llm-d-router too.

        Load that is older than `stale_seconds` does not count in the averages of the pool.
        """
        self.registry = CollectorRegistry()
        families = self.families = Families(self.registry, legacy=legacy)
        """Makes further metrics."""
        self._clock = clock
        self._requests = RequestMetrics(families, clock, max_combinations=max_combinations)
        self._scheduling = SchedulingMetrics(families)
        self.slowest_call = self._scheduling.slowest_call
        self._pool = PoolSeries(pool_name, families, stale_seconds)
        self._flow = FlowSeries(pool_name, clock, self._requests.series, families)
        self._quotas = QuotaSeries(clock, families)
        revocations = RevocationSeries(pool_name, families)
        for group, *events in (
            (self._requests, "model_rewritten", "first_piece", "request_processed"),
            (self._scheduling, "scheduled", "plugin_called", "plugin_failed", "scores_rejected", "scores_clamped"),
            (self._flow, "queued", "left", "enqueued", "cycled"),
            (revocations, "revoked", "revocation_confirmed", "revocations_given_up"),
            (self._quotas, "alert"),
        ):
            for event in events:
                setattr(self, event, getattr(group, event))
        for event, record in _recorders(families).items():
            setattr(self, event, record)
        self._endpoint_responses = families.counters(
            "endpoint_responses_total",
            "Ended requests by endpoint and outcome: a class of status codes, or the reason of an abort.",
            ("model_server_endpoint", "outcome"),
        )
        self._expired = families.counters(
            "reservations_expired_total",
            "Requests that count as load of their endpoint no more, as no response has begun for --reservation-ttl.",
        )
        self._task_failures = families.counters(
            "background_task_failures_total", "Restarts of background tasks after an error.", ("task",)
        )
        self._generation = families.gauges(
            "config_generation", "Generation of the configuration in effect, from 1."
        ).labels()
        self._generation.set(1)
        self._config_is_good = families.gauges(
            "config_last_reload_successful", "1 if the current configuration file is in effect, 0 if it was rejected."
        ).labels()
        self._config_is_good.set(1)
        self._reloads = families.counters(
            "config_reloads_total", "New versions of the configuration file, by result.", ("result",)
        )

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002  see `scheduled`
        series = self._requests.routed(request)
        self._flow.routed(request, series)
        self._scheduling.routed(request, result, series)

    def refused(self, refusal: Refusal) -> None:
        self._requests.refused(refusal)
        self._flow.refused(refusal.request)
        self._quotas.refused(refusal.error)

    def expired(self, routing: Routing) -> None:  # noqa: ARG002  their number says enough
        """Count a routed request that no endpoint has answered for too long."""
        self._expired.count()

    def completed(self, routing: Routing, cause: Cause) -> None:
        outcome = self._requests.completed(routing, cause)
        if outcome:
            self._endpoint_responses.count(routing.served.name, outcome)

    def config_taken(self, generation: int) -> None:
        """Record that the configuration file is in effect."""
        self._config_is_good.set(1)
        if generation != self._generation.value:
            self._reloads.count("taken")
            self._generation.set(generation)

    def config_refused(self, reason: str) -> None:  # noqa: ARG002  it is logged
        self._config_is_good.set(0)
        self._reloads.count("refused")

    def task_failed(self, kind: str, error: Exception) -> None:  # noqa: ARG002  the supervisor logs it
        """Count an error of a background task."""
        self._task_failures.count(kind)

    def refresh_pool(self, snapshot: Snapshot, flow: FlowControl | None = None) -> None:
        """Update the gauges of the pool and of its queues, and the models that it serves."""
        self._requests.series.reported(served_models(snapshot))
        self._pool.show(snapshot, self._clock.now())
        self._flow.show(snapshot, flow, self._clock.now())
        names = snapshot.endpoints.derive(slots_by_name)
        for name, outcome in self._endpoint_responses.values():
            if name not in names:
                self._endpoint_responses.remove(name, outcome)
        self._scheduling.keep(snapshot.endpoints.derive(ids_of))

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


def _recorders(families: Families) -> Mapping[str, Callable[..., None]]:
    """Return the methods that record events by the event: its arguments are the labels of a counter, or a value."""
    return {
        "poll_error": families.counters(
            f"{_POLLS}poll_errors_total",
            "Failed polls of endpoints.",
            ("source_type",),
            _OLDER_POLLS,
        ).count,
        "extract_error": families.counters(
            f"{_POLLS}extract_errors_total",
            "Polled pages that could not be read.",
            ("source_type", "extractor_type"),
            _OLDER_POLLS,
        ).count,
        "page_limited": families.counters(
            f"{_POLLS}page_limits_total",
            "Polled pages beyond a limit: refused, or read in part (family_series, series_bytes).",
            ("source_type", "limit"),
        ).count,
        "endpoint_suspected": families.counters(
            f"{_OUTLIERS}suspicions_total",
            "Times that an endpoint was avoided and asked as a connection to it failed or ended, by what its port "
            "said: answers, refuses, silent.",
            ("verdict",),
        ).count,
        "endpoint_ejected": families.counters(
            f"{_OUTLIERS}ejections_total",
            "Ejections of endpoints by the failures that led to them: connection, gateway (502, 503, 504), server "
            "(other errors).",
            ("cause",),
        ).count,
        "ejection_spared": families.counters(
            f"{_OUTLIERS}ejections_overflow_total",
            "Endpoints that were not ejected, as --outlier-max-ejection-percent of the pool are.",
            ("cause",),
        ).count,
        "poll_interval": families.gauges(
            f"{_POLLS}poll_interval_seconds", "Time between two polls of an endpoint, which grows with the pool."
        )
        .labels()
        .set,
        "endpoints_ejected": families.gauges(f"{_OUTLIERS}ejections_active", "Endpoints that are ejected now.")
        .labels()
        .set,
    }
