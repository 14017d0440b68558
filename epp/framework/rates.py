# SPDX-License-Identifier: Apache-2.0
"""Prefill and generation rates of endpoints, by slot."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, highest, read_only
from epp.framework.candidates import Candidates
from epp.framework.load import comparable_load
from epp.framework.request import DataKey, PrefixMatch, Request
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, RUNNING, WAITING

DEFAULT_OUTPUT_TOKENS = 200.0
"""Tokens of an answer, before any was seen."""
_ZERO, _ONE = read_only(np.array(0.0)), read_only(np.array(1.0))
"""Arrays of no dimension: NumPy works with them at half the cost of floats."""


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

    def __post_init__(self) -> None:
        """Keep readers from writing to the arrays."""
        for name, value in [(each.name, getattr(self, each.name)) for each in fields(self)]:
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, read_only(value.view()))

    def prefill_seconds(self, candidates: Candidates, tokens: Floats) -> Floats:
        """Return how long each candidate computes so many prompt tokens."""
        return tokens / self.prefill_tokens_per_second[candidates.slots]

    def itl_seconds(self, candidates: Candidates, batch: Floats) -> Floats:
        """Return the time between two tokens of one request among so many, itself included."""
        slots = candidates.slots
        return self.itl_base_seconds[slots] + self.itl_seconds_per_request[slots] * batch

    def queue_seconds(self, candidates: Candidates) -> Floats | None:
        """Return how long a request waits for a place in each candidate's batch; None if nothing waits anywhere.

        That of an engine with a queue is full, and one with as many requests as it has places, where these are known.
        A place is free once in `outputTokens * ITL / batch` seconds; requests that wait for one are those reported, or
        those in flight that have no place where they are more: what was just sent counts at once.
        """
        waiting = candidates.values(WAITING)
        if self.places is None and (not len(waiting) or highest(waiting) <= 0.0):  # does not hold for NaN
            return None
        running = np.maximum(comparable_load(candidates, RUNNING), _ONE)
        in_flight = candidates.values(IN_FLIGHT)
        ahead = np.where(waiting > 0, np.fmax(waiting, in_flight - running), _ZERO)
        if self.places is not None:
            there = np.maximum(running + np.fmax(waiting, _ZERO), in_flight)
            ahead = np.maximum(ahead, there + _ONE - self.places[candidates.slots])
        seconds: Floats = ahead * (self.output_tokens * self.itl_seconds(candidates, running) / running)
        return seconds

    def ttft_seconds(self, candidates: Candidates, uncached: Floats) -> Floats:
        """Return the time to the first token of a prompt of which each candidate has so many tokens to compute.

        It waits for a place in the batch, and for the prompt tokens in flight. A plugin that calls this reads
        IN_FLIGHT_TOKENS and IN_FLIGHT, and lists LOAD_INPUTS in `may_read`.
        """
        prefill = self.prefill_seconds(candidates, candidates.values(IN_FLIGHT_TOKENS) + uncached)
        queue = self.queue_seconds(candidates)
        return prefill if queue is None else prefill + queue

    def prefill_provenance(self, slot: int) -> str:
        """Say where the slot's prefill rate comes from: `learned (12 samples)`, `profile qwen3-32b/h100/vllm/2`."""
        return _provenance(int(self.prefill_samples[slot]), self.sources[self.kinds[slot]][0])

    def itl_provenance(self, slot: int) -> str:
        """Say where the slot's ITL comes from."""
        return _provenance(int(self.itl_samples[slot]), self.sources[self.kinds[slot]][1])


ENDPOINT_RATES: DataKey[EndpointRates] = DataKey("endpoint-rates", "endpoint-rates-producer")
"""Prefill and generation rates of all endpoints, by slot."""

TARGET_IN_REACH: DataKey[bool] = DataKey("target-in-reach")
"""Whether any endpoint is expected to meet the latency limits of the request; missing where nothing says so."""


def uncached_tokens(request: Request, candidates: Candidates, match: PrefixMatch | None) -> Floats:
    """Return the prompt tokens that each candidate has to compute; the whole prompt without match data."""
    if match is None:
        return np.full(len(candidates), float(request.prompt_tokens))
    uncached: Floats = np.maximum(request.prompt_tokens - match.matched_tokens(candidates), _ZERO)
    return uncached


def batch_sizes(candidates: Candidates) -> Floats:
    """Return how many requests each candidate works at: as it reports, or as this picker sent it where that is more.

    What was just sent counts at once, what others sent as soon as it is reported. A batch that is not reported is
    estimated: a plugin that calls this lists LOAD_INPUTS in `may_read`.
    """
    return np.maximum(comparable_load(candidates, RUNNING), candidates.values(IN_FLIGHT))


def _provenance(samples: int, source: str) -> str:
    return f"learned ({samples} samples)" if samples else source
