# SPDX-License-Identifier: Apache-2.0
"""Publish the predicted latency of a request at each endpoint, and learn from responses."""

import os
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from math import inf, isfinite, nan
from typing import NamedTuple

import msgspec
import numpy as np

from epp.framework import (
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LATENCY_PREDICTION,
    LOAD_INPUTS,
    MEDIA_MATCH,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    WAITING,
    Admitter,
    Candidates,
    DataKey,
    Endpoint,
    EndpointObserver,
    Floats,
    LatencyPrediction,
    Natural,
    Parameters,
    Positions,
    Positive,
    PreRequest,
    Producer,
    Records,
    Request,
    Response,
    ResponseTiming,
    SchedulingResult,
    Snapshot,
)
from epp.framework.datalayer import Follower
from epp.framework.headers import SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.latency import Source
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quantities import parse_duration
from epp.framework.rates import batch_sizes, target_seconds, uncached_tokens, waited_seconds
from epp.pool.predicted_latency.messages import Entry, Kind, Row
from epp.pool.predicted_latency.metrics import METRICS, LatencyMetrics
from epp.pool.predicted_latency.running_targets import RunningTargets
from epp.pool.predicted_latency.server import FAILED, READY, TRAINED, PredictionClient, ServerSettings

_OK = 200
_PREFILL = "prefill"
_EVENTS_WITHOUT_TOKEN = 2
"""Events of a stream without a token: the role of the answer, and `[DONE]`."""
_NS_PER_S = 1e9
_MS_PER_S = 1e3
_PREDICTIONS = PluginMetric(
    "latency_predictions", "Requests that were sent, by the source of their predictions.", ("source",), is_counter=True
)


class PredictedLatencyParameters(Parameters, frozen=True):
    """Times that are predicted, and limits."""

    streaming_mode: bool = False
    """Whether responses are streamed: the time to the first token and that for each further token are predicted. With
    false, the time to the end of the response stands for that to the first token, and the other does not count."""
    slo_buffer_factor: Positive = 1.0
    """Factor of targets for further tokens; below 1 to keep a reserve."""
    predict_in_produce: bool = True
    """Publish predictions; with false, only training entries are collected."""
    endpoint_role_label: str = ""
    """Endpoint label whose value is sent as `pod_type`; further tokens do not count where it is `prefill`."""
    context_ttl: int | str = msgspec.field(default="5m", name="contextTTL")
    """Time after which a request without an end no longer counts as running: a duration, or nanoseconds."""
    prediction_timeout: int | str = "50ms"
    """Longest time that a request waits for the prediction server, before rates are used: a duration, or
    nanoseconds."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight have one source."""
    use_encoder_cache_features: bool = False
    """Send prediction servers how many media a request has, and how many of them an endpoint has encoded before; with
    false, both are 0. Predictions from rates do not use it."""
    encoder_cache_match_info_producer_name: str = ""
    """Name of the `mm-embeddings-cache-producer` that is read then; empty for the default one."""
    sampling_mean: Natural = 1000
    """Without effect, as in llm-d."""
    max_decode_token_samples_for_prediction: Natural = 0
    """Without effect, as in llm-d."""

    def __post_init__(self) -> None:
        for name, value in (("contextTTL", self.context_ttl), ("predictionTimeout", self.prediction_timeout)):
            try:
                seconds = _seconds(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if not 0.0 < seconds < inf:
                raise ValueError(f"{name} is {value!r}; it must be above 0")


def _seconds(value: int | str) -> float:
    return value / _NS_PER_S if isinstance(value, int) else parse_duration(value)


class _Answer(NamedTuple):
    """Times that a prediction server gave, for the endpoints of a moment."""

    endpoints: Records[Endpoint | None]
    slots: Positions
    times: Floats
    took_seconds: float


class _Sent:
    """A request at its endpoint."""

    def __init__(self, slot: int, target: Endpoint, waited: float) -> None:
        self.slot = slot
        self.target = target
        self.waited = waited
        """Seconds from its arrival to the pick."""
        self.predicted: dict[Kind, tuple[float, float]] = {}
        """Seconds, and how long their prediction took."""
        self.rows: dict[Kind, Row] = {}
        """Features at the pick, of the endpoint that computes the prompt and of the one that generates."""
        self.number = 0
        """Among the running requests with a target."""
        self.first_seconds = nan
        """From its arrival to the first byte of the response."""


class PredictedLatencyProducer(
    Producer[PredictedLatencyParameters],
    Admitter[PredictedLatencyParameters],
    PreRequest[PredictedLatencyParameters],
    ResponseTiming[PredictedLatencyParameters],
    Follower[PredictedLatencyParameters],
    EndpointObserver[PredictedLatencyParameters],
):
    """Publishes the expected time to the first token (TTFT) and for each further token (TPOT) at each endpoint.

    Also published are the headrooms to the targets in `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms` (older:
    `x-slo-ttft-ms`, `x-slo-tpot-ms`): `TTFT target - time waited - TTFT`, and `min(TPOT target, strictest TPOT target
    of the requests running there) * sloBufferFactor - TPOT`. Without any target, both targets are 0; if only one is
    given, the other headroom is 0 and does not count.

    Times come from the rates of an `endpoint-rates-producer`, as `slo-fit-filter` computes them; endpoints whose rates
    neither a profile nor any response supports have no prediction. If the environment variable `PREDICTION_SERVER_URL`
    names prediction servers of llm-d, these are asked: a request is held for their answer, at most `predictionTimeout`,
    and the rates are used if it does not come, or while a server is not ready. Measured times are sent to
    `TRAINING_SERVER_URL`. Simulated requests and shadow profiles use rates only.

    Environment, with defaults: `LATENCY_MAX_SAMPLE_SIZE` 1000, `LATENCY_FLUSH_INTERVAL_SEC` 1,
    `LATENCY_METRICS_INTERVAL_SEC` 60, `LATENCY_HTTP_TIMEOUT_SEC` 10, `LATENCY_MAX_BULK_SIZE` 100,
    `LATENCY_COALESCE_WINDOW_MS` 1, `LATENCY_MAX_COALESCED_ROWS` 0 (1,000), `LATENCY_MAX_CONCURRENT_DISPATCHES` 36.
    `LATENCY_USE_NATIVE_XGBOOST` has no effect.
    """

    plugin_type = "predicted-latency-producer"
    metrics = (*METRICS, _PREDICTIONS, READY, FAILED, TRAINED)

    def setup(self) -> None:
        """Read the environment; raises ValueError for a variable that cannot be read."""
        given = self.parameters
        self._key = LATENCY_PREDICTION.produced_by(self.name)
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self._answer_key: DataKey[_Answer] = DataKey("latency-answer", self.plugin_type, self.name)
        self._sent_key: DataKey[_Sent] = DataKey("latency-sent", self.plugin_type, self.name)
        self.writes = (self._key,)
        self._media_key = MEDIA_MATCH.produced_by(given.encoder_cache_match_info_producer_name)
        media = (self._media_key,) if given.use_encoder_cache_features else ()
        self.reads = (ENDPOINT_RATES, self._match_key, IN_FLIGHT_TOKENS, IN_FLIGHT, *media)
        self.may_read = (PROMPT_TOKENS, KV_USAGE, *LOAD_INPUTS)
        self.only_streams = given.streaming_mode
        self._running = RunningTargets(_seconds(given.context_ttl))
        self._metrics = LatencyMetrics()
        self._sources = {"server": 0, "rates": 0, "none": 0}
        settings = ServerSettings.of(os.environ)
        limit = _seconds(given.prediction_timeout)
        self._client = None if settings is None else PredictionClient(settings, limit_seconds=limit)
        self._learns = settings is not None and bool(settings.training_url)

    @property
    def warnings(self) -> Sequence[str]:
        """Name parameters without effect."""
        given, default = self.parameters, PredictedLatencyParameters()
        unused = {
            "samplingMean": given.sampling_mean != default.sampling_mean,
            "maxDecodeTokenSamplesForPrediction": given.max_decode_token_samples_for_prediction != 0,
        }
        return [f"{name} has no effect" for name, is_given in unused.items() if is_given]

    @property
    def inputs(self) -> InputState:
        """The prediction servers that are not asked."""
        return InputState() if self._client is None else InputState(self._client.problems)

    @property
    def samples(self) -> Sequence[Sample]:
        """Latencies, sources of predictions, and the state of the servers."""
        sources = [Sample(_PREDICTIONS, count, (source,)) for source, count in self._sources.items()]
        return [*self._metrics.samples, *sources, *(() if self._client is None else self._client.samples)]

    def produce(self, request: Request, candidates: Candidates) -> None:
        """Publish the predictions of the server for this request, else those from rates."""
        if not self.parameters.predict_in_produce:
            return
        if not request.dry_run:
            self._running.expire(self.clock.now())
        prediction = self._from_server(request, candidates) or self._from_rates(request, candidates)
        if prediction is None:
            request.drop(self._key)
        else:
            request.put(self._key, prediction)

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Hold the request for the answer of a prediction server."""
        client = self._client
        if client is None or request.dry_run or not self.parameters.predict_in_produce or not request.prompt_tokens:
            return None
        return self._ask(client, request, candidates) if client.takes(len(candidates)) else None

    async def follow(self) -> None:
        """Keep in touch with the servers until cancelled."""
        if self._client is not None:
            await self._client.run()

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        """Record the endpoint, its features and its predictions."""
        primary, prefill = result.primary, result.profiles.get(_PREFILL)
        snapshot = primary.candidates.snapshot
        first = primary.slot if prefill is None else prefill.slot
        sent = _Sent(primary.slot, result.targets[0], waited_seconds(request, primary.candidates))
        prediction = request.get(self._key)
        self._sources["none" if prediction is None else prediction.source] += 1
        if prediction is not None:
            answer = request.get(self._answer_key)
            took = 0.0 if answer is None or prediction.source == "rates" else answer.took_seconds
            sent.predicted = {
                "ttft": (prediction.ttft_seconds.item(first), took),
                "tpot": (prediction.tpot_seconds.item(primary.slot), took),
            }
        if self._learns:
            rows = self._rows(request, snapshot, np.array([first, primary.slot], dtype=np.intp))
            sent.rows = {"ttft": rows[0], "tpot": rows[1]}
        target = target_seconds(request.headers, SLO_TPOT_MS)
        if self.parameters.streaming_mode and target < inf:
            sent.number = self._running.add(sent.slot, target, self.clock.now())
        request.put(self._sent_key, sent)

    def request_failed(self, request: Request, result: SchedulingResult) -> None:  # noqa: ARG002  as the role has it
        """Forget the request."""
        sent = request.get(self._sent_key)
        if sent is not None:
            self._running.remove(sent.slot, sent.number)

    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time to the first token of a streamed response."""
        sent = request.get(self._sent_key)
        if sent is None:
            return
        sent.first_seconds = seconds
        if self.parameters.streaming_mode and request.body.streaming:
            self._measured("ttft", request, response, sent, seconds)

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time for each further token, or that of the whole response where it is not streamed."""
        sent = request.get(self._sent_key)
        if sent is None:
            return
        self._running.remove(sent.slot, sent.number)
        if not self.parameters.streaming_mode:
            self._measured("ttft", request, response, sent, sent.first_seconds + seconds)
            return
        tokens = max(response.events - _EVENTS_WITHOUT_TOKEN, 0)
        if response.usage is not None:
            tokens = response.usage.completion_tokens
        if request.body.streaming and tokens > 1:
            self._measured("tpot", request, response, sent, seconds / (tokens - 1))

    def slots_removed(self, slots: Sequence[int]) -> None:
        """Forget the requests that run there."""
        self._running.forget(slots)

    def _measured(self, kind: Kind, request: Request, response: Response, sent: _Sent, seconds: float) -> None:
        """Record a time, that to the first token from the arrival of the request."""
        if response.status != _OK or response.served.hostport != sent.target.hostport or not seconds > 0:
            return
        at_endpoint = seconds - sent.waited if kind == "ttft" else seconds
        predicted = sent.predicted.get(kind)
        self._metrics.record(
            (request.body.model, request.model),
            kind,
            at_endpoint,
            predicted=predicted if predicted is not None and isfinite(predicted[0]) else None,
            target=target_seconds(request.headers, SLO_TTFT_MS if kind == "ttft" else SLO_TPOT_MS),
            since_arrival=seconds,
        )
        row = sent.rows.get(kind)
        if row is not None and self._client is not None:
            milliseconds = at_endpoint * _MS_PER_S
            entry = Entry(
                *msgspec.structs.astuple(row),
                actual_ttft_ms=milliseconds if kind == "ttft" else 0.0,
                actual_tpot_ms=milliseconds if kind == "tpot" else 0.0,
                timestamp=datetime.fromtimestamp(self.clock.utc(), UTC).isoformat(),
            )
            self._client.learn(kind, entry)

    async def _ask(self, client: PredictionClient, request: Request, candidates: Candidates) -> None:
        began = self.clock.now()
        times = await client.predict(self._rows(request, candidates.snapshot, candidates.slots))
        if times is not None:
            took = self.clock.now() - began
            request.put(self._answer_key, _Answer(candidates.snapshot.endpoints, candidates.slots, times, took))

    def _rows(self, request: Request, snapshot: Snapshot, slots: Positions) -> list[Row]:
        """Return the features of the request at some endpoints."""
        match = request.get(self._match_key)
        shares = np.zeros(snapshot.capacity)
        if match is not None and match.total_blocks:
            shares = np.minimum(match.matched_blocks / match.total_blocks, 1.0)
        media = request.get(self._media_key) if self.parameters.use_encoder_cache_features else None
        label, endpoints = self.parameters.endpoint_role_label, snapshot.endpoints.values
        columns = [snapshot.column(column)[slots] for column in (KV_USAGE, WAITING, IN_FLIGHT, IN_FLIGHT_TOKENS)]
        usage, waiting, running, tokens = (np.nan_to_num(np.maximum(column, 0.0)).tolist() for column in columns)
        return [
            Row(
                kv_cache_percentage=min(usage[i], 1.0),
                input_token_length=request.prompt_tokens,
                num_request_waiting=int(waiting[i]),
                num_request_running=int(running[i]),
                prefix_cache_score=shares.item(slot),
                prefill_tokens_in_flight=int(tokens[i]),
                num_tokens_generated=1,
                encoder_input_size=0 if media is None else media.total,
                encoder_matched_size=0 if media is None else media.matched.item(slot),
                decode_tokens_in_flight=0,
                pod_type=endpoint.labels.get(label, "") if (endpoint := endpoints[slot]) is not None and label else "",
            )
            for i, slot in enumerate(slots.tolist())
        ]

    def _from_server(self, request: Request, candidates: Candidates) -> LatencyPrediction | None:
        """Return the predictions of a server, but of endpoints that have been replaced since."""
        answer = request.get(self._answer_key)
        if answer is None:
            return None
        snapshot = candidates.snapshot
        times = np.full((max(snapshot.capacity, len(answer.endpoints.values)), 2), nan)
        times[answer.slots] = answer.times
        if snapshot.endpoints is not answer.endpoints:
            times[list(snapshot.endpoints.changed_since(answer.endpoints.values))] = nan
        times = times[candidates.slots]
        return self._prediction("server", request, candidates, times[:, 0], times[:, 1])

    def _from_rates(self, request: Request, candidates: Candidates) -> LatencyPrediction | None:
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            return None
        uncached = uncached_tokens(request, candidates, request.get(self._match_key))
        batch = batch_sizes(candidates) + 1
        if self.parameters.streaming_mode:
            first = rates.profiled_ttft_seconds(candidates, uncached, batch)
        else:
            wanted = request.body.max_output_tokens
            tokens = rates.output_tokens if wanted is None else min(float(wanted), rates.output_tokens)
            first = rates.seconds(candidates, uncached + candidates.values(IN_FLIGHT_TOKENS), tokens)
        known = rates.known[candidates.slots]
        further = rates.itl_seconds(candidates, batch)
        return self._prediction("rates", request, candidates, np.where(known, first, nan), further)

    def _prediction(
        self, source: Source, request: Request, candidates: Candidates, first: Floats, further: Floats
    ) -> LatencyPrediction | None:
        """Return the headrooms that these times leave; None if all are unknown."""
        if np.isnan(first).all():
            return None
        given, slots, capacity = self.parameters, candidates.slots, candidates.snapshot.capacity
        target, further_target = (_target(request, names) for names in (SLO_TTFT_MS, SLO_TPOT_MS))
        left = target - waited_seconds(request, candidates) if target else 0.0
        strictest = np.minimum(further_target, self._running.strictest(slots))
        headroom, further_headroom = left - first, strictest * given.slo_buffer_factor - further
        counts = np.isnan(first) | (target > 0 or not further_target)
        further_counts = np.full(len(slots), given.streaming_mode and (further_target > 0 or not target))
        if given.endpoint_role_label:
            further_counts &= ~candidates.where_label(given.endpoint_role_label, (_PREFILL,))

        columns = np.full((4, capacity), nan)
        headrooms = np.where(counts, headroom, 0.0), np.where(further_counts, further_headroom, 0.0)
        columns[:, slots] = (first, further, *headrooms)
        valid = np.zeros(capacity, dtype=np.bool_)
        valid[slots] = (~counts | (headroom > 0)) & (~further_counts | (further_headroom > 0))
        in_flight = candidates.snapshot.column(IN_FLIGHT)
        return LatencyPrediction(source, columns[0], columns[1], columns[2], columns[3], valid, in_flight.copy())


def _target(request: Request, names: tuple[str, ...]) -> float:
    """Return a target in seconds; 0 for none."""
    seconds = target_seconds(request.headers, names)
    return seconds if seconds < inf else 0.0
