# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests, by model, flow and priority."""

from epp.framework import Request
from epp.framework.clock import Clock
from epp.framework.plugin_status import Legacy
from epp.framework.request import DEFAULT_FLOW, DataKey, Usage
from epp.routing.director import Cause, Refusal, Routing
from epp.telemetry.families import EXTENSION, Families, Histograms
from epp.telemetry.request_series import MAX_COMBINATIONS, RequestSeries, RewriteSeries, Series

_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")
_MODELS = _LABELS[:2]
_SERIES: DataKey[Series] = DataKey("metrics-series")
"""The series of a routed request, from its start to its end."""
_SUCCEEDED, _FAILED = 200, 400
"""The least status codes of responses that count as such."""
_ANSWERED = (Cause.NATURAL, Cause.UNSEEN)
"""Ends that count by their status."""
_MODEL_SERVER_ERROR = "ModelServerError"
_ABORT_CODES = {Cause.SERVER_LOST: _MODEL_SERVER_ERROR, Cause.ERROR: "Unknown"}
"""Codes of aborts that are errors; a client that leaves and an eviction are none."""

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
RESPONSE_BYTES = (*OUTPUT_TOKENS, 16384, 32778, 65536)  # 32778, not 32768, there too
TOKENS = (*RESPONSE_BYTES, *(131072.0 * 2**power for power in range(4)))


class RequestMetrics:
    """Counts requests from their arrival to their end; those of a combination of labels share their series."""

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
            "Requests refused, by the code of the refusal, or failed at a model server: ModelServerError for a status "
            "of 400 and more or a lost server, Unknown for an exchange that broke.",
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
            "Requests counted under `other`, by the label that was replaced: model_name stands for all.",
            ("label",),
        )
        self.series = RequestSeries(clock, running, folded, max_combinations=max_combinations)
        """The series of all requests."""
        self.model_rewritten = RewriteSeries(
            families.counters(
                "model_rewrite_decisions_total",
                "Requests by the InferenceModelRewrite that chose their model, the model asked for and the one chosen.",
                ("model_rewrite_name", "model_name", "target_model"),
                EXTENSION,
            )
        ).count
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
            "Of streamed responses, the time from the first byte to the end, divided by the tokens after the first.",
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
            "Prompt tokens from the prefix cache, of requests whose response tells them.",
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
        self.request_processed = (
            families.histograms(
                "request_processing_duration_seconds",
                "Time from the first message of a request to the answer that routes or refuses it, waiting included.",
                REQUEST_PROCESSING_SECONDS,
            )
            .labels()
            .observe
        )
        self._response_processing = families.histograms(
            "response_processing_duration_seconds",
            "Time that the picker spent on the pieces of a streamed response; of others, the time from its headers to "
            "its end.",
            RESPONSE_PROCESSING_SECONDS,
        ).labels()

    def routed(self, request: Request) -> Series:
        series = self.series.begin(request.body.model, request.model, request.fairness_id, str(request.priority))
        request.put(_SERIES, series)
        series.of(self._requests).inc()
        series.of(self._request_size).observe(request.size_bytes)
        return series

    def refused(self, refusal: Refusal) -> None:
        request = refusal.request
        if request is None:
            series = self.series.immediate(refusal.model, refusal.model, DEFAULT_FLOW, "0")
        else:
            series = self.series.immediate(refusal.model, request.model, request.fairness_id, str(request.priority))
        series.with_more(self._errors, refusal.error.code).inc()

    def first_piece(self, routing: Routing) -> None:
        """Have the times between the pieces of a streamed response recorded."""
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
        """Record times and tokens of a response that came to its end."""
        seconds = now - routing.request.began_at
        series.of(self._duration).observe(seconds)
        usage = routing.usage
        if usage is None:
            return
        self._count_tokens(usage, series, tells_cached=routing.tells_cached)
        tokens = usage.completion_tokens
        if tokens:
            series.of(self._ntpot).observe(seconds / tokens)
        if tokens > 1 and routing.is_stream and routing.first_byte_at is not None:
            series.of(self._tpot).observe((now - routing.first_byte_at) / (tokens - 1))

    def _count_tokens(self, usage: Usage, series: Series, *, tells_cached: bool) -> None:
        if usage.prompt_tokens:
            series.of(self._input).observe(usage.prompt_tokens)
        if tells_cached:
            series.of(self._cached).observe(usage.cached_tokens)
        if usage.completion_tokens:
            series.of(self._output).observe(usage.completion_tokens)
