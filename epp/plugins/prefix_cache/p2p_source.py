# SPDX-License-Identifier: Apache-2.0
"""Name the endpoint from whose KV cache another one can copy the beginning of a prompt."""

from collections.abc import Mapping

import numpy as np

from epp.framework import (
    COPY_SOURCE,
    PREFIX_MATCH,
    PULLED_TOKENS,
    WAITING,
    Candidates,
    Count,
    DataKey,
    Parameters,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Stability,
)
from epp.framework.headers import KV_CACHE_SOURCE

_MOST_HASHED = 1024
"""Bytes of a request's id that count: clients choose it."""


class P2PSourceParameters(Parameters, frozen=True):
    """When a copy pays off."""

    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    min_cached_token_delta: Count = 1
    """Least number of tokens that the source holds in addition to those of the computing endpoint."""
    prefill_profile_name: str = "prefill"
    """Profile whose target computes the prompt; without such a target, the primary target does."""


class P2PSourceProducer(Producer[P2PSourceParameters], PreRequest[P2PSourceParameters]):
    """Sets `x-kv-cache-source-host-port` to the endpoint from which the computing endpoint can copy KV blocks.

    A source holds the beginning of the prompt in the memory of its host, or anywhere if tiers are unknown. Candidates
    are the endpoints that hold at most one block less than the best one; one of them is chosen by the hash of the
    request's id, with the weight `1 / (1 + waiting)`. There is no header if the source is the computing endpoint
    itself, holds less than `minCachedTokenDelta` tokens more than it, or if a copy takes longer than the computation,
    by `kv-transfer-cost` with `copiesFromPeers`. Headers of clients of this name are removed.
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
            near = np.flatnonzero((held > 0) & (held >= best - match.block_tokens))
            sums = np.cumsum(1.0 / (1.0 + np.nan_to_num(candidates.values(WAITING)[near])))
            share = fnv1a_32(request.id.encode("utf-8", "surrogatepass")) / 2**32
            chosen = near[min(np.searchsorted(sums, share * sums[-1], side="right"), len(near) - 1)]
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
