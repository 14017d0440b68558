# SPDX-License-Identifier: Apache-2.0
"""Filter by cached prompt, and producers of the source of a copy and of the time to fetch cached blocks."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    COPY_SOURCE,
    ENDPOINT_RATES,
    FETCH_SECONDS,
    IN_FLIGHT_TOKENS,
    LATENCY_PREDICTION,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    PULLED_TOKENS,
    WAITING,
    AcceleratorTag,
    Candidates,
    Count,
    DataKey,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    Name,
    NonNegative,
    Parameters,
    PrefixMatch,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Share,
    Stability,
    Tunable,
)
from epp.framework.accelerators.tag import HOST_GBPS, NETWORK_GBPS
from epp.framework.arrays import all_true, everyone, lowest
from epp.framework.expected_times import uncached_tokens
from epp.framework.headers import KV_CACHE_SOURCE

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
    """Maximum excess of the time to the first token at the best sticky endpoint over the best other, in ms; 0 for
    none."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """Source of times to the first token: tokens over throughput, or a `predicted-latency-producer`."""
    peak_prefill_throughput: NonNegative = 15928.0
    """Prompt tokens per second of every endpoint, above 0 with a penalty limit; unused with
    `endpoint-rates-producer`."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight have one source."""
    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""

    def __post_init__(self) -> None:
        if self.max_ttft_penalty_ms and not self.peak_prefill_throughput:
            raise ValueError("peakPrefillThroughput is 0; it must be above 0, unless maxTTFTPenaltyMs is 0")


class PrefixCacheAffinityFilter(Filter[PrefixCacheAffinityParameters]):
    """Keeps sticky endpoints: those with `matched_blocks / total_blocks >= affinityThreshold`.

    All endpoints are kept if no endpoint is sticky, if the shortest time to the first token among sticky endpoints
    exceeds that among the others by more than `maxTTFTPenaltyMs`, and for the share `explorationProbability`.

    The time to the first token is `tokens in flight / peakPrefillThroughput * 1000` ms. With an
    `endpoint-rates-producer`, configured or added for another plugin, it is the wait for a place in the batch plus
    `(tokens in flight + uncached tokens of this prompt) / rate * 1000` ms, with the rates of each endpoint. This weighs
    the tokens saved by the cache against the wait on the actual hardware. With `ttftSource: latencyPredictor`, it is
    the predicted one, and infinite for an endpoint without a prediction.
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
        at_sticky, at_others = lowest(ttft_seconds[sticky]), lowest(ttft_seconds[~sticky])
        return at_others < inf and (at_sticky - at_others) * _MS_PER_S > limit_ms

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


_GIGA = 1e9
_OTHER_HOST_GBPS = 32.0
"""Bandwidth of devices whose link to the host is unknown: 16 lanes of PCIe 4, in one direction."""


class TierSpeed(Parameters, frozen=True):
    """Speed of a tier."""

    name: Name
    """Name of the tier in KV events, such as cpu or disk."""
    gigabytes_per_second: NonNegative = 0.0
    """Read bandwidth for the whole endpoint; 0 for the PCIe bandwidth of all its devices."""


class KvTransferCostParameters(Parameters, frozen=True):
    """Size of the KV cache of a token, and speeds of tiers."""

    kv_bytes_per_token: Count = 131_072
    """Bytes of one token in the KV cache, on all devices together: `2 * layers * KV heads * head size * bytes of a
    number`. The default is that of Llama 3.1 8B with 16 bits: 2 * 32 * 8 * 128 * 2."""
    tiers: tuple[TierSpeed, ...] = (TierSpeed(name="cpu"), TierSpeed(name="disk", gigabytes_per_second=6.5))
    """Lower tiers; a tier that is not listed costs nothing. The default of disk is the read bandwidth of an NVMe drive
    on PCIe 4.0, such as the Samsung PM9A3."""
    copies_from_peers: bool = False
    """Assume that endpoints copy blocks from each other, as vLLM connectors do with `p2p-source-producer`."""
    peer_gigabytes_per_second: NonNegative = 0.0
    """Network bandwidth of each endpoint; 0 for that of its machine type. If neither is known, nothing is copied."""
    efficiency: NonNegative = 0.8
    """Share of these bandwidths that transfers reach; above 0."""
    prefix_match_info_producer_name: str = "precise-prefix-cache-producer"
    """Name of the producer instance whose matches have the tiers."""

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency:g}; it must be above 0 and at most 1")


class KvTransferCost(Producer[KvTransferCostParameters]):
    """Publishes, for each slot, the seconds to fetch the cached blocks that only lower tiers or other endpoints hold.

    `seconds = sum over tiers (tokens with this best tier * kvBytesPerToken / (efficiency * bandwidth))`. The bandwidth
    of host memory is that of PCIe, by the accelerator of the endpoint, times its devices. `work-seconds-scorer` adds
    this time to that of the uncached tokens: a block in host memory then costs more than one in the accelerator's
    memory, and less than a missing one if it is fetched sooner than computed.

    With `copiesFromPeers`, an endpoint may copy the blocks that it lacks from the endpoint that holds most; only blocks
    in host memory, if tiers are known. `seconds = tokens * kvBytesPerToken / (efficiency * bandwidth)`, by the slower
    network of both. A copy is assumed if it takes less time than computing these tokens, by `endpoint-rates-producer`,
    or if there are no rates. `work-seconds-scorer` counts such tokens as cached, and `p2p-source-producer` names no
    source if the copy is slower.
    """

    plugin_type = "kv-transfer-cost"
    writes = (FETCH_SECONDS, PULLED_TOKENS)
    may_read = (ACCELERATOR, ENDPOINT_RATES)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key,)
        self._bytes = self.parameters.kv_bytes_per_token / (_GIGA * self.parameters.efficiency)
        """Size of one token in GB, divided by the efficiency."""

    def produce(self, request: Request, candidates: Candidates) -> None:
        match = request.get(self._match_key)
        if match is None or not (match.tier_tokens or self.parameters.copies_from_peers):
            return
        seconds = np.zeros(candidates.snapshot.capacity)
        tags = candidates.snapshot.records(ACCELERATOR)
        for tier in self.parameters.tiers:
            tokens = match.tier_tokens.get(tier.name.lower())
            if tokens is not None:
                speed = tier.gigabytes_per_second or tags.derive_numbers(_gbps, HOST_GBPS, _OTHER_HOST_GBPS)
                seconds += tokens * self._bytes / speed
        if self.parameters.copies_from_peers and len(candidates):
            seconds += self._copy(request, candidates, match)
        request.put(FETCH_SECONDS, seconds)

    def _copy(self, request: Request, candidates: Candidates, match: PrefixMatch) -> Floats:
        """Publish the tokens that are worth copying from the best peer; return the seconds for that."""
        given, copyable = self.parameters.peer_gigabytes_per_second, match.copyable_tokens
        best = candidates.slots[np.argmax(copyable[candidates.slots])]
        speed = candidates.snapshot.records(ACCELERATOR).derive_numbers(_gbps, NETWORK_GBPS, 0.0)
        speed = np.full(len(speed), given) if given else np.minimum(speed, speed[best])
        tokens = np.maximum(copyable[best] - match.tokens, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = tokens * self._bytes / speed
            rates = request.get(ENDPOINT_RATES)
            limit = np.inf if rates is None else tokens / rates.prefill_tokens_per_second
        is_faster = (tokens > 0) & (seconds < limit)
        request.put(PULLED_TOKENS, np.where(is_faster, tokens, 0))
        return np.where(is_faster, seconds, 0.0)


def _gbps(tag: AcceleratorTag, name: str, default: float) -> float:
    """Return the bandwidth of all devices of an endpoint, in GB/s; `default` is for one device."""
    found = tag.attributes.get(name)
    return (found if isinstance(found, int | float) and found > 0 else default) * max(tag.count, 1)


_MOST_HASHED = 1024
"""Maximum bytes of a request id that are hashed; clients choose the id."""


class P2PSourceParameters(Parameters, frozen=True):
    """Conditions for a copy."""

    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    min_cached_token_delta: Count = 1
    """Minimum number of tokens that the source holds beyond those of the computing endpoint."""
    prefill_profile_name: str = "prefill"
    """Profile whose target computes the prompt; without such a target, the primary target does."""


class P2PSourceProducer(Producer[P2PSourceParameters], PreRequest[P2PSourceParameters]):
    """Sets `x-kv-cache-source-host-port` to the endpoint from which the computing endpoint can copy KV blocks.

    A source holds the beginning of the prompt in the memory of its host, or anywhere if tiers are unknown. Candidates
    are the endpoints that hold at most one block less than the best one; one of them is chosen by the hash of the
    request's id, with the weight `1 / (1 + waiting)`. There is no header if the source is the computing endpoint
    itself, holds less than `minCachedTokenDelta` tokens more than it, or if a copy takes longer than the computation,
    by `kv-transfer-cost` with `copiesFromPeers`. A header of this name from a client is removed.
    """

    plugin_type = "p2p-source-producer"
    stability = Stability.ALPHA
    sets_headers = (KV_CACHE_SOURCE,)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self._source_key: DataKey[int] = DataKey("kv-cache-source", self.plugin_type, self.name)
        self.reads, self.may_read = (self._match_key, WAITING), (PULLED_TOKENS,)

    def produce(self, request: Request, candidates: Candidates) -> None:
        request.drop(self._source_key)
        match = request.get(self._match_key)
        if match is None or not len(candidates):
            return
        held = match.copyable_tokens[candidates.slots]
        best = held.max()
        if best:
            sources = np.flatnonzero((held > 0) & (held >= best - match.block_tokens))
            sums = np.cumsum(1.0 / (1.0 + np.nan_to_num(candidates.values(WAITING)[sources])))
            share = fnv1a_32(request.id.encode("utf-8", "surrogatepass")) / 2**32
            chosen = sources[min(np.searchsorted(sums, share * sums[-1], side="right"), len(sources) - 1)]
            request.put(self._source_key, candidates.slots.item(chosen))

    def pre_request(self, request: Request, result: SchedulingResult) -> Mapping[str, str] | None:
        source, match = request.get(self._source_key), request.get(self._match_key)
        if source is None or match is None:
            return None
        leg = result.profiles.get(self.parameters.prefill_profile_name) or result.primary
        pulled = request.get(PULLED_TOKENS)
        if pulled is not None and not pulled.item(leg.slot):
            return None
        gain = match.copyable_tokens.item(source) - match.tokens_at(leg.slot)
        endpoint = leg.candidates.snapshot.endpoints.values[source]
        if endpoint is None or source == leg.slot or gain < self.parameters.min_cached_token_delta:
            return None
        request.put(COPY_SOURCE, endpoint.hostport)
        return {KV_CACHE_SOURCE: endpoint.hostport}


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of the first 1,024 bytes."""
    found = 0x811C9DC5
    for byte in data[:_MOST_HASHED]:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found
