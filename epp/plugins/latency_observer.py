# SPDX-License-Identifier: Apache-2.0
"""Producers of the tokens in flight, and of the time to the first token at each endpoint under different loads."""

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import (
    IN_FLIGHT,
    IN_FLIGHT_COST,
    IN_FLIGHT_TOKENS,
    OBSERVED_LATENCY,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Count,
    DataKey,
    Endpoint,
    EndpointObserver,
    Floats,
    Natural,
    NonNegative,
    ObservedLatency,
    Parameters,
    Plugin,
    PreRequest,
    Producer,
    Request,
    Response,
    ResponseTiming,
    SchedulingResult,
    Snapshot,
    Stability,
)
from epp.framework.expected_times import waited_seconds
from epp.framework.plugin_status import endpoint_state
from epp.framework.quantities import duration_setting


class InflightLoadParameters(Parameters, frozen=True):
    """Estimate of the output, and the source of prefix matches."""

    add_estimated_output_tokens: bool = False
    """Add an estimate of the output: `outputRatio` times the prompt, within the two limits."""
    output_ratio: NonNegative = 1.5
    """Output tokens expected for each prompt token."""
    max_estimated_output_tokens: Natural | None = None
    """Upper limit of the estimate; the request's own output limit always applies."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured. Empty for the default one; or for the only
    other producer declared before, if no plugin declared before reads or writes the matches of the default one."""
    sync_cross_replica_state: bool = True
    """Accepted for compatibility: each picker counts its own requests."""
    output_estimator: Literal["static", "sketch"] = "static"
    """Accepted for compatibility: the estimate is `outputRatio` times the prompt, also with `sketch`."""
    sketch: Mapping[str, Any] | None = None
    """Accepted for compatibility, without effect."""


class InflightLoadProducer(PreRequest[InflightLoadParameters]):
    """Publishes `prompt_tokens - matched_tokens`, plus the estimated output if configured.

    The cost is published for the target of each profile that ran; without a prefix match, the whole prompt counts. It
    is added to the target's tokens in flight until the first token. The estimated output counts for the primary target
    only. All instances share one output.
    """

    plugin_type = "inflight-load-producer"
    writes = (IN_FLIGHT_COST, IN_FLIGHT_TOKENS)

    @classmethod
    def parameters_beside(
        cls, parameters: InflightLoadParameters, declared: Sequence[Plugin[Any]]
    ) -> InflightLoadParameters:
        """Return the parameters with the only producer of prefix matches that is declared, if it is not the default."""
        used = {datum for each in declared for datum in (*each.reads, *each.writes)}
        producers = {
            datum.producer
            for each in declared
            for datum in each.writes
            if isinstance(datum, DataKey) and datum.name == PREFIX_MATCH.name
        }
        if parameters.prefix_match_info_producer_name or PREFIX_MATCH in used or len(producers) != 1:
            return parameters
        return msgspec.structs.replace(parameters, prefix_match_info_producer_name=producers.pop())

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS)

    @property
    def warnings(self) -> Sequence[str]:
        if self.parameters.output_estimator == "static":
            return ()
        return ["outputEstimator: sketch is not supported: outputs are estimated as outputRatio times the prompt"]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        match = request.get(self._match_key)
        costs: dict[str, int] = {}
        for profile, leg in result.profiles.items():
            if leg is not None:
                cached = 0 if match is None else match.tokens_at(leg.slot)
                costs[profile] = max(0, request.prompt_tokens - cached)
        costs[result.primary.profile] += self._estimated_output(request)
        request.put(IN_FLIGHT_COST, costs)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return endpoint_state(
            snapshot, {"requests": snapshot.column(IN_FLIGHT), "tokens": snapshot.column(IN_FLIGHT_TOKENS)}
        )

    def _estimated_output(self, request: Request) -> int:
        if not self.parameters.add_estimated_output_tokens:
            return 0
        estimate = int(self.parameters.output_ratio * request.prompt_tokens)
        limits = (self.parameters.max_estimated_output_tokens, request.body.max_output_tokens)
        return max(0, min([estimate, *(limit for limit in limits if limit is not None)]))


_OK = 200
_FLOOR_PERCENTILE, _BAND = 10, 10
_AT_A_TIME = 16
"""Endpoints whose percentiles one request computes, in two milliseconds."""


class LatencyObserverParameters(Parameters, frozen=True):
    """Windows and percentiles."""

    interval_duration: str = "1s"
    """Minimum time between two computations."""
    max_observation_age: str = "3m"
    """Age from which a measured time no longer counts, except for the floor."""
    max_requests: Count = 100
    """Number of the latest requests of an endpoint that count, except for the floor."""
    min_requests: Count = 10
    """Minimum number of requests for percentiles to be used."""
    low_percentile: Annotated[float, Meta(gt=0, lt=100)] = 25.0
    """Percentile of times at low load."""
    typical_percentile: Annotated[float, Meta(gt=0, lt=100)] = 50.0
    """Percentile of times at typical load; above `lowPercentile`."""
    window_size: Count = 5000
    """Maximum requests of a bucket; at least `maxRequests`."""
    bucket_duration: str = "1m"
    """Duration of one bucket, whose 10th percentile becomes an entry of the history for the floor."""
    bucket_history_size: Annotated[int, Meta(ge=2)] = 1000
    """Maximum entries of the history; beyond it, the highest entry is dropped."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight have one source."""

    def __post_init__(self) -> None:
        if self.low_percentile >= self.typical_percentile:
            raise ValueError(
                f"lowPercentile is {self.low_percentile:g}; it must be below typicalPercentile, "
                f"{self.typical_percentile:g}"
            )
        if self.window_size < self.max_requests:
            raise ValueError(f"windowSize is {self.window_size}; it must be at least maxRequests, {self.max_requests}")


class _Sent(NamedTuple):
    """A request at its endpoint."""

    slot: int
    target: Endpoint
    in_flight: float
    """Requests in flight at the endpoint before it."""
    waited: float
    """Wait from its arrival to the pick, in seconds."""


class _Measured(NamedTuple):
    at: float
    seconds: float
    in_flight: float


class _Observed:
    """Measured times of one endpoint."""

    def __init__(self, given: LatencyObserverParameters, now: float) -> None:
        self.recent: deque[_Measured] = deque(maxlen=given.max_requests)
        self.bucket: deque[float] = deque(maxlen=given.window_size)
        self.bucket_began = now
        self.history: list[float] = []
        """10th percentiles of former buckets, the lowest first."""
        self.count = 0


class LatencyObserver(
    Producer[LatencyObserverParameters],
    PreRequest[LatencyObserverParameters],
    ResponseTiming[LatencyObserverParameters],
    EndpointObserver[LatencyObserverParameters],
):
    """Publishes, for each endpoint, times to the first token of streams, and the requests in flight at these times.

    Times are the percentiles `lowPercentile` and `typicalPercentile` of the latest requests. The requests in flight are
    the mean of those whose times are within 10 percentiles. The floor is the 10th percentile of the history, whose
    entries are the 10th percentiles of former buckets; without a history, that of the latest requests. Percentiles are
    used from `minRequests` on. It may be listed among the sources of `dataLayer`, without effect.
    """

    plugin_type = "latency-observer-producer-hub"
    stability = Stability.ALPHA
    only_streams = True
    reads = (IN_FLIGHT,)

    def setup(self) -> None:
        given = self.parameters
        self._key = OBSERVED_LATENCY.produced_by(self.name)
        self._sent_key: DataKey[_Sent] = DataKey("latency-observed", self.plugin_type, self.name)
        self.writes = (self._key,)
        self._interval = _seconds("intervalDuration", given.interval_duration)
        self._age = _seconds("maxObservationAge", given.max_observation_age)
        self._bucket = _seconds("bucketDuration", given.bucket_duration)
        self._observed: dict[int, _Observed] = {}
        self._due: deque[int] = deque()
        self._due_at = 0.0
        self._published = ObservedLatency.of(np.zeros((0, 6)))

    def produce(self, request: Request, candidates: Candidates) -> None:
        if not request.dry_run:
            self._update()
        found, capacity = self._published, candidates.snapshot.capacity
        request.put(self._key, found if len(found.values) >= capacity else found.of(_padded(found.values, capacity)))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        candidates, slot = result.primary.candidates, result.primary.slot
        in_flight = candidates.snapshot.column(IN_FLIGHT).item(slot)
        request.put(self._sent_key, _Sent(slot, result.targets[0], in_flight, waited_seconds(request, candidates)))

    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        sent = request.get(self._sent_key)
        if sent is None or not request.body.streaming or response.status != _OK:
            return
        if response.served.hostport != sent.target.hostport or not seconds > sent.waited:
            return
        now = self.clock.now()
        observed = self._observed.setdefault(sent.slot, _Observed(self.parameters, now))
        observed.count += 1
        observed.recent.append(_Measured(now, seconds - sent.waited, sent.in_flight))
        observed.bucket.append(seconds - sent.waited)

    def slots_removed(self, slots: Sequence[int]) -> None:
        values = self._published.values.copy()
        values[[slot for slot in slots if slot < len(values)]] = 0.0
        self._published = ObservedLatency.of(values)
        for slot in slots:
            self._observed.pop(slot, None)

    def _update(self) -> None:
        """Compute some of the endpoints that are due."""
        now = self.clock.now()
        if not self._due and now >= self._due_at:
            self._due_at = now + self._interval
            self._due.extend(self._observed)
        if not self._due:
            return
        some = [self._due.popleft() for _ in range(min(_AT_A_TIME, len(self._due)))]
        values = _padded(self._published.values, max(some) + 1)
        for slot in some:
            if slot in self._observed:
                values[slot] = self._row(self._observed[slot], now)
        self._published = ObservedLatency.of(values)

    def _row(self, observed: _Observed, now: float) -> tuple[float, ...]:
        """Return the fields of ObservedLatency; 0 for unknown ones."""
        given, recent = self.parameters, observed.recent
        while recent and now - recent[0].at > self._age:
            recent.popleft()
        if now - observed.bucket_began >= self._bucket:
            if observed.bucket:
                insort(observed.history, float(np.percentile(observed.bucket, _FLOOR_PERCENTILE)))
                del observed.history[given.bucket_history_size :]
            observed.bucket.clear()
            observed.bucket_began = now
        times = np.array([each.seconds for each in recent])
        ends = observed.history or times
        floor = 0.0
        if len(ends) and observed.count >= given.min_requests:
            floor = float(np.percentile(ends, _FLOOR_PERCENTILE))
        if len(recent) < given.min_requests:
            return (floor, 0.0, 0.0, 0.0, 0.0, 0.0)
        in_flight = np.array([each.in_flight for each in recent])[times.argsort(kind="stable")]
        percentiles = (given.low_percentile, given.typical_percentile)
        loads = [_around(in_flight, percentile) for percentile in percentiles]
        return (floor, *np.percentile(times, percentiles).tolist(), *loads, 1.0)


def _padded(values: NDArray[np.float64], slots: int) -> NDArray[np.float64]:
    """Return a copy with a row for each of at least `slots` slots."""
    return np.pad(values, ((0, max(slots - len(values), 0)), (0, 0)))


def _around(values: Floats, percentile: float) -> float:
    """Return the mean of the values, ordered by their times, within 10 percentiles of `percentile`."""
    last = len(values) - 1
    first, end = (round(last * min(max(percentile + side, 0), 100) / 100) for side in (-_BAND, _BAND))
    return float(values[first : end + 1].mean())


def _seconds(name: str, text: str) -> float:
    seconds = duration_setting(name, text, positive=False)
    if seconds <= 0:
        raise ValueError(f"{name} is {text!r}; it must be above 0")
    return seconds
