# SPDX-License-Identifier: Apache-2.0
"""Filter that keeps the endpoints with most of the prompt in their KV cache, unless they are too busy."""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal

import msgspec
import numpy as np

from epp.framework import (
    ENDPOINT_RATES,
    IN_FLIGHT_TOKENS,
    LATENCY_PREDICTION,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    PrefixMatch,
    Request,
    Share,
    Tunable,
)
from epp.framework.arrays import all_true, everyone, lowest
from epp.framework.rates import uncached_tokens

_MS_PER_S = 1000.0


class PrefixCacheAffinityParameters(FilterParameters, frozen=True):
    """Threshold of a hit, and the additional latency to accept for it."""

    affinity_threshold: Annotated[Share, Tunable(0.1, 1)] = 0.80
    """Share of the prompt's blocks, 0..1, at which an endpoint is sticky."""
    exploration_probability: Annotated[Share, Tunable(0, 0.1)] = 0.0
    """Share of requests, 0..1, that keep all endpoints, to fill other caches."""
    max_ttft_penalty_ms: Annotated[NonNegative, Tunable(10, 20_000, log=True)] = msgspec.field(
        default=18000.0, name="maxTTFTPenaltyMs"
    )
    """Most by which the time to the first token at the best sticky endpoint may exceed that at the best other one, in
    ms; 0 for no limit."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """Source of times to the first token: `prefillThroughput`, tokens over tokens per second, or `latencyPredictor`, a
    `predicted-latency-producer`."""
    peak_prefill_throughput: NonNegative = 15928.0
    """Prompt tokens that every endpoint computes in a second, above 0 unless `maxTTFTPenaltyMs` is 0; used without an
    `endpoint-rates-producer`."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight have one source."""
    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""

    def __post_init__(self) -> None:
        if self.max_ttft_penalty_ms and not self.peak_prefill_throughput:
            raise ValueError(
                "peakPrefillThroughput is 0; it must be above 0, unless maxTTFTPenaltyMs is 0 and times do not count"
            )


class PrefixCacheAffinityFilter(Filter[PrefixCacheAffinityParameters]):
    """Keeps sticky endpoints: those with `matched_blocks / total_blocks >= affinityThreshold`.

    All endpoints are kept in these cases: no endpoint is sticky; the shortest time to the first token among sticky
    endpoints exceeds that among the others by more than `maxTTFTPenaltyMs`; or the request belongs to the share
    `explorationProbability`.

    The time to the first token is `tokens in flight / peakPrefillThroughput * 1000` ms. With an
    `endpoint-rates-producer`, configured or added for another plugin, it is the wait for a place in the batch plus
    `(tokens in flight + uncached tokens of this prompt) / rate * 1000` ms, with the rates of each endpoint. This
    weighs the tokens saved by the cache against the wait on the actual hardware. With `ttftSource: latencyPredictor`,
    it is the predicted one, and infinite for an endpoint without a prediction.
    """

    plugin_type = "prefix-cache-affinity-filter"
    may_empty = False

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key, IN_FLIGHT_TOKENS)
        self.may_read = (ENDPOINT_RATES, PROMPT_TOKENS, *LOAD_INPUTS)
        self._is_predicted = self.parameters.ttft_source == "latencyPredictor"
        if self._is_predicted:
            self._prediction_key = LATENCY_PREDICTION.produced_by(self.parameters.latency_prediction_info_producer_name)
            self.reads += (self._prediction_key,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        match = request.get(self._match_key)
        if match is not None and match.total_blocks and not self._explores(request):
            blocks, threshold = match.blocks(candidates), self.parameters.affinity_threshold
            best = int(blocks.argmax()) if len(blocks) else -1
            if best >= 0 and blocks.item(best) / match.total_blocks >= threshold:
                sticky = match.shares(candidates) >= threshold
                if not self._too_slow(request, candidates, match, sticky, best):
                    return sticky
        return everyone(len(candidates))

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        match = request.get(self._match_key)
        if match is None or not match.total_blocks:
            return ()
        return [f"holds {share:.0%} of the prompt" for share in match.shares(dropped).tolist()]

    def _explores(self, request: Request) -> bool:
        share = self.parameters.exploration_probability
        return share > 0.0 and request.uniform(self.name) < share

    def _too_slow(self, request: Request, candidates: Candidates, match: PrefixMatch, sticky: Mask, best: int) -> bool:
        """Return whether the sticky endpoints are too slow; the one at position `best` holds most of the prompt."""
        limit_ms = self.parameters.max_ttft_penalty_ms
        if limit_ms == 0.0 or all_true(sticky):
            return False
        rates = None if self._is_predicted else request.get(ENDPOINT_RATES)
        if rates is not None:
            slot = candidates.slots.item(best)
            uncached = max(0.0, float(request.prompt_tokens - match.tokens_at(slot)))
            if rates.ttft_seconds_at(candidates, slot, uncached) * _MS_PER_S <= limit_ms:
                return False  # another endpoint takes 0 ms at best
        ttft_seconds = self._ttft_seconds(request, candidates, match)
        at_sticky, elsewhere = lowest(ttft_seconds[sticky]), lowest(ttft_seconds[~sticky])
        return elsewhere < inf and (at_sticky - elsewhere) * _MS_PER_S > limit_ms

    def _ttft_seconds(self, request: Request, candidates: Candidates, match: PrefixMatch) -> Floats:
        if self._is_predicted:
            prediction = request.get(self._prediction_key)
            if prediction is None:
                return np.full(len(candidates), inf)
            return np.nan_to_num(prediction.ttft_seconds[candidates.slots], nan=inf)
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            return candidates.values(IN_FLIGHT_TOKENS) / self.parameters.peak_prefill_throughput
        return rates.ttft_seconds(candidates, uncached_tokens(request, candidates, match))
