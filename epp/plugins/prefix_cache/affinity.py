"""Keeps the endpoints that hold most of the prompt in their KV cache, until they are too busy."""

from typing import Literal

import msgspec
import numpy as np

from epp.framework import (
    ENDPOINT_RATES,
    IN_FLIGHT_TOKENS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    Positive,
    PrefixMatch,
    Request,
    Share,
)
from epp.framework.rates import uncached_tokens

_MS_PER_S = 1000.0
_HASHES = 2.0**64


class PrefixCacheAffinityParameters(FilterParameters, frozen=True):
    """What counts as a hit, and what a hit may cost."""

    affinity_threshold: Share = 0.80
    """Share of the prompt's blocks, 0..1, from which an endpoint counts as sticky."""
    exploration_probability: Share = 0.0
    """Share of requests, 0..1, that keep all endpoints, so that other caches fill too."""
    max_ttft_penalty_ms: NonNegative = msgspec.field(default=18000.0, name="maxTTFTPenaltyMs")
    """How much longer, in ms, the first token may take at the best sticky endpoint than at the best other one; 0 for
    however long."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """Where times to the first token come from: `prefillThroughput`, tokens over tokens per second.
    `latencyPredictor` is known and not supported yet."""
    peak_prefill_throughput: Positive = 15928.0
    """Prompt tokens that an endpoint computes in a second, any of them: used where no `endpoint-rates-producer` says
    what each one does."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight are counted in one place, whoever asks."""

    def __post_init__(self) -> None:
        """Refuse what is not supported yet."""
        if self.ttft_source == "latencyPredictor":
            raise ValueError("ttftSource 'latencyPredictor' is known, not supported yet; use 'prefillThroughput'")


class PrefixCacheAffinityFilter(Filter[PrefixCacheAffinityParameters]):
    """Keeps an endpoint if `matched_blocks / total_blocks >= affinityThreshold`: the sticky ones.

    All stay where nobody is sticky; where the shortest time to the first token is longer among the sticky ones than
    among the others by more than `maxTTFTPenaltyMs`; and for requests that explore.

    The time to the first token is `tokens in flight / peakPrefillThroughput * 1000` ms. Where an
    `endpoint-rates-producer` is configured, or another plugin needs one, it is `(tokens in flight + uncached tokens of
    this prompt) / rate * 1000` ms with the rate of each endpoint, so that what a cache saves is set against what
    waiting for it costs, on the hardware that the endpoints have.
    """

    plugin_type = "prefix-cache-affinity-filter"
    may_empty = False

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key, IN_FLIGHT_TOKENS)
        self.may_read = (ENDPOINT_RATES, PROMPT_TOKENS)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        everybody = np.ones(len(candidates), dtype=np.bool_)
        match = request.get(self._match_key)
        if match is None or match.total_blocks == 0 or self._explores(request):
            return everybody
        sticky = match.blocks(candidates) / match.total_blocks >= self.parameters.affinity_threshold
        if not sticky.any() or self._too_slow(sticky, self._ttft_seconds(request, candidates, match)):
            return everybody
        return sticky

    def _explores(self, request: Request) -> bool:
        return request.uniform(self.name) < self.parameters.exploration_probability

    def _too_slow(self, sticky: Mask, ttft_seconds: Floats) -> bool:
        limit_ms = self.parameters.max_ttft_penalty_ms
        if limit_ms == 0.0 or sticky.all():
            return False
        penalty_seconds = ttft_seconds[sticky].min() - ttft_seconds[~sticky].min()
        return bool(penalty_seconds * _MS_PER_S > limit_ms)

    def _ttft_seconds(self, request: Request, candidates: Candidates, match: PrefixMatch) -> Floats:
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            return candidates.values(IN_FLIGHT_TOKENS) / self.parameters.peak_prefill_throughput
        work = candidates.values(IN_FLIGHT_TOKENS) + uncached_tokens(request, candidates, match)
        return rates.prefill_seconds(candidates, work)
