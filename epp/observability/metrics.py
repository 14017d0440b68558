# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics under the names of llm-d-router, updated by director, scheduler, collector and configuration."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from epp.collectors import CollectorObserver
from epp.config import ConfigObserver
from epp.datastore import Datastore
from epp.director import Cause, DirectorObserver, Refusal, Rewrite, Routing
from epp.flow_control import FlowControl
from epp.framework import Request, SchedulingResult
from epp.framework.clock import Clock
from epp.framework.request import DataKey
from epp.framework.response import Usage
from epp.observability.families import Counters, Gauges, Histograms
from epp.observability.flow_series import FlowSeries
from epp.observability.logs import FailureLog
from epp.observability.outlier_series import OutlierSeries
from epp.observability.plugin_times import PluginTimes
from epp.observability.poll_series import PollSeries
from epp.observability.pool_series import PoolSeries, served_models
from epp.observability.quota_series import QuotaSeries
from epp.observability.request_series import MAX_COMBINATIONS, RequestSeries, Series
from epp.observability.revocation_series import RevocationSeries
from epp.observability.rewrite_series import RewriteSeries
from epp.observability.selection_series import SelectionSeries
from epp.observability.stalls import StallRecord
from epp.outliers import Failure, Verdict
from epp.quotas import Quotas
from epp.scheduling import SchedulingObserver

_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")
_SECONDS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
)  # fmt: skip
_LONG_SECONDS = (*_SECONDS, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_SCHEDULING_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_REQUEST_BYTES = tuple(64.0 * 2**power for power in range(25))  # 64 B to 1 GiB
_RESPONSE_BYTES = tuple(2.0**power for power in range(17))
_NTPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# 32778, not 32768, as in llm-d-router
_TOKENS = (1, *(8.0 * 2**power for power in range(12)), 32778, *(65536.0 * 2**power for power in range(5)))
_OUTPUT_TOKENS = (1, *(8.0 * 2**power for power in range(11)))
_SERIES: DataKey[Series] = DataKey("metrics-series")
"""The series of a routed request, from its start to its end."""
_SUCCEEDED, _FAILED = 200, 400
"""The least status codes of responses that count as such."""
_ANSWERED = (Cause.NATURAL, Cause.UNSEEN)
"""Ends that count by their status."""


class Metrics(DirectorObserver, SchedulingObserver, CollectorObserver, ConfigObserver):
    """The metrics of one picker, in `registry`."""

    def __init__(self, pool_name: str, clock: Clock, *, max_combinations: int = MAX_COMBINATIONS) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._failure_log = FailureLog()
        self._generation = 1
        self._requests = self._counter("request_total", "Requests routed or refused.", _LABELS)
        self._errors = self._counter("request_error_total", "Requests refused or failed.", (*_LABELS, "error_code"))
        self._series = RequestSeries(
            clock,
            self._gauge("request_running", "Requests in flight.", ("model_name",)),
            self._counter(
                "request_labels_folded_total",
                "Requests counted under `other`, by the label that was replaced: model_name stands for all.",
                ("label",),
            ),
            max_combinations=max_combinations,
        )
        self._rewrites = RewriteSeries(
            self._counter(
                "model_rewrite_decisions_total",
                "Requests by the InferenceModelRewrite that chose their model, the model asked for and the one chosen.",
                ("model_rewrite_name", "model_name", "target_model"),
            )
        )
        self._duration = self._histogram(
            "request_duration_seconds",
            "Time from the complete request to the end of the response.",
            _LONG_SECONDS,
            _LABELS,
        )
        self._ttft = self._histogram(
            "request_ttft_seconds",
            "Time from the complete request to the first byte of the response.",
            _SECONDS,
            (*_LABELS, "streaming"),
        )
        self._request_size = self._histogram("request_size_bytes", "Size of request bodies.", _REQUEST_BYTES, _LABELS)
        self._response_size = self._histogram(
            "response_size_bytes", "Size of response bodies.", _RESPONSE_BYTES, _LABELS
        )
        self._input = self._histogram("request_input_tokens", "Prompt tokens.", _TOKENS, _LABELS)
        self._cached = self._histogram(
            "request_cached_tokens", "Prompt tokens found in the prefix cache.", _TOKENS, _LABELS
        )
        self._output = self._histogram("request_output_tokens", "Generated tokens.", _OUTPUT_TOKENS, _LABELS)
        self._ntpot = self._histogram(
            "request_ntpot_seconds", "Duration divided by generated tokens.", _NTPOT_SECONDS, _LABELS
        )
        self._endpoint_responses = self._counter(
            "endpoint_responses_total",
            "Ended requests by endpoint and outcome: a class of status codes, or the reason of an abort.",
            ("model_server_endpoint", "outcome"),
        )
        self._expired = self._counter(
            "reservations_expired_total",
            "Requests that count as load of their endpoint no more, as no response has begun for --reservation-ttl.",
        ).labels()
        self._scheduling_times = self._histogram(
            "scheduler_e2e_duration_seconds", "Time for producers and scheduling of one request.", _SCHEDULING_SECONDS
        ).labels()
        self._rejected_scores = self._counter(
            "scheduler_scores_rejected_total", "Scores that were NaN or infinite, and replaced by 0.", ("plugin_name",)
        )
        self._clamped_scores = self._counter(
            "scheduler_scores_clamped_total", "Scores below 0 or above 1, and limited to these.", ("plugin_name",)
        )
        self._plugin_times = PluginTimes(_SCHEDULING_SECONDS)
        self.registry.register(self._plugin_times)
        self.plugin_called = self._plugin_times.add  # type: ignore[method-assign]  # many calls for each request
        self._plugin_failures = self._counter("plugin_failures_total", "Errors raised by plugins.", ("plugin_name",))
        self._polls = PollSeries(self.registry)
        self._config_generation = self._gauge("config_generation", "Generation of the configuration in effect, from 1.")
        self._config_generation.labels().set(self._generation)
        self._config_good = self._gauge(
            "config_last_reload_successful", "1 if the current configuration file is in effect, 0 if it was rejected."
        )
        self._config_good.labels().set(1)
        self._config_reloads = self._counter(
            "config_reloads_total", "New versions of the configuration file, by result.", ("result",)
        )
        self._task_failures = self._counter(
            "background_task_failures_total", "Restarts of background tasks after an error.", ("task",)
        )
        self._loop_lag = self._histogram(
            "event_loop_lag_seconds",
            "Delay of a timer of the event loop, ten times a second: requests that arrive meanwhile wait as long.",
            _LAG_SECONDS,
        ).labels()
        self.stalls = StallRecord(clock, self.registry)
        self._selections = SelectionSeries(
            self._counter(
                "accelerator_selections_total",
                "Picks by accelerator class (or model, without a class), profile and policy of the selection.",
                ("accelerator", "profile", "policy"),
            )
        )
        self._outliers = OutlierSeries(self.registry)
        self._revocations = RevocationSeries(self.registry)
        self.revoked = self._revocations.decided  # type: ignore[method-assign]  # without a call in between
        self.revocation_confirmed = self._revocations.confirmed  # type: ignore[method-assign]
        self.revocations_given_up = self._revocations.expired  # type: ignore[method-assign]
        self._pool = PoolSeries(pool_name, self.registry)
        self._flow = FlowSeries(pool_name, clock, self._series, self.registry)
        self.queued = self._flow.queued  # type: ignore[method-assign]
        self.left = self._flow.left  # type: ignore[method-assign]
        self.enqueued = self._flow.enqueued  # type: ignore[method-assign]
        self.cycled = self._flow.cycled  # type: ignore[method-assign]
        self._quotas = QuotaSeries(clock, self.registry)
        self.alert = self._quotas.alert  # type: ignore[method-assign]

    def endpoint_suspected(self, verdict: Verdict) -> None:
        """Count what the port of an endpoint said after a failed connection."""
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

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Count a choice of a model."""
        self._rewrites.count(request, rewrite)

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Count a routed request."""
        series = self._series.begin(request.body.model, request.model, request.fairness_id, str(request.priority))
        request.put(_SERIES, series)
        series.of(self._requests).inc()
        series.of(self._request_size).observe(request.size_bytes)
        self._flow.routed(request, series)
        self._selections.count(request, result)
        self._scheduling_times.observe(scheduling_seconds)

    def refused(self, refusal: Refusal) -> None:
        """Count a request that is not routed."""
        priority = 0 if refusal.request is None else refusal.request.priority
        series = self._series.immediate(refusal.model, "", str(priority))
        series.of(self._requests).inc()
        series.with_more(self._errors, refusal.error.code).inc()
        self._flow.refused(refusal.request)
        self._quotas.refused(refusal.error)

    def expired(self, routing: Routing) -> None:  # noqa: ARG002  their number says enough
        """Count a routed request that no endpoint has answered for too long."""
        self._expired.inc()

    def completed(self, routing: Routing, cause: Cause) -> None:
        """Count the end of a routed request."""
        request = routing.request
        series = request.get(_SERIES)
        if series is None:
            return
        status, first_byte_at = routing.status, routing.first_byte_at
        now = self._clock.now() if routing.ended_at is None else routing.ended_at
        seconds = now - request.received_at
        series.of(self._duration).observe(seconds)
        if cause is not Cause.UNSEEN:
            series.of(self._response_size).observe(routing.response_bytes)
        if first_byte_at is not None:
            streaming = "true" if request.body.streaming else "false"
            series.with_more(self._ttft, streaming).observe(first_byte_at - request.received_at)
        if (usage := routing.usage) is not None:
            self._count_usage(usage, seconds, series)
        answered = cause in _ANSWERED
        outcome = f"{status // 100}xx" if answered else cause.value
        self._endpoint_responses.labels(routing.served.name, outcome).inc()
        if not answered:
            series.with_more(self._errors, cause.value).inc()
        elif status >= _FAILED:
            series.with_more(self._errors, str(status)).inc()
        elif status >= _SUCCEEDED:
            self._series.succeeded(request.body.model, request.model)
        self._series.end(series, now)

    def _count_usage(self, usage: Usage, seconds: float, series: Series) -> None:
        series.of(self._input).observe(usage.prompt_tokens)
        series.of(self._cached).observe(usage.cached_tokens)
        series.of(self._output).observe(usage.completion_tokens)
        if usage.completion_tokens:
            series.of(self._ntpot).observe(seconds / usage.completion_tokens)

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Count an error of a plugin, and log the first of each type."""
        self._plugin_failures.labels(plugin).inc()
        self._failure_log.log(plugin, error, problem)

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Count scores that are NaN or infinite, and log the first."""
        self._rejected_scores.labels(plugin).inc(count)
        self._failure_log.warn(plugin, "scorer returned NaN or infinity, which count as 0", count)

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Count scores below 0 and above 1, and log the first."""
        self._clamped_scores.labels(plugin).inc(count)
        self._failure_log.warn(plugin, "scorer returned scores below 0 or above 1, which count as these", count)

    def poll_error(self, source_type: str) -> None:
        """Count a failed poll."""
        self._polls.failed(source_type)

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        """Count an unreadable page."""
        self._polls.unreadable(source_type, extractor_type)

    def page_limited(self, source_type: str, limit: str) -> None:
        """Count a page beyond a limit."""
        self._polls.limited(source_type, limit)

    def poll_interval(self, seconds: float) -> None:
        """Record the time between two polls of an endpoint."""
        self._polls.interval(seconds)

    def config_taken(self, generation: int) -> None:
        """Record that the configuration file is in effect."""
        self._config_good.labels().set(1)
        if generation != self._generation:
            self._config_reloads.labels("taken").inc()
            self._config_generation.labels().set(generation)
        self._generation = generation

    def config_refused(self, reason: str) -> None:  # noqa: ARG002  it is logged
        """Record that the configuration file was rejected."""
        self._config_good.labels().set(0)
        self._config_reloads.labels("refused").inc()

    def task_failed(self, kind: str, error: Exception) -> None:  # noqa: ARG002  the supervisor logs it
        """Count an error of a background task."""
        self._task_failures.labels(kind).inc()

    def loop_lagged(self, seconds: float) -> None:
        """Record a delay of the event loop."""
        self._loop_lag.observe(seconds)

    def count_lost_log_lines(self, lost: Callable[[], int]) -> None:
        """Add the number of lost log lines to the metrics."""
        self.registry.register(_LostLogLines(lost))

    def count_protocol_errors(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Add the errors of gateways, by kind, to the metrics."""
        self.registry.register(_ProtocolErrors(counts))

    def refresh_pool(self, store: Datastore, flow: FlowControl | None = None) -> None:
        """Update the gauges of the pool and of its queues, and the models that it serves."""
        snapshot = store.snapshot()
        self._series.reported(served_models(snapshot))
        self._pool.show(snapshot)
        self._flow.show(snapshot, flow, self._clock.now())
        names = self._pool.names
        for name, outcome in self._endpoint_responses.values():
            if name not in names:
                self._endpoint_responses.remove(name, outcome)

    def refresh_quotas(self, quotas: Quotas, named: Iterable[str] = ()) -> None:
        """Update the gauges of quotas, those of the tenants of the configuration before others."""
        self._quotas.show(quotas, named)

    @property
    def quota_alerts(self) -> Sequence[Mapping[str, object]]:
        """Limits of quotas that are almost used up; may be read in any thread."""
        return self._quotas.alerts

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counters:
        return Counters(f"llm_d_epp_{name}", text, labels, self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauges:
        return Gauges(f"llm_d_epp_{name}", text, labels, self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histograms:
        return Histograms(f"llm_d_epp_{name}", text, labels, buckets, self.registry)


class _LostLogLines(Collector):
    def __init__(self, lost: Callable[[], int]) -> None:
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("llm_d_epp_log_lines_lost", "Log lines that could not be written.", self._lost())


class _ProtocolErrors(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "llm_d_epp_extproc_protocol_errors",
            "Streams that ended as the gateway broke the protocol, by kind.",
            labels=("kind",),
        )
        for kind, count in self._counts().items():
            family.add_metric((kind,), count)
        yield family
