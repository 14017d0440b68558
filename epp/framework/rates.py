# SPDX-License-Identifier: Apache-2.0
"""Prefill and generation rates of endpoints, by slot."""

from dataclasses import dataclass, field
from math import isnan, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Positions, any_true, read_only
from epp.framework.candidates import Candidates
from epp.framework.load import comparable_load, is_known
from epp.framework.queues import Queues
from epp.framework.reported import Reported
from epp.framework.request import DataKey, PrefixMatch, Request
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, RUNNING, WAITING, Snapshot

DEFAULT_OUTPUT_TOKENS = 200.0
"""Tokens of an answer, before any was seen."""
_ZERO, _ONE = read_only(np.array(0.0)), read_only(np.array(1.0))
"""Arrays of no dimension: NumPy works with them at half the cost of floats."""


_ARRAYS = (
    "prefill_tokens_per_second",
    "itl_base_seconds",
    "itl_seconds_per_request",
    "ttft_base_seconds",
    "ttft_seconds_per_token",
    "kinds",
    "prefill_samples",
    "itl_samples",
)


class _Terms(NamedTuple):
    """Terms of expected times, as endpoints last reported their load: one number for each slot or candidate."""

    prefill_tokens_per_second: Floats
    itl_base_seconds: Floats
    itl_seconds_per_request: Floats
    running: Floats
    """Requests in the batch; NaN where not known."""
    queues: Queues | None
    """None if nothing waits anywhere."""
    is_known: bool
    """Whether the batch is known of all."""

    def at(self, slots: Positions) -> "_Terms":
        prefill, base, per_request, running, queues, _ = self
        running = running[slots]
        queues = None if queues is None else queues.at(slots)
        return _Terms(prefill[slots], base[slots], per_request[slots], running, queues, is_known(running))


@dataclass(frozen=True, slots=True)
class EndpointRates:
    """Arrays by slot, read-only; those without a word on NaN are finite and above 0 for every slot."""

    prefill_tokens_per_second: Floats
    """Prompt tokens that the whole endpoint computes in a second."""
    itl_base_seconds: Floats
    """Alpha of `ITL = alpha + beta * batch`: time between two tokens of a request, but for what the batch adds."""
    itl_seconds_per_request: Floats
    """Beta: what each request in the batch adds, itself included; 0 or more."""
    ttft_base_seconds: Floats
    """Gamma of `TTFT = gamma + delta * tokens * batch`; NaN where no profile gives it."""
    ttft_seconds_per_token: Floats
    """Delta; NaN where no profile gives it."""
    kinds: NDArray[np.intp]
    """Which of the sources an unlearned rate has."""
    sources: tuple[tuple[str, str], ...]
    """Where rates come from as long as they are not learned: the prefill rate, the ITL."""
    prefill_samples: NDArray[np.intp]
    """Responses that the prefill rate was learned from; 0 for one that is not learned."""
    itl_samples: NDArray[np.intp]
    """Likewise, of the ITL."""
    output_tokens: float = DEFAULT_OUTPUT_TOKENS
    """Mean length of the latest answers."""
    places: Floats | None = None
    """Requests that an endpoint runs at once, infinite where not known; None if not known of any."""
    _reported: Reported[_Terms] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep readers from writing to the arrays."""
        assign = object.__setattr__
        for name in _ARRAYS:
            assign(self, name, read_only(getattr(self, name).view()))
        if self.places is not None:
            assign(self, "places", read_only(self.places.view()))
        assign(self, "_reported", Reported(RUNNING, WAITING))

    def prefill_seconds(self, candidates: Candidates, tokens: Floats) -> Floats:
        """Return how long each candidate computes so many prompt tokens."""
        return tokens / self.prefill_tokens_per_second[candidates.slots]

    def itl_seconds(self, candidates: Candidates, batch: Floats) -> Floats:
        """Return the time between two tokens of one request among so many, itself included."""
        slots = candidates.slots
        return self.itl_base_seconds[slots] + self.itl_seconds_per_request[slots] * batch

    def ttft_seconds(self, candidates: Candidates, uncached: Floats) -> Floats:
        """Return the time to the first token of a prompt of which each candidate has so many tokens to compute.

        It waits for a place in the batch, and for the prompt tokens in flight. A plugin that calls this reads
        IN_FLIGHT_TOKENS and IN_FLIGHT, and lists LOAD_INPUTS in `may_read`.
        """
        terms = self._terms(candidates)
        seconds = candidates.values(IN_FLIGHT_TOKENS) + uncached
        seconds /= terms.prefill_tokens_per_second
        if terms.queues is not None:
            seconds += terms.queues.seconds(candidates.values(IN_FLIGHT))
        return seconds

    def ttft_seconds_at(self, candidates: Candidates, slot: int, uncached: float) -> float:
        """Return the same for one of the candidates, at a fraction of the cost; NaN where its batch is not reported."""
        if candidates.hides_load:
            return nan
        snapshot = candidates.snapshot
        terms = self._reported.by_slot(snapshot, self._reported_terms)
        if isnan(terms.running.item(slot)):
            return nan
        tokens = snapshot.column(IN_FLIGHT_TOKENS).item(slot) + uncached
        prefill = tokens / terms.prefill_tokens_per_second.item(slot)
        if terms.queues is None:
            return prefill
        return prefill + terms.queues.seconds_at(slot, snapshot.column(IN_FLIGHT).item(slot))

    def seconds(self, candidates: Candidates, tokens: Floats, output_tokens: float | Floats) -> Floats:
        """Return the time until so many tokens of an answer are there.

        `tokens` are those of prompts that each candidate has to compute before, those in flight included. The request
        counts as one more in the batch. A plugin that calls this reads IN_FLIGHT, and lists LOAD_INPUTS in `may_read`.
        """
        terms, in_flight = self._terms(candidates), candidates.values(IN_FLIGHT)
        seconds = tokens / terms.prefill_tokens_per_second
        if terms.queues is not None:
            seconds += terms.queues.seconds(in_flight)
        itl = np.maximum(terms.running, in_flight)
        itl += _ONE
        itl *= terms.itl_seconds_per_request
        itl += terms.itl_base_seconds
        itl *= output_tokens
        seconds += itl
        return seconds

    def _terms(self, candidates: Candidates) -> _Terms:
        """Return the terms of each candidate, with estimates of batches that are not reported."""
        terms = self._reported.of(candidates, self._reported_terms)
        if terms is not None and terms.is_known:
            return terms
        return self._terms_of(
            comparable_load(candidates, RUNNING, as_reported=True), candidates.values(WAITING), candidates.slots
        )

    def _reported_terms(self, snapshot: Snapshot) -> _Terms:
        return self._terms_of(snapshot.column(RUNNING), snapshot.column(WAITING), slice(None))

    def _terms_of(self, running: Floats, waiting: Floats, slots: Positions | slice) -> _Terms:
        rate, base = self.prefill_tokens_per_second[slots], self.itl_base_seconds[slots]
        per_request = self.itl_seconds_per_request[slots]
        queues = None
        if self.places is not None or any_true(waiting > _ZERO):
            batch = np.maximum(running, _ONE)
            turn_seconds = self.output_tokens * (base + per_request * batch) / batch
            places = None if self.places is None else self.places[slots]
            queues = Queues.of(batch, waiting, turn_seconds, places)
        return _Terms(rate, base, per_request, running, queues, is_known=True)

    def prefill_provenance(self, slot: int) -> str:
        """Say where the slot's prefill rate comes from: `learned (12 samples)`, `profile qwen3-32b/h100/vllm/2`."""
        return _provenance(int(self.prefill_samples[slot]), self.sources[self.kinds[slot]][0])

    def itl_provenance(self, slot: int) -> str:
        """Say where the slot's ITL comes from."""
        return _provenance(int(self.itl_samples[slot]), self.sources[self.kinds[slot]][1])


ENDPOINT_RATES: DataKey[EndpointRates] = DataKey("endpoint-rates", "endpoint-rates-producer")
"""Prefill and generation rates of all endpoints, by slot."""

TARGET_IN_REACH: DataKey[bool] = DataKey("target-in-reach")
"""Whether any endpoint is expected to meet the latency limits of the request; missing without an estimate."""


def uncached_tokens(request: Request, candidates: Candidates, match: PrefixMatch | None) -> Floats:
    """Return the prompt tokens that each candidate has to compute; the whole prompt without match data."""
    if match is None:
        return np.full(len(candidates), float(request.prompt_tokens))
    uncached: Floats = np.array(float(request.prompt_tokens)) - match.matched_tokens(candidates)
    np.maximum(uncached, _ZERO, out=uncached)
    return uncached


def batch_sizes(candidates: Candidates) -> Floats:
    """Return how many requests each candidate works at: as it reports, or as this picker sent it where that is more.

    What was just sent counts at once, what others sent as soon as it is reported. A batch that is not reported is
    estimated: a plugin that calls this lists LOAD_INPUTS in `may_read`.
    """
    return np.maximum(comparable_load(candidates, RUNNING, as_reported=True), candidates.values(IN_FLIGHT))


def _provenance(samples: int, source: str) -> str:
    return f"learned ({samples} samples)" if samples else source
