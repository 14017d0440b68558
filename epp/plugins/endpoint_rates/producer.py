# SPDX-License-Identifier: Apache-2.0
"""Publishes the speed of each endpoint: from profiles of its hardware at first, then learned from responses."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    METRICS_AT,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    RUNNING,
    WAITING,
    Candidates,
    DataKey,
    Datum,
    Endpoint,
    EndpointObserver,
    PreRequest,
    Producer,
    Request,
    Response,
    ResponseTiming,
    SchedulingResult,
    Snapshot,
)
from epp.framework.files import read_list
from epp.framework.plugin_status import endpoint_state
from epp.framework.quantities import parse_duration
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS, EndpointRates
from epp.plugins.endpoint_rates.estimate import Starting, estimate
from epp.plugins.endpoint_rates.fleet import RateFleet
from epp.plugins.endpoint_rates.learning import RateLearner
from epp.plugins.endpoint_rates.parameters import EndpointRatesParameters
from epp.plugins.endpoint_rates.places import PlacesLearner
from epp.plugins.endpoint_rates.profile import RateProfile, model_key
from epp.plugins.endpoint_rates.table import Hardware, RateTable, StartingRates

_OK = 200
_EVENTS_WITHOUT_TOKEN = 2
"""Events of a stream that carry no token: the role of the answer, and `[DONE]`."""
_MOST_MODELS = 20
"""Models whose rates are told of, the latest."""
_UPDATE_SECONDS = 0.1
"""Shortest time between two updates of learned rates."""
_STEPS_OF_HALF_LIFE = 64
_ANSWERS = 256
"""Answers that the mean length is taken over, about."""


class _Sent(NamedTuple):
    """Expected times of a response."""

    slot: int
    epoch: int
    target: Endpoint
    prefill_seconds: float
    """Time to the first token by the starting rates; 0 for no sample."""
    itl_seconds: float


class _Published(NamedTuple):
    rates: EndpointRates
    version: int
    at: float


class EndpointRatesProducer(
    Producer[EndpointRatesParameters],
    PreRequest[EndpointRatesParameters],
    ResponseTiming[EndpointRatesParameters],
    EndpointObserver[EndpointRatesParameters],
):
    """Publishes, for each slot, prompt tokens computed in a second and the time between two tokens (ITL).

    Rates start from profiles: that of the model, accelerator, engine and number of devices; else without the last of
    these, and so on; else that of the model on another accelerator, scaled by fp16 TFLOPS (the ITL by memory
    bandwidth); then the same for profiles of any model. `profiles` precede those of the file, these the built-in ones.
    Rates are proportional to devices and slices: 2 of 4 devices, or half a device's compute, have half the rate.
    Endpoints of unknown hardware get the median of the others.

    Each streamed response gives a sample of the prefill rate, `uncached prompt tokens in flight at the endpoint,
    including its own / seconds to the first token`: the rate that would have predicted the time to the first token
    under the load of that moment. `seconds from the first token to the last / (tokens - 1)` is a sample of the ITL; the
    tokens are those of `usage`, or, where the response has none, the events of the stream times the tokens in an event
    that the endpoint's responses with `usage` had.
    The learned rate is the profile's times the median of the last `window` ratios; its weight halves with each
    `halfLife` without a new sample and drops to 0 below a quarter. Endpoints without enough samples use the median
    ratio of those with the same hardware, or else of all. No samples: responses of another endpoint than the one
    picked, with another status than 200, with less than `minTokens` uncached tokens; and, for prefill rates, requests
    that went to several endpoints. Samples are dropped with the endpoint, and when its hardware or engine changes.

    A batch is taken for full at the most requests that an endpoint was ever seen to run, once it had a queue at several
    looks at such a batch.
    """

    plugin_type = "endpoint-rates-producer"
    writes = (ENDPOINT_RATES,)
    reads: tuple[Datum, ...] = (ACCELERATOR, IN_FLIGHT_TOKENS)
    only_streams = True

    def setup(self) -> None:
        given = self.parameters
        from_file = read_list("profilePath", given.profile_path, RateProfile) if given.profile_path else ()
        self._table = RateTable((*given.profiles, *from_file))
        self._base_model = model_key(given.base_model)
        self._last_model: tuple[str, str] | None = None
        """The model of the last request, and its key in the profiles."""
        self._fleet = RateFleet(given.engine_label_key, given.default_engine)
        half_life = parse_duration(given.half_life)
        window = max(given.window, given.min_samples)
        self.reads_response_body = given.learn
        if not given.learn:
            self.reads = (ACCELERATOR,)
        self._prefill, self._itl = (
            RateLearner(half_life_seconds=half_life, min_samples=given.min_samples, window=window) for _ in range(2)
        )
        self._places = PlacesLearner()
        self._looked_at = -inf
        self._output_tokens = DEFAULT_OUTPUT_TOKENS
        self._answers = 0
        self._tokens_per_event: dict[int, float] = {}
        """By slot, learned from responses that have both usage and events."""
        self._fade_seconds = half_life / _STEPS_OF_HALF_LIFE
        self._starting: dict[str, Starting] = {}
        self._by_kind: dict[str, tuple[tuple[Hardware, ...], Sequence[StartingRates]]] = {}
        """By model; for as long as there is no other hardware."""
        self._published: dict[str, _Published] = {}
        self._latest_model = given.base_model
        self._sent_key: DataKey[_Sent] = DataKey("endpoint-rates-sent", self.plugin_type, self.name)
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS, RUNNING, WAITING, METRICS_AT, IN_FLIGHT)

    def pool_rates(self, snapshot: Snapshot) -> EndpointRates:
        """Return rates without a request: those of the base model, or else of the model that was asked for last."""
        return self._rates(self.parameters.base_model or self._latest_model, snapshot)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        if not self._fleet.is_of(snapshot):
            return {"models": {}}
        shown = {key: each.rates for key, each in list(self._published.items())[-_MOST_MODELS:]}
        return {
            "outputTokens": self._output_tokens,
            "models": {
                key or "default": endpoint_state(
                    snapshot,
                    {
                        "prefillTokensPerSecond": rates.prefill_tokens_per_second,
                        "prefillSamples": rates.prefill_samples,
                        "itlBaseSeconds": rates.itl_base_seconds,
                        "itlSecondsPerRequest": rates.itl_seconds_per_request,
                        "itlSamples": rates.itl_samples,
                    },
                )
                for key, rates in shown.items()
            },
        }

    def produce(self, request: Request, candidates: Candidates) -> None:
        if not request.dry_run:
            self._latest_model = request.model
        request.put(ENDPOINT_RATES, self._rates(request.model, candidates.snapshot))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        if not (self.parameters.learn and request.body.streaming):
            return
        slot = result.primary.slot
        snapshot = result.primary.candidates.snapshot
        self._follow(snapshot)
        starting = self._starting_rates(self._profiled_model(request.model))
        match = request.get(self._match_key)
        own = max(0, request.prompt_tokens - (0 if match is None else match.tokens_at(slot)))
        expected = 0.0
        if own >= self.parameters.min_tokens and _is_alone(result, slot):
            ahead = own + snapshot.column(IN_FLIGHT_TOKENS).item(slot)
            expected = ahead / starting.prefill_tokens_per_second.item(slot)
        running, in_flight = snapshot.column(RUNNING).item(slot), snapshot.column(IN_FLIGHT).item(slot)
        batch = 1.0 + max(in_flight, running)  # the former where the latter is NaN
        itl_seconds = starting.itl_base_seconds.item(slot) + starting.itl_seconds_per_request.item(slot) * batch
        sent = _Sent(slot, self._prefill.epoch(slot), result.targets[0], expected, itl_seconds)
        request.put(self._sent_key, sent)

    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        sent = self._served_as_sent(request, response)
        if sent is not None and sent.prefill_seconds and seconds > 0:
            self._prefill.add(sent.slot, sent.epoch, sent.prefill_seconds / seconds, self.clock.now())

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        sent = self._served_as_sent(request, response)
        tokens = 0.0 if sent is None else self._tokens_of(sent.slot, response)
        if sent is not None and tokens > 0:
            self._answers = min(self._answers + 1, _ANSWERS)
            self._output_tokens += (tokens - self._output_tokens) / self._answers
        if sent is not None and tokens >= self.parameters.min_output_tokens and seconds > 0:
            ratio = sent.itl_seconds * (tokens - 1) / seconds
            self._itl.add(sent.slot, sent.epoch, ratio, self.clock.now())

    def _tokens_of(self, slot: int, response: Response) -> float:
        """Return the tokens of a response: as the endpoint counted them, or else by its events."""
        events = max(response.events - _EVENTS_WITHOUT_TOKEN, 0)
        if response.usage is None:
            return events * self._tokens_per_event.get(slot, 1.0)
        tokens = response.usage.completion_tokens
        if events and tokens >= self.parameters.min_output_tokens:
            ratio = tokens / events
            self._tokens_per_event[slot] = (self._tokens_per_event.get(slot, ratio) + ratio) / 2
        return tokens

    def slots_removed(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._tokens_per_event.pop(slot, None)
        for learner in (self._prefill, self._itl, self._places):
            learner.forget(*slots)

    def _served_as_sent(self, request: Request, response: Response) -> _Sent | None:
        sent = request.get(self._sent_key)
        if sent is None or response.status != _OK or response.served.hostport != sent.target.hostport:
            return None
        return sent

    def _rates(self, model: str, snapshot: Snapshot) -> EndpointRates:
        if snapshot.dry_run:
            return self._rates_as_they_are(model, snapshot)
        self._follow(snapshot)
        key = self._profiled_model(model)
        now = self.clock.now()
        if self.parameters.learn and now - self._looked_at >= _UPDATE_SECONDS:
            self._looked_at = now
            self._places.look(*(snapshot.column(one) for one in (RUNNING, WAITING, METRICS_AT)))
        rates = self._still_good(key, now)
        if rates is None:
            rates = self._estimated(self._starting_rates(key), snapshot, now)
            self._published[key] = _Published(rates, self._version, now)
        return rates

    def _rates_as_they_are(self, model: str, snapshot: Snapshot) -> EndpointRates:
        """Return the rates of a pool that is perhaps made up: nothing is learned from it, and nothing forgotten."""
        key, now, fleet = self._profiled_model(model), self.clock.now(), self._fleet
        if fleet.is_of(snapshot):
            rates = self._still_good(key, now)
            if rates is not None:
                return rates
        else:
            fleet = RateFleet(self.parameters.engine_label_key, self.parameters.default_engine)
            fleet.follow(snapshot)
        starting = Starting.of(self._table.look_up_all(key, fleet.hardware), fleet.kinds)
        return self._estimated(starting, snapshot, now)

    @property
    def _version(self) -> int:
        return self._prefill.version + self._itl.version + self._places.version

    def _still_good(self, key: str, now: float) -> EndpointRates | None:
        """Return the rates that were published last, unless it is time for others."""
        published, version = self._published.get(key), self._version
        if published is None:
            return None
        wait = _UPDATE_SECONDS if version != published.version else self._fade_seconds
        return published.rates if now - published.at < wait or not version else None

    def _estimated(self, starting: Starting, snapshot: Snapshot, now: float) -> EndpointRates:
        capacity = snapshot.capacity
        return estimate(
            starting,
            self._prefill.learned(capacity, now),
            self._itl.learned(capacity, now),
            output_tokens=self._output_tokens,
            places=self._places.learned(capacity),
        )

    def _follow(self, snapshot: Snapshot) -> None:
        if not self._fleet.is_of(snapshot):
            self.slots_removed(self._fleet.follow(snapshot))
            self._starting.clear()
            self._published.clear()

    def _starting_rates(self, key: str) -> Starting:
        starting = self._starting.get(key)
        if starting is None:
            hardware, by_kind = self._by_kind.get(key, ((), ()))
            if hardware != self._fleet.hardware:
                hardware = self._fleet.hardware
                by_kind = self._table.look_up_all(key, hardware)
                self._by_kind[key] = hardware, by_kind
            starting = self._starting[key] = Starting.of(by_kind, self._fleet.kinds)
        return starting

    def _profiled_model(self, model: str) -> str:
        """Return the key of the model, or of its base, in the profiles; empty if neither has any."""
        if self._last_model is None or self._last_model[0] != model:
            key = model_key(model)
            if key not in self._table.models:
                key = self._base_model if self._base_model in self._table.models else ""
            self._last_model = model, key
        return self._last_model[1]


def _is_alone(result: SchedulingResult, slot: int) -> bool:
    """Return whether the request goes to one endpoint only."""
    return len(result.profiles) == 1 or all(leg is None or leg.slot == slot for leg in result.profiles.values())
