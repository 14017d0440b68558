# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics under the names of llm-d-router, updated by director, scheduler, collector and configuration."""

from collections.abc import Callable, Mapping

from prometheus_client.registry import CollectorRegistry

from epp.admission.flow_control.control import FlowControl
from epp.config import ConfigObserver
from epp.framework import Request, SchedulingResult
from epp.framework.clock import Clock
from epp.framework.plugin import SchedulingObserver
from epp.framework.plugin_status import Legacy
from epp.framework.request import DEFAULT_FLOW, DataKey
from epp.framework.snapshot import Snapshot
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.routing.director import Cause, DirectorObserver, Refusal, Rewrite, Routing
from epp.telemetry.families import EXTENSION, Families, Histograms
from epp.telemetry.flow_series import FlowSeries
from epp.telemetry.plugin_metrics import SchedulingMetrics
from epp.telemetry.pool_series import PoolSeries, QuotaSeries, ids_of, served_models, slots_by_name
from epp.telemetry.request_series import MAX_COMBINATIONS, MAX_UNKNOWN, OTHER, Bounded, RequestSeries, Series, shortened

_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")
_MODELS = _LABELS[:2]
_SERIES: DataKey[Series] = DataKey("metrics-series")
"""The series of a routed request."""
_SUCCEEDED, _FAILED = 200, 400
"""Lowest status codes of successful and of failed responses."""
_ANSWERED = (Cause.NATURAL, Cause.UNSEEN)
"""Causes of the end for which the status of the response counts."""
_MODEL_SERVER_ERROR = "ModelServerError"
_ABORT_CODES = {Cause.SERVER_LOST: _MODEL_SERVER_ERROR, Cause.ERROR: "Unknown"}
"""Error codes of aborts; a client that leaves and an eviction are not errors."""

TTFT_SECONDS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
)  # fmt: skip
DURATION_SECONDS = (*TTFT_SECONDS, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
NTPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TPOT_SECONDS = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2,
)  # fmt: skip
ITL_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
REQUEST_PROCESSING_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
RESPONSE_PROCESSING_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
)  # fmt: skip
REQUEST_BYTES = tuple(64.0 * 2**power for power in range(25))  # 64 B to 1 GiB
OUTPUT_TOKENS = (1, *(8.0 * 2**power for power in range(11)))  # 1, 8 to 8192
RESPONSE_BYTES = (*OUTPUT_TOKENS, 16384, 32778, 65536)  # 32778 as in llm-d-router, not 32768
TOKENS = (*RESPONSE_BYTES, *(131072.0 * 2**power for power in range(4)))


class RequestMetrics:
    """Counts requests from their arrival to their end; requests with the same labels share their series."""

    def __init__(self, families: Families, clock: Clock, *, max_combinations: int = MAX_COMBINATIONS) -> None:
        self._clock = clock

        def histogram(name: str, text: str, bounds: tuple[float, ...], legacy: str = "") -> Histograms:
            older = Legacy(f"inference_objective_{legacy}", _MODELS) if legacy else ""
            return families.histograms(name, text, bounds, _LABELS, older)

        self._requests = families.counters(
            "request_total",
            "Requests routed.",
            _LABELS,
            Legacy("inference_objective_request_total", ("model_name", "target_model_name", "priority")),
        )
        self._errors = families.counters(
            "request_error_total",
            "Requests that were refused (by code of the refusal) or failed: ModelServerError for status 400 and above, "
            "or for a lost server, Unknown for a broken exchange.",
            (*_LABELS, "error_code"),
            Legacy("inference_objective_request_error_total", (*_MODELS, "error_code")),
        )
        running = families.gauges(
            "request_running",
            "Requests in flight.",
            _LABELS,
            Legacy("inference_objective_running_requests", ("model_name",)),
        )
        folded = families.counters(
            "request_labels_folded_total",
            "Requests counted under `other`, by the replaced label; model_name if all labels were replaced.",
            ("label",),
        )
        self.series = RequestSeries(clock, running, folded, max_combinations=max_combinations)
        self._rewrites = families.counters(
            "model_rewrite_decisions_total",
            "Requests by InferenceModelRewrite, requested model and rewritten model.",
            ("model_rewrite_name", "model_name", "target_model"),
            EXTENSION,
        )
        self._rewritten = Bounded[tuple[str, ...]](MAX_COMBINATIONS)
        self._rewritten_by_clients = Bounded[str](MAX_UNKNOWN)
        self._duration = histogram(
            "request_duration_seconds",
            "Time from the headers of a request to the end of the response.",
            DURATION_SECONDS,
            "request_duration_seconds",
        )
        self._ttft = families.histograms(
            "request_ttft_seconds",
            "Time from the headers of a request to the first byte of the response.",
            TTFT_SECONDS,
            (*_LABELS, "streaming"),
            Legacy("inference_objective_request_ttft_seconds", _MODELS),
        )
        self._tpot = histogram(
            "request_streaming_tpot_seconds",
            "Time from the first byte of a streamed response to its end, divided by the tokens after the first.",
            TPOT_SECONDS,
            "request_tpot_seconds",
        )
        self._itl = histogram(
            "request_streaming_itl_seconds", "Time between two pieces of a streamed response.", ITL_SECONDS
        )
        self._request_size = histogram("request_size_bytes", "Size of request bodies.", REQUEST_BYTES, "request_sizes")
        self._response_size = histogram(
            "response_size_bytes", "Size of response bodies.", RESPONSE_BYTES, "response_sizes"
        )
        self._input = histogram("request_input_tokens", "Prompt tokens.", TOKENS, "input_tokens")
        self._cached = histogram(
            "request_cached_tokens",
            "Prompt tokens from the prefix cache, if the response reports them.",
            TOKENS,
            "prompt_cached_tokens",
        )
        self._output = histogram("request_output_tokens", "Generated tokens.", OUTPUT_TOKENS, "output_tokens")
        self._ntpot = histogram(
            "request_ntpot_seconds",
            "Duration divided by generated tokens.",
            NTPOT_SECONDS,
            "normalized_time_per_output_token_seconds",
        )
        processing = families.histograms(
            "request_processing_duration_seconds",
            "Time from the first message of a request to the answer that routes or refuses it, including queueing.",
            REQUEST_PROCESSING_SECONDS,
        )
        self.request_processed = processing.labels().observe
        self._response_processing = families.histograms(
            "response_processing_duration_seconds",
            "Time that the picker spent on the pieces of a streamed response; for other responses, the time from the "
            "headers to the end.",
            RESPONSE_PROCESSING_SECONDS,
        ).labels()

    def routed(self, request: Request) -> Series:
        series = self.series.begin(request.body.model, request.model, request.fairness_id, str(request.priority))
        request.put(_SERIES, series)
        series.of(self._requests).inc()
        series.of(self._request_size).observe(request.size_bytes)
        return series

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Count a request whose model was rewritten by a rule.

        Above 16 models that generic rules rewrote, further models count as `other`; above 256 combinations, all labels.
        """
        model = shortened(request.body.model)
        if rewrite.generic:
            model = self._rewritten_by_clients.shown(model, OTHER)
        labels = shortened(rewrite.name), model, shortened(request.model)
        self._rewrites.count(*self._rewritten.shown(labels, (OTHER, OTHER, OTHER)))

    def refused(self, refusal: Refusal) -> None:
        request = refusal.request
        if request is None:
            series = self.series.immediate(refusal.model, refusal.model, DEFAULT_FLOW, "0")
        else:
            series = self.series.immediate(refusal.model, request.model, request.fairness_id, str(request.priority))
        series.with_more(self._errors, refusal.error.code).inc()

    def first_piece(self, routing: Routing) -> None:
        """Record the times between the pieces of a streamed response from now on."""
        series = routing.request.get(_SERIES)
        if series is not None and routing.is_stream:
            routing.time_pieces(series.of(self._itl).observe)

    def completed(self, routing: Routing, cause: Cause) -> str:
        """Count the end of a routed request; return its outcome: a class of status codes, or the reason of an abort."""
        request, status = routing.request, routing.status
        series = request.get(_SERIES)
        if series is None:
            return ""
        now = self._clock.now() if routing.ended_at is None else routing.ended_at
        if routing.first_byte_at is not None:
            streaming = "true" if routing.is_stream else "false"
            series.with_more(self._ttft, streaming).observe(routing.first_byte_at - request.began_at)
        if routing.processing_seconds:
            self._response_processing.observe(routing.processing_seconds)
        answered = cause in _ANSWERED
        if answered:
            self._answered(routing, series, now)
            if cause is not Cause.UNSEEN:
                series.of(self._response_size).observe(routing.response_bytes)
        outcome = f"{status // 100}xx" if answered else cause.value
        failed = _MODEL_SERVER_ERROR if status >= _FAILED else ""
        if code := failed if answered else _ABORT_CODES.get(cause, ""):
            series.with_more(self._errors, code).inc()
        elif answered and status >= _SUCCEEDED:
            self.series.succeeded(request.body.model, request.model)
        self.series.end(series, now)
        return outcome

    def _answered(self, routing: Routing, series: Series, now: float) -> None:
        seconds = now - routing.request.began_at
        series.of(self._duration).observe(seconds)
        usage = routing.usage
        if usage is None:
            return
        if usage.prompt_tokens:
            series.of(self._input).observe(usage.prompt_tokens)
        if routing.reports_cached:
            series.of(self._cached).observe(usage.cached_tokens)
        if tokens := usage.completion_tokens:
            series.of(self._output).observe(tokens)
            series.of(self._ntpot).observe(seconds / tokens)
        if tokens > 1 and routing.is_stream and routing.first_byte_at is not None:
            series.of(self._tpot).observe((now - routing.first_byte_at) / (tokens - 1))


_POLLS, _OLDER_POLLS = "datalayer_", "llm_d_inference_scheduler_"
_OUTLIERS = "outlier_detection_"


class Metrics(DirectorObserver, SchedulingObserver, CollectorObserver, ConfigObserver):
    """The metrics of one picker, in `registry`.

    Events for a single metric or group are attributes that refer to its method: each request has many events, and this
    avoids a call for each.
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
        """Prepare; with `legacy`, metrics are also shown under older names of llm-d-router.

        The averages of the pool exclude load reports older than `stale_seconds`.
        """
        self.registry = CollectorRegistry()
        families = self.families = Families(self.registry, legacy=legacy)
        self._clock = clock
        self._requests = RequestMetrics(families, clock, max_combinations=max_combinations)
        self.scheduling = SchedulingMetrics(families)
        self.slowest_call = self.scheduling.slowest_call
        self._pool = PoolSeries(pool_name, families, stale_seconds)
        self._flow = FlowSeries(pool_name, clock, self._requests.series, families)
        self.quotas = QuotaSeries(clock, families)
        self.refresh_quotas = self.quotas.show
        for group, *events in (
            (self._requests, "model_rewritten", "first_piece", "request_processed"),
            (self.scheduling, "scheduled", "plugin_called", "plugin_failed", "scores_rejected", "scores_clamped"),
            (self._flow, "queued", "left", "enqueued", "cycled"),
            (self._flow, "revoked", "revocation_confirmed", "revocations_given_up"),
            (self.quotas, "alert"),
        ):
            for event in events:
                setattr(self, event, getattr(group, event))
        # Methods that record events; the arguments of each are the labels of a counter, or a value.
        recorders: Mapping[str, Callable[..., None]] = {
            "poll_error": families.counters(
                f"{_POLLS}poll_errors_total", "Failed polls of endpoints.", ("source_type",), _OLDER_POLLS
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
                "Number of times that an endpoint was avoided and probed because its connection failed or ended, by "
                "state of its port: answers, refuses, silent.",
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
                "Endpoints that were not ejected because --outlier-max-ejection-percent of the pool already are.",
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
        for event, record in recorders.items():
            setattr(self, event, record)
        self._endpoint_responses = families.counters(
            "endpoint_responses_total",
            "Ended requests by endpoint and outcome: a class of status codes, or the reason of an abort.",
            ("model_server_endpoint", "outcome"),
        )
        self._expired = families.counters(
            "reservations_expired_total",
            "Requests that no longer count as load because no response began within --reservation-ttl.",
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
        self.scheduling.routed(request, result, series)

    def refused(self, refusal: Refusal) -> None:
        self._requests.refused(refusal)
        self._flow.refused(refusal.request)
        self.quotas.refused(refusal.error)

    def expired(self, routing: Routing) -> None:  # noqa: ARG002  only the number is shown
        """Count a routed request whose endpoint did not answer in time."""
        self._expired.count()

    def completed(self, routing: Routing, cause: Cause) -> None:
        outcome = self._requests.completed(routing, cause)
        if outcome:
            self._endpoint_responses.count(routing.served.name, outcome)

    def config_taken(self, generation: int) -> None:
        self._config_is_good.set(1)
        if generation != self._generation.value:
            self._reloads.count("taken")
            self._generation.set(generation)

    def config_refused(self, reason: str) -> None:  # noqa: ARG002  it is logged
        self._config_is_good.set(0)
        self._reloads.count("refused")

    def task_failed(self, kind: str, error: Exception) -> None:  # noqa: ARG002  the supervisor logs it
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
        self.scheduling.keep(snapshot.endpoints.derive(ids_of))
