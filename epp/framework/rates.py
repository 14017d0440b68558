# SPDX-License-Identifier: Apache-2.0
"""Prefill and generation rates of endpoints, by slot."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, read_only
from epp.framework.candidates import Candidates
from epp.framework.load import comparable_load
from epp.framework.request import DataKey, PrefixMatch, Request
from epp.framework.snapshot import IN_FLIGHT, RUNNING


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

    def prefill_provenance(self, slot: int) -> str:
        """Say where the slot's prefill rate comes from: `learned (12 samples)`, `profile qwen3-32b/h100/vllm/2`."""
        return _provenance(int(self.prefill_samples[slot]), self.sources[self.kinds[slot]][0])

    def itl_provenance(self, slot: int) -> str:
        """Say where the slot's ITL comes from."""
        return _provenance(int(self.itl_samples[slot]), self.sources[self.kinds[slot]][1])


ENDPOINT_RATES: DataKey[EndpointRates] = DataKey("endpoint-rates", "endpoint-rates-producer")
"""Prefill and generation rates of all endpoints, by slot."""


def uncached_tokens(request: Request, candidates: Candidates, match: PrefixMatch | None) -> Floats:
    """Return the prompt tokens that each candidate has to compute; the whole prompt without match data."""
    if match is None:
        return np.full(len(candidates), float(request.prompt_tokens))
    return np.maximum(0.0, request.prompt_tokens - match.matched_tokens(candidates))


def batch_sizes(candidates: Candidates) -> Floats:
    """Return how many requests each candidate works at: as it reports, or as this picker sent it where that is more.

    What was just sent counts at once, what others sent as soon as it is reported. A batch that is not reported is
    estimated: a plugin that calls this lists LOAD_INPUTS in `may_read`.
    """
    return np.maximum(comparable_load(candidates, RUNNING), candidates.values(IN_FLIGHT))


def _provenance(samples: int, source: str) -> str:
    return f"learned ({samples} samples)" if samples else source
