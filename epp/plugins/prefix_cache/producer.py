"""Estimates how much of a prompt each endpoint holds in its KV cache, from what was sent there before."""

import sys
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from epp.framework import (
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    PREFIX_MATCH,
    Candidates,
    Count,
    DataKey,
    EndpointObserver,
    Natural,
    Parameters,
    PrefixMatch,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Snapshot,
)
from epp.plugins.prefix_cache.block_hashes import block_hashes, chain_seed
from epp.plugins.prefix_cache.index import BYTES_PER_ENTRY, PrefixIndex

MIN_BLOCK_TOKENS = 64
"""Smaller blocks cost more to hash and to remember than their finer matches are worth."""


class ApproxPrefixCacheParameters(Parameters, frozen=True):
    """How finely prompts are cut and how much is remembered."""

    auto_tune: bool = True
    """Let each endpoint's reported KV cache size, where known, take the place of `lruCapacityPerServer`."""
    block_size_tokens: Count = 16
    """Tokens in one block; less than 64 counts as 64."""
    max_prefix_tokens_to_match: Natural = 131072
    """Tokens of a prompt that are looked at; 0 leaves the limit to `maxPrefixBlocksToMatch`."""
    lru_capacity_per_server: Count = 31250
    """Blocks remembered for each endpoint, at most."""
    max_bytes_per_server: Annotated[int, Meta(ge=BYTES_PER_ENTRY)] = 10 * 1024 * 1024
    """Memory for each endpoint's blocks: no more of them are remembered than fit, at 320 bytes each."""
    block_size: Natural = 0
    """Deprecated, in characters: accepted without effect, `blockSizeTokens` decides."""
    max_prefix_blocks_to_match: Natural = 2048
    """Deprecated: blocks of a prompt that are looked at, where `maxPrefixTokensToMatch` is 0; 0 for all."""

    @property
    def block_tokens(self) -> int:
        """Tokens in one block, in effect."""
        return max(MIN_BLOCK_TOKENS, self.block_size_tokens)

    @property
    def max_blocks(self) -> int:
        """Blocks of a prompt that are looked at, in effect."""
        if self.max_prefix_tokens_to_match:
            return self.max_prefix_tokens_to_match // self.block_tokens
        return self.max_prefix_blocks_to_match or sys.maxsize


class ApproxPrefixCacheProducer(
    Producer[ApproxPrefixCacheParameters],
    PreRequest[ApproxPrefixCacheParameters],
    EndpointObserver[ApproxPrefixCacheParameters],
):
    """Publishes, for each slot, how many leading blocks of the prompt were sent there and are not yet evicted.

    Blocks are `blockSizeTokens` times 4 bytes of the canonical prompt, hashed in a chain whose seed is the model and
    the cache salt. The target of each profile (not its fallbacks) is credited with the request's blocks. For each
    endpoint `min(capacity, maxBytesPerServer / 320)` blocks are kept, least recently used out first; the capacity is
    the tokens the endpoint's engine can cache over the tokens of a block, with `autoTune` and where the engine
    reports it, else `lruCapacityPerServer`. So the index does not remember what the engine cannot hold.
    """

    plugin_type = "approx-prefix-cache-producer"

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.name)
        self._hashes_key: DataKey[list[int]] = DataKey("prefix-block-hashes", self.plugin_type, self.name)
        self._block_tokens = self.parameters.block_tokens
        self._index = PrefixIndex()
        self.writes = (self._match_key,)
        self.may_read = (KV_BLOCKS, KV_BLOCK_TOKENS)

    @property
    def warnings(self) -> Sequence[str]:
        deprecated = "blockSize is deprecated, and without effect: give blockSizeTokens"
        return (deprecated,) if self.parameters.block_size else ()

    def produce(self, request: Request, candidates: Candidates) -> None:
        hashes = self._hashes(request)
        matched = self._index.match(hashes, candidates.snapshot.capacity)
        request.put(self._match_key, PrefixMatch(matched, len(hashes), self._block_tokens))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        hashes = self._hashes(request)
        if not hashes:
            return
        snapshot = result.primary.candidates.snapshot
        for slot in {leg.slot: None for leg in result.profiles.values() if leg is not None}:
            self._index.record(slot, hashes, self._limit(snapshot, slot))

    def slots_removed(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._index.forget(slot)

    def _hashes(self, request: Request) -> list[int]:
        """Return the block hashes of the prompt, computed once for each request."""
        hashes = request.get(self._hashes_key)
        if hashes is None:
            hashes = block_hashes(
                request.body.prompt,
                seed=chain_seed(request.model, request.body.cache_salt),
                block_tokens=self._block_tokens,
                max_blocks=self.parameters.max_blocks,
            )
            request.put(self._hashes_key, hashes)
        return hashes

    def _limit(self, snapshot: Snapshot, slot: int) -> int:
        """Return how many blocks may be remembered for the slot."""
        capacity = self.parameters.lru_capacity_per_server
        if self.parameters.auto_tune:
            engine_tokens = snapshot.column(KV_BLOCKS)[slot] * snapshot.column(KV_BLOCK_TOKENS)[slot]
            if np.isfinite(engine_tokens):
                capacity = int(engine_tokens) // self._block_tokens
        return max(0, min(capacity, self.parameters.max_bytes_per_server // BYTES_PER_ENTRY))
