# SPDX-License-Identifier: Apache-2.0
"""Publishes the predicted latency of a request at each endpoint, and learns from responses."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite, nan
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
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
    Positions,
    PreRequest,
    Producer,
    Records,
    Request,
    Response,
    ResponseTiming,
    SchedulingResult,
    Snapshot,
)
from epp.framework.datalayer import AffectedEndpoints, Follower
from epp.framework.expected_times import batch_sizes, target_seconds, uncached_tokens, waited_seconds
from epp.framework.headers import SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.scoring import Source
from epp.pool.predicted_latency.messages import Entry, Kind, PredictedLatencyParameters, Row, duration_seconds
from epp.pool.predicted_latency.metrics import METRICS, LatencyMetrics, RunningTargets
from epp.pool.predicted_latency.quantiles import (
    Expected,
    LatencyLearner,
    Lesson,
    Outlook,
    QuantilePrediction,
    load_buckets,
)
from epp.pool.predicted_latency.server import FAILED, READY, TRAINED, PredictionClient, ServerSettings

_OK = 200
_PREFILL = "prefill"
_EVENTS_WITHOUT_TOKEN = 2
"""Events of a stream without a token: the role of the message, and `[DONE]`."""
_MS_PER_S = 1e3
_PREDICTIONS = PluginMetric(
    "latency_predictions", "Routed requests, by the source of their predictions.", ("source",), is_counter=True
)


class _Answer(NamedTuple):
    """Times from a prediction server, for the endpoints at the time of the request."""

    endpoints: Records[Endpoint | None]
    slots: Positions
    times: Floats
    took_seconds: float


@dataclass(slots=True)
class _Sent:
    """A request at its endpoint."""

    slot: int
    target: Endpoint
    waited: float
    predicted: dict[Kind, tuple[float, float]] = field(default_factory=dict)
    """Predicted seconds, and duration of the prediction."""
    lessons: dict[Kind, Lesson] = field(default_factory=dict)
    """Predictions that the response is compared with."""
    rows: dict[Kind, Row] = field(default_factory=dict)
    """Features at the time of the pick, of the endpoint that computes the prompt and of the one that generates."""
    number: int = 0
    """Number among the running requests with a target."""
    first_seconds: float = nan
    """Seconds from the request's arrival to the first byte of the response."""


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

    Expected times are computed from the rates of an `endpoint-rates-producer`, as in `slo-fit-filter`; endpoints whose
    rates are based neither on a profile nor on a response have no prediction. The ratio of measured to expected time is
    learned as a distribution: for each model, accelerator class and endpoint, and by prompt and load. It predicts p50
    and p90 once the endpoint or its class has had ten responses under similar load; before that, both are the expected
    time. The expected time is also used as p50 while its errors are smaller. Headrooms are those of p90 if the request
    has the target, else of p50.

    If the environment variable `PREDICTION_SERVER_URL` names prediction servers of llm-d, a request is held for their
    answer for at most `predictionTimeout`; without an answer, and while no server is ready, the predictions above are
    used. Measured times are sent to `TRAINING_SERVER_URL`. Simulated requests and shadow profiles use rates only.

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
        self._outlook_key: DataKey[Mapping[Kind, Outlook]] = DataKey("latency-outlook", self.plugin_type, self.name)
        self._sent_key: DataKey[_Sent] = DataKey("latency-sent", self.plugin_type, self.name)
        self.writes = (self._key,)
        self._media_key = MEDIA_MATCH.produced_by(given.encoder_cache_match_info_producer_name)
        media = (self._media_key,) if given.use_encoder_cache_features else ()
        self.reads = (ENDPOINT_RATES, self._match_key, IN_FLIGHT_TOKENS, IN_FLIGHT, *media)
        self.may_read = (PROMPT_TOKENS, KV_USAGE, ACCELERATOR, *LOAD_INPUTS)
        self.only_streams = given.streaming_mode
        self._running = RunningTargets(duration_seconds(given.context_ttl))
        self._metrics = LatencyMetrics()
        self._learner = LatencyLearner()
        self._sources: dict[Source | Literal["none"], int] = {"server": 0, "learned": 0, "rates": 0, "none": 0}
        settings = ServerSettings.of(os.environ)
        limit = duration_seconds(given.prediction_timeout)
        self._client = None if settings is None else PredictionClient(settings, limit_seconds=limit)
        self._trains = settings is not None and bool(settings.training_url)
        self.per_candidate = self._client is not None  # a server is sent a row for each candidate

    @property
    def warnings(self) -> Sequence[str]:
        given, default = self.parameters, PredictedLatencyParameters()
        unused = {
            "samplingMean": given.sampling_mean != default.sampling_mean,
            "maxDecodeTokenSamplesForPrediction": given.max_decode_token_samples_for_prediction != 0,
        }
        return [f"{name} has no effect" for name, is_given in unused.items() if is_given]

    @property
    def inputs(self) -> InputState:
        return InputState() if self._client is None else InputState(self._client.problems)

    @property
    def samples(self) -> Sequence[Sample]:
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

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:  # noqa: ARG002  no tags
        if self._client is not None:
            await self._client.run()

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        primary, prefill = result.primary, result.profiles.get(_PREFILL)
        snapshot = primary.candidates.snapshot
        first = primary.slot if prefill is None else prefill.slot
        sent = _Sent(primary.slot, result.targets[0], waited_seconds(request, primary.candidates))
        prediction = request.get(self._key)
        self._sources["none" if prediction is None else prediction.source_at(first)] += 1
        if prediction is not None:
            answer = request.get(self._answer_key)
            took = answer.took_seconds if answer is not None and prediction.source == "server" else 0.0
            sent.predicted = {
                "ttft": (prediction.ttft_seconds.item(first), took),
                "tpot": (prediction.tpot_seconds.item(primary.slot), took),
            }
        for kind, outlook in (request.get(self._outlook_key) or {}).items():
            lesson = self._learner.lesson(outlook, snapshot, first if kind == "ttft" else primary.slot)
            if lesson is not None:
                sent.lessons[kind] = lesson
        if self._trains:
            rows = self._rows(request, snapshot, np.array([first, primary.slot], dtype=np.intp))
            sent.rows = {"ttft": rows[0], "tpot": rows[1]}
        target = target_seconds(request.headers, SLO_TPOT_MS)
        if self.parameters.streaming_mode and target < inf:
            sent.number = self._running.add(sent.slot, target, self.clock.now())
        request.put(self._sent_key, sent)

    def request_failed(self, request: Request, result: SchedulingResult) -> None:  # noqa: ARG002  as the role has it
        sent = request.get(self._sent_key)
        if sent is not None:
            self._running.remove(sent.slot, sent.number)

    def interrupted(self, request: Request, response: Response) -> None:  # noqa: ARG002  as the role has it
        """Forget the request; the time to its first token, if any, has been learned."""
        sent = request.get(self._sent_key)
        if sent is not None:
            self._running.remove(sent.slot, sent.number)

    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        sent = request.get(self._sent_key)
        if sent is None:
            return
        sent.first_seconds = seconds
        if self.parameters.streaming_mode and request.body.streaming:
            self._measured("ttft", request, response, sent, seconds)

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time for each further token, or the time of the whole response if it is not streamed."""
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
        self._running.forget(slots)
        self._learner.forget(slots)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return {"models": self._learner.dump(snapshot)}

    def _measured(self, kind: Kind, request: Request, response: Response, sent: _Sent, seconds: float) -> None:
        """Record a measured time; the time to the first token starts at the arrival of the request."""
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
            p90=lesson.p90 if (lesson := sent.lessons.get(kind)) is not None else nan,
        )
        if lesson is not None:
            self._learner.learn(kind, lesson, at_endpoint)
        row = sent.rows.get(kind)
        if row is not None and self._client is not None:
            milliseconds = at_endpoint * _MS_PER_S
            entry = Entry(
                *msgspec.structs.astuple(row),
                actual_ttft_ms=milliseconds if kind == "ttft" else 0.0,
                actual_tpot_ms=milliseconds if kind == "tpot" else 0.0,
                timestamp=datetime.fromtimestamp(self.clock.utc(), UTC).isoformat(),
            )
            self._client.buffer.add(kind, entry)

    async def _ask(self, client: PredictionClient, request: Request, candidates: Candidates) -> None:
        began = self.clock.now()
        times = await client.predict(self._rows(request, candidates.snapshot, candidates.slots))
        if times is not None:
            took = self.clock.now() - began
            request.put(self._answer_key, _Answer(candidates.snapshot.endpoints, candidates.slots, times, took))

    def _rows(self, request: Request, snapshot: Snapshot, slots: Positions) -> list[Row]:
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
        """Return the predictions of a server; unknown for endpoints that were replaced after the request to it."""
        answer = request.get(self._answer_key)
        if answer is None:
            return None
        snapshot = candidates.snapshot
        times = np.full((max(snapshot.capacity, len(answer.endpoints.values)), 2), nan)
        times[answer.slots] = answer.times
        if snapshot.endpoints is not answer.endpoints:
            times[list(snapshot.endpoints.changed_since(answer.endpoints.values))] = nan
        first, further = times[candidates.slots].T
        count = np.zeros(len(candidates))
        found = [QuantilePrediction(each, each, ~np.isnan(each), count, each) for each in (first, further)]
        return self._prediction("server", request, candidates, *found)

    def _from_rates(self, request: Request, candidates: Candidates) -> LatencyPrediction | None:
        """Return the expected times by rates, or the times learned from responses."""
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            return None
        uncached = uncached_tokens(request, candidates, request.get(self._match_key))
        batch = batch_sizes(candidates) + 1
        further = rates.itl_seconds(candidates, batch)
        if self.parameters.streaming_mode:
            first = rates.profiled_ttft_seconds(candidates, uncached, batch)
        else:
            wanted = request.body.max_output_tokens
            tokens = rates.output_tokens if wanted is None else min(float(wanted), rates.output_tokens)
            first = rates.seconds(candidates, uncached + candidates.values(IN_FLIGHT_TOKENS), tokens)
        first = np.where(rates.known[candidates.slots], first, nan)
        ahead, waiting = candidates.values(IN_FLIGHT_TOKENS), candidates.values(WAITING)
        first_buckets, further_buckets = load_buckets(uncached, ahead, waiting, batch)
        expected: dict[Kind, Expected] = {
            "ttft": Expected(first, first + further, first_buckets),  # a prompt waits for the current step
            "tpot": Expected(further, further, further_buckets),
        }
        now = self.clock.now()
        outlooks = {
            kind: self._learner.predict(kind, request.model, candidates, each, now) for kind, each in expected.items()
        }
        if not request.dry_run:
            request.put(self._outlook_key, outlooks)
        found, further_found = outlooks["ttft"].found, outlooks["tpot"].found
        return self._prediction("learned" if found.sure.any() else "rates", request, candidates, found, further_found)

    def _prediction(
        self,
        source: Source,
        request: Request,
        candidates: Candidates,
        first: QuantilePrediction,
        further: QuantilePrediction,
    ) -> LatencyPrediction | None:
        """Return the prediction with these times and their headrooms; None if all times are unknown."""
        if np.isnan(first.p50).all():
            return None
        given, slots, capacity = self.parameters, candidates.slots, candidates.snapshot.capacity
        target, further_target = (_target(request, names) for names in (SLO_TTFT_MS, SLO_TPOT_MS))
        left = target - waited_seconds(request, candidates) if target else 0.0
        strictest = np.minimum(further_target, self._running.strictest(slots))
        headroom = left - (first.p90 if target else first.p50)
        further_headroom = strictest * given.slo_buffer_factor - (further.p90 if further_target else further.p50)
        counts = np.isnan(first.p50) | (target > 0 or not further_target)
        further_counts = np.full(len(slots), given.streaming_mode and (further_target > 0 or not target))
        if given.endpoint_role_label:
            further_counts &= ~candidates.where_label(given.endpoint_role_label, (_PREFILL,))
        found = {
            "ttft_seconds": first.p50,
            "tpot_seconds": further.p50,
            "ttft_p90_seconds": first.p90,
            "tpot_p90_seconds": further.p90,
            "samples": np.minimum(first.samples, further.samples) if given.streaming_mode else first.samples,
            "ttft_headroom": np.where(counts, headroom, 0.0),
            "tpot_headroom": np.where(further_counts, further_headroom, 0.0),
        }
        columns = np.full((len(found), capacity), nan)
        columns[:, slots] = tuple(found.values())
        masks = np.zeros((2, capacity), dtype=np.bool_)
        masks[0, slots] = first.sure & (further.sure if given.streaming_mode else True)
        masks[1, slots] = (~counts | (headroom > 0)) & (~further_counts | (further_headroom > 0))
        dispatched = candidates.snapshot.column(IN_FLIGHT).copy()
        by_name = dict(zip(found, columns, strict=True))
        return LatencyPrediction(source, **by_name, sure=masks[0], valid=masks[1], dispatched=dispatched)


def _target(request: Request, names: tuple[str, ...]) -> float:
    """Return a target in seconds; 0 if the request has none."""
    seconds = target_seconds(request.headers, names)
    return seconds if seconds < inf else 0.0
