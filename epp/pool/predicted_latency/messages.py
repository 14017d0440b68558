# SPDX-License-Identifier: Apache-2.0
"""Parameters of the producer of predicted latency, and messages of llm-d's prediction and training servers."""

from math import inf
from random import Random
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np

from epp.framework import Natural, Parameters, Positive, Tunable
from epp.framework.arrays import Floats
from epp.framework.quantities import parse_duration

_NS_PER_S = 1e9


class PredictedLatencyParameters(Parameters, frozen=True):
    """Predicted times, and limits."""

    streaming_mode: bool = False
    """Whether responses are streamed: the time to the first token and the time for each further token are predicted.
    With false, the time to the end of the response replaces the time to the first token, and further tokens do not
    count."""
    slo_buffer_factor: Annotated[Positive, Tunable(0.5, 2)] = 1.0
    """Factor of targets for further tokens; below 1 to keep a reserve."""
    predict_in_produce: bool = True
    """Publish predictions; with false, only training entries are collected."""
    endpoint_role_label: str = ""
    """Endpoint label whose value is sent as `pod_type`; further tokens do not count if it is `prefill`."""
    context_ttl: int | str = msgspec.field(default="5m", name="contextTTL")
    """Time after which a request without an end no longer counts as running: a duration, or nanoseconds."""
    prediction_timeout: int | str = "50ms"
    """Longest time that a request waits for the prediction server, before rates are used: a duration, or
    nanoseconds."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default instance."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight have one source."""
    use_encoder_cache_features: bool = False
    """Send prediction servers the number of media of a request, and the number that an endpoint has encoded before;
    with false, both are 0. Predictions from rates do not use these numbers."""
    encoder_cache_match_info_producer_name: str = ""
    """Name of the `mm-embeddings-cache-producer` for these numbers; empty for the default instance."""
    sampling_mean: Natural = 1000
    """Without effect, as in llm-d."""
    max_decode_token_samples_for_prediction: Natural = 0
    """Without effect, as in llm-d."""

    def __post_init__(self) -> None:
        for name, value in (("contextTTL", self.context_ttl), ("predictionTimeout", self.prediction_timeout)):
            try:
                limit = duration_seconds(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if not 0.0 < limit < inf:
                raise ValueError(f"{name} is {value!r}; it must be above 0")


def duration_seconds(value: int | str) -> float:
    """Return a duration, given as text or in nanoseconds; raises ValueError."""
    return value / _NS_PER_S if isinstance(value, int) else parse_duration(value)


_MS = 1e-3
Kind = Literal["ttft", "tpot"]
A = TypeVar("A")


class AnswerError(Exception):
    """The answer of a prediction server cannot be used."""


class Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An endpoint and a request, at the time of the pick."""

    kv_cache_percentage: float
    """0..1."""
    input_token_length: int
    num_request_waiting: int
    num_request_running: int
    prefix_cache_score: float
    """0..1."""
    prefill_tokens_in_flight: int
    num_tokens_generated: int
    encoder_input_size: int
    encoder_matched_size: int
    decode_tokens_in_flight: int
    pod_type: str = ""


class Entry(Row, frozen=True, gc=False, kw_only=True):
    """A row, and one measured time; the other time is 0."""

    actual_ttft_ms: float
    actual_tpot_ms: float
    timestamp: str
    """RFC 3339."""


class _Prediction(msgspec.Struct, gc=False):
    ttft_ms: float
    tpot_ms: float


class _Answer(msgspec.Struct):
    predictions: list[_Prediction]
    failed_predictions: int = 0


class Status(msgspec.Struct):
    is_ready: bool
    model_type: str = ""


def _read(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"the answer has an unexpected format: {error}") from None


def read_answer(body: bytes, count: int) -> Floats:
    """Return the times in seconds of each row: to the first token, and for each further token; raises AnswerError."""
    answer = _read(body, _Answer)
    if len(answer.predictions) != count or answer.failed_predictions:
        raise AnswerError(
            f"the answer has {len(answer.predictions)} predictions for {count} rows, {answer.failed_predictions} failed"
        )
    times = np.array([(each.ttft_ms, each.tpot_ms) for each in answer.predictions]).reshape(count, 2) * _MS
    if not (np.isfinite(times) & (times >= 0)).all():
        raise AnswerError("the answer has a time that is negative or infinite")
    return times


def read_status(body: bytes) -> Status:
    """Return the state of a server; raises AnswerError."""
    return _read(body, Status)


class TrainingBuffer:
    """Entries until the next transfer: a random sample of the added entries, with the same shares of both kinds."""

    def __init__(self, most: int, generator: Random | None = None) -> None:
        self._most = most
        self._random = generator or Random()  # noqa: S311  chooses samples, guards nothing
        self._added: dict[Kind, int] = {"ttft": 0, "tpot": 0}
        self._kept: dict[Kind, list[Entry]] = {"ttft": [], "tpot": []}

    def add(self, kind: Kind, entry: Entry) -> None:
        """Add an entry; if the buffer is full, all entries are kept with the same probability."""
        kept = self._kept[kind]
        self._added[kind] += 1
        if len(kept) < self._most:
            kept.append(entry)
        elif (place := self._random.randrange(self._added[kind])) < self._most:
            kept[place] = entry

    def take(self) -> tuple[list[Entry], int]:
        """Return the sample and the number of entries left out, and empty the buffer."""
        total = sum(self._added.values())
        first = self._kept["ttft"]
        if total > self._most:
            first = self._random.sample(first, round(self._most * self._added["ttft"] / total))
        further = self._kept["tpot"]
        if len(first) + len(further) > self._most:
            further = self._random.sample(further, self._most - len(first))
        self._added = {"ttft": 0, "tpot": 0}
        self._kept = {"ttft": [], "tpot": []}
        return first + further, total - len(first) - len(further)
