# SPDX-License-Identifier: Apache-2.0
"""Producer of the rates of each endpoint, from profiles of its hardware first, then learned from responses."""

from collections.abc import Sequence
from math import inf
from typing import Annotated, NamedTuple

from msgspec import Meta

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
    Count,
    DataKey,
    Datum,
    Endpoint,
    EndpointObserver,
    Parameters,
    PreRequest,
    Producer,
    Request,
    Response,
    ResponseTiming,
    SchedulingResult,
    Snapshot,
)
from epp.framework.expected_times import DEFAULT_OUTPUT_TOKENS, EndpointRates
from epp.framework.plain_yaml import read_list
from epp.framework.plugin_status import endpoint_state
from epp.framework.quantities import duration_setting, parse_duration
from epp.framework.sharing import Shareable
from epp.plugins.endpoint_rates.estimate import Fleet, InitialRates, estimate
from epp.plugins.endpoint_rates.learning import PlacesLearner, RateLearner, SharedRates
from epp.plugins.endpoint_rates.profiles import Hardware, KindRates, RateProfile, RateTable, ServerProfile, model_key


class EndpointRatesParameters(Parameters, frozen=True):
    """Profiles, and learning from responses."""

    profile_path: str = ""
    """Path of a YAML or JSON file with a list of profiles, as in `profiles`; read with the configuration."""
    profiles: tuple[RateProfile, ...] = ()
    """Profiles with precedence over those of the file."""
    server_profiles: tuple[ServerProfile, ...] = ()
    """Files of `epp calibrate`, with precedence over `profiles`."""
    base_model: str = ""
    """Model whose profiles apply to models without profiles, such as the base model of LoRA adapters."""
    engine_label_key: str = "llm-d.ai/engine-type"
    """Endpoint label with the name of the engine."""
    default_engine: str = "vllm"
    """Engine of endpoints without that label."""
    learn: bool = True
    """Learn from responses; false keeps the rates of the profiles."""
    min_tokens: Count = 256
    """Minimum uncached prompt tokens of a sample of the prefill rate; with fewer, other work dominates the time."""
    min_output_tokens: Annotated[int, Meta(ge=2)] = 16
    """Minimum generated tokens of a sample of the time between two tokens."""
    min_samples: Count = 5
    """Minimum samples of an endpoint for its learned rate to be used."""
    window: Count = 31
    """Number of the latest samples of an endpoint whose median is used."""
    half_life: str = "10m"
    """Time without new samples in which the learned rate loses half of its weight."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured; empty for the default one."""

    def __post_init__(self) -> None:
        if not 0.0 < duration_setting("halfLife", self.half_life, positive=False) < inf:
            raise ValueError(f"halfLife is {self.half_life!r}; it must be above 0")


_OK = 200
_EVENTS_WITHOUT_TOKEN = 2
"""Events of a stream without a token: the role of the answer, and `[DONE]`."""
_MOST_MODELS = 20
"""Maximum models whose rates are dumped, latest first."""
_UPDATE_SECONDS = 0.1
"""Time for which published rates are used again, while rates are learned."""
_MEAN_RESPONSES = 256
"""Approximate number of responses in the mean length."""


class _Sent(NamedTuple):
    """Expected times of a response."""

    slot: int
    epoch: int
    target: Endpoint
    prefill_seconds: float
    """Time to the first token by the initial rates; 0 to take no sample."""
    itl_seconds: float


class _Published(NamedTuple):
    rates: EndpointRates
    at: float


class EndpointRatesProducer(
    Producer[EndpointRatesParameters],
    PreRequest[EndpointRatesParameters],
    ResponseTiming[EndpointRatesParameters],
    EndpointObserver[EndpointRatesParameters],
    Shareable,
):
    """Publishes, for each slot, the prompt tokens computed per second and the time between two tokens (ITL).

    Rates start from profiles. The best profile matches the model, accelerator, engine and number of devices; otherwise
    the last of these is ignored, then the last two, and so on. Without a match, the profile of the model on another
    accelerator is scaled by fp16 TFLOPS (the ITL by memory bandwidth); then the same applies to profiles of any model.
    `profiles` have precedence over those of the file, and these over the built-in profiles. Rates are proportional to
    devices and slices: 2 of 4 devices have half the rate. Endpoints with unknown hardware get the median of the others.

    Each streamed response gives a sample of the prefill rate: `uncached prompt tokens in flight at the endpoint,
    including its own / seconds to the first token`. A sample of the ITL is `seconds from the first token to the last /
    (tokens - 1)`. The tokens are those of `usage`; without it, the events times the tokens per event in the endpoint's
    responses with `usage`.

    The learned rate is the profile's times the median of the last `window` ratios. Its weight halves with each
    `halfLife` without a new sample and drops to 0 below a quarter. Endpoints without enough samples use the median
    ratio of those with the same hardware, else of all. A response gives no sample if it comes from an endpoint other
    than the picked one, or has a status other than 200; and none of the prefill rate if its prompt has fewer than
    `minTokens` uncached tokens, or if the request has several endpoints. Samples are dropped when the endpoint leaves
    or its hardware or engine changes. With `--shared-state`, the ratio of the picker with most samples is used.

    The batch of an endpoint counts as full at the largest number of running requests seen so far, once several reports
    show a queue behind a batch of that size.
    """

    plugin_type = "endpoint-rates-producer"
    writes = (ENDPOINT_RATES,)
    reads: tuple[Datum, ...] = (ACCELERATOR, IN_FLIGHT_TOKENS)
    only_streams = True
    is_lasting = True

    def setup(self) -> None:
        given = self.parameters
        from_file = read_list("profilePath", given.profile_path, RateProfile) if given.profile_path else ()
        measured = [each.rates() for each in given.server_profiles]
        self._table = RateTable((*measured, *given.profiles, *from_file))
        self._base_model = model_key(given.base_model)
        self._last_model: tuple[str, str] | None = None
        """Model of the last request, and its key in the profiles."""
        self._fleet = self._fleet_of(Snapshot())
        half_life = parse_duration(given.half_life)
        window = max(given.window, given.min_samples)
        self.reads_response_body = given.learn
        if not given.learn:
            self.reads = (ACCELERATOR,)
        self._prefill, self._itl = (
            RateLearner(half_life_seconds=half_life, min_samples=given.min_samples, window=window) for _ in range(2)
        )
        self._shared = SharedRates(self._prefill, self._itl)
        self._places = PlacesLearner()
        self._places_updated_at = -inf
        self._output_tokens = DEFAULT_OUTPUT_TOKENS
        self._responses = 0
        self._tokens_per_event: dict[int, float] = {}
        """Tokens per event of each slot, learned from responses with both usage and events."""
        self._initial: dict[str, InitialRates] = {}
        self._by_kind: dict[str, tuple[tuple[Hardware, ...], Sequence[KindRates]]] = {}
        """Rates of each kind of hardware by model, valid until the kinds change."""
        self._published: dict[str, _Published] = {}
        self._latest_model = given.base_model
        self._sent_key: DataKey[_Sent] = DataKey("endpoint-rates-sent", self.plugin_type, self.name)
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS, RUNNING, WAITING, METRICS_AT, IN_FLIGHT)

    def pool_rates(self, snapshot: Snapshot) -> EndpointRates:
        """Return rates without a request: those of the base model, else of the last requested model."""
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
        self._update_kinds(snapshot)
        initial = self._initial_rates(self._profiled_model(request.model))
        match = request.get(self._match_key)
        own = max(0, request.prompt_tokens - (0 if match is None else match.tokens_at(slot)))
        expected, legs = 0.0, result.profiles.values()
        if own >= self.parameters.min_tokens and all(leg is None or leg.slot == slot for leg in legs):
            ahead = own + snapshot.column(IN_FLIGHT_TOKENS).item(slot)
            expected = ahead / initial.prefill_tokens_per_second.item(slot)
        running, in_flight = snapshot.column(RUNNING).item(slot), snapshot.column(IN_FLIGHT).item(slot)
        batch = 1.0 + max(in_flight, running)  # in_flight if running is NaN
        itl_seconds = initial.itl_base_seconds.item(slot) + initial.itl_seconds_per_request.item(slot) * batch
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
            self._responses = min(self._responses + 1, _MEAN_RESPONSES)
            self._output_tokens += (tokens - self._output_tokens) / self._responses
        if sent is not None and tokens >= self.parameters.min_output_tokens and seconds > 0:
            ratio = sent.itl_seconds * (tokens - 1) / seconds
            self._itl.add(sent.slot, sent.epoch, ratio, self.clock.now())

    def _tokens_of(self, slot: int, response: Response) -> float:
        """Return the tokens of a response, from its usage, else estimated from its events."""
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

    @property
    def share_name(self) -> str:
        return f"rates/{self.name}"

    def changes(self, snapshot: Snapshot) -> bytes | None:
        return self._shared.take(snapshot, self.clock.now()) if self._fleet.is_of(snapshot) else None

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        if not self.parameters.learn:
            return 0
        self._update_kinds(snapshot)
        return self._shared.apply(payload, snapshot, self.clock.now())

    def _served_as_sent(self, request: Request, response: Response) -> _Sent | None:
        sent = request.get(self._sent_key)
        if sent is None or response.status != _OK or response.served.hostport != sent.target.hostport:
            return None
        return sent

    def _rates(self, model: str, snapshot: Snapshot) -> EndpointRates:
        key, now, given = self._profiled_model(model), self.clock.now(), self.parameters
        if snapshot.dry_run and not self._fleet.is_of(snapshot):  # it may be hypothetical
            fleet = self._fleet_of(snapshot)
            initial = InitialRates.of([self._table.look_up(key, one) for one in fleet.hardware], fleet.kinds)
            return self._estimated(initial, snapshot, now)
        self._update_kinds(snapshot)
        published = self._published.get(key)
        if published is not None and (now - published.at < _UPDATE_SECONDS or not given.learn):
            return published.rates
        if given.learn and not snapshot.dry_run and now - self._places_updated_at >= _UPDATE_SECONDS:
            self._places_updated_at = now
            self._places.update(*(snapshot.column(one) for one in (RUNNING, WAITING, METRICS_AT)))
        rates = self._estimated(self._initial_rates(key), snapshot, now)
        if not snapshot.dry_run:
            self._published[key] = _Published(rates, now)
        return rates

    def _estimated(self, initial: InitialRates, snapshot: Snapshot, now: float) -> EndpointRates:
        capacity = snapshot.capacity
        return estimate(
            initial,
            self._prefill.learned(capacity, now),
            self._itl.learned(capacity, now),
            output_tokens=self._output_tokens,
            places=self._places.learned(capacity),
        )

    def _update_kinds(self, snapshot: Snapshot) -> None:
        if not self._fleet.is_of(snapshot):
            former, self._fleet = self._fleet, self._fleet_of(snapshot)
            self.slots_removed(self._fleet.changed_since(former))
            self._initial.clear()
            self._published.clear()

    def _fleet_of(self, snapshot: Snapshot) -> Fleet:
        return Fleet.of(snapshot, self.parameters.engine_label_key, self.parameters.default_engine)

    def _initial_rates(self, key: str) -> InitialRates:
        initial = self._initial.get(key)
        if initial is None:
            hardware, by_kind = self._by_kind.get(key, ((), ()))
            if hardware != self._fleet.hardware:
                hardware = self._fleet.hardware
                by_kind = [self._table.look_up(key, one) for one in hardware]
                self._by_kind[key] = hardware, by_kind
            initial = self._initial[key] = InitialRates.of(by_kind, self._fleet.kinds)
        return initial

    def _profiled_model(self, model: str) -> str:
        """Return the key of the model, or of the base model, in the profiles; empty without profiles of either."""
        if self._last_model is None or self._last_model[0] != model:
            key = model_key(model)
            if key not in self._table.models:
                key = self._base_model if self._base_model in self._table.models else ""
            self._last_model = model, key
        return self._last_model[1]
