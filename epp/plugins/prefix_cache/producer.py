# SPDX-License-Identifier: Apache-2.0
"""Producer of the part of a prompt that each endpoint is expected to hold in its KV cache."""

import sys
from array import array
from collections.abc import Sequence
from math import isfinite
from secrets import token_bytes
from struct import iter_unpack
from typing import Annotated, NamedTuple, Self

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from epp.framework import (
    IN_FLIGHT_TOKENS,
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    DataKey,
    Endpoint,
    EndpointObserver,
    Floats,
    Natural,
    Parameters,
    PrefixMatch,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Snapshot,
)
from epp.framework.limits import Corrected, CountOrDefault, Tunable
from epp.framework.plugin import Stability
from epp.framework.plugin_status import Distribution, Legacy, PluginMetric, Sample, endpoint_state
from epp.framework.request import BYTES_PER_TOKEN
from epp.framework.session_affinity import Conversations
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Outbox, Shareable, slots_by_address
from epp.plugins.prefix_cache.index import BYTES_PER_ENTRY, PrefixIndex


def chain_seed(model: str, cache_salt: str) -> int:
    """Return the seed of a prompt's chain: prompts with another model or salt share no block.

    The hash of the model seeds the hash of the salt, so that different pairs never give the same bytes.
    """
    model_hash = xxhash.xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"))
    return xxhash.xxh3_64_intdigest(cache_salt.encode("utf-8", "surrogatepass"), seed=model_hash)


def block_hashes(prompt: bytes, *, seed: int, block_tokens: int, max_blocks: int = sys.maxsize) -> "array[int]":
    """Return one 64-bit xxHash (XXH3) for each block, in order; the last one may be shorter.

    Equal hashes at a position mean equal prompts up to the end of that block.
    """
    size = block_tokens * BYTES_PER_TOKEN
    end = min(len(prompt), max_blocks * size)
    digest = xxhash.xxh3_64_intdigest
    whole = end - end % size
    hashes = [seed := digest(block, seed) for (block,) in iter_unpack(f"{size}s", memoryview(prompt)[:whole])]
    if whole < end:
        hashes.append(digest(prompt[whole:end], seed))
    return array("Q", hashes)


MIN_BLOCK_TOKENS = 64
"""Minimum size of blocks: smaller ones cost more time and memory than their finer matches save."""
MAX_BLOCK_TOKENS = 4096
"""Upper bound for the block size of engines: with one block for each prompt, only equal prompts match."""


class ApproxPrefixCacheParameters(Parameters, frozen=True):
    """Size of the blocks, and limits of the index."""

    auto_tune: bool = True
    """Prefer the block size and KV cache size of engines to `blockSizeTokens` and `lruCapacityPerServer`."""
    block_size_tokens: Annotated[int, Meta(ge=MIN_BLOCK_TOKENS), Corrected(by=lambda _: MIN_BLOCK_TOKENS)] = 64
    """Tokens in one block. With `autoTune`, the block size of the engine counts instead, if it is known."""
    max_prefix_tokens_to_match: Natural = 131072
    """Tokens of a prompt that are matched; 0 to use `maxPrefixBlocksToMatch`."""
    lru_capacity_per_server: Annotated[CountOrDefault, Tunable(1_000, 1_000_000, log=True)] = 31250
    """Maximum blocks recorded for each endpoint."""
    max_bytes_per_server: Annotated[int, Meta(ge=BYTES_PER_ENTRY)] = 10 * 1024 * 1024
    """Memory for the blocks of each endpoint, at 320 bytes each; also limits their number."""
    block_size: Natural = 0
    """Deprecated: used if `blockSizeTokens` is left out."""
    max_prefix_blocks_to_match: Natural = 2048
    """Deprecated: blocks of a prompt that are matched if `maxPrefixTokensToMatch` is 0; 0 for all."""

    @property
    def block_tokens(self) -> int:
        """Tokens in one block if the engine's block size is unknown or not used."""
        if self.block_size_tokens == MIN_BLOCK_TOKENS and self.block_size:
            return max(MIN_BLOCK_TOKENS, self.block_size)
        return self.block_size_tokens

    def max_blocks(self, block_tokens: int) -> int:
        """Return the most blocks of a prompt to match."""
        if self.max_prefix_tokens_to_match:
            return self.max_prefix_tokens_to_match // block_tokens
        return self.max_prefix_blocks_to_match or sys.maxsize


_MOST_CHAIN_BYTES = MOST_PAYLOAD_BYTES - 512
"""Maximum bytes of a chain for other pickers, so that it fits into a payload with its address: 4,032 blocks."""


class Placed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chain that was sent to an endpoint, or withdrawn because the request failed there, as other pickers get it."""

    address: str
    chain: bytes
    """Its hashes, 8 bytes each."""
    is_withdrawn: bool = False

    def __post_init__(self) -> None:
        if not self.chain or len(self.chain) % 8:
            raise ValueError("a chain does not consist of 64-bit hashes")

    @classmethod
    def of(cls, endpoint: Endpoint, chain: "array[int]", *, is_withdrawn: bool = False) -> Self:
        return cls(endpoint.hostport, chain.tobytes()[:_MOST_CHAIN_BYTES], is_withdrawn)

    @property
    def hashes(self) -> "array[int]":
        return array("Q", self.chain)


_NO_BLOCKS = array("Q")
_SIZE = PluginMetric(
    "prefix_indexer_size",
    "Distinct blocks of prompts that are recorded, for all endpoints together.",
    legacy=Legacy("inference_extension_prefix_indexer_size"),
)
_HIT_RATIO = PluginMetric(
    "prefix_indexer_hit_ratio",
    "Share of the blocks of a prompt that the picked endpoint is expected to hold, 0..1.",
    bounds=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    legacy=Legacy("inference_extension_prefix_indexer_hit_ratio"),
)
_HIT_BYTES = PluginMetric(
    "prefix_indexer_hit_bytes",
    "Bytes of a prompt that the picked endpoint is expected to hold, at 4 for each token of its blocks.",
    bounds=(0, *(16.0 * 2**power for power in range(13))),
    legacy=Legacy("inference_extension_prefix_indexer_hit_bytes"),
)


class _Hashed(NamedTuple):
    """The blocks of a request."""

    block_tokens: int
    chains: Sequence["array[int]"]
    """Block hashes of each prompt that has any, in order."""
    tokens: Sequence[int]
    """Estimated tokens of each of these prompts."""

    @property
    def blocks(self) -> int:
        return sum(map(len, self.chains))


class ApproxPrefixCacheProducer(
    Producer[ApproxPrefixCacheParameters],
    PreRequest[ApproxPrefixCacheParameters],
    EndpointObserver[ApproxPrefixCacheParameters],
    Shareable,
):
    """Publishes, for each slot, the number of leading blocks of the prompt that were sent there and not yet evicted.

    A block has `blockSizeTokens` times 4 bytes of the canonical prompt; the last block of a prompt may be shorter.
    Blocks are hashed in a chain whose seed is the model and the cache salt. Each prompt of a list has its own chain,
    and the limits apply to all of them together. The request's blocks are recorded for the target of each profile, not
    for its fallbacks. The index keeps `min(capacity, maxBytesPerServer / 320)` blocks for each endpoint and evicts the
    least recently used. With `autoTune`, the block size is that of the first endpoint of the pool that reports one,
    limited to 64 to 4096 tokens. The capacity is then the number of blocks that the engine can cache, plus the blocks
    of requests in flight that it has not computed yet, if these are counted: such blocks are recorded early.
    Without `autoTune`, or without reports, the capacity is `lruCapacityPerServer`. With `--shared-state`, pickers also
    record each other's chains. The endpoint that computed the conversation last is published too.
    """

    plugin_type = "approx-prefix-cache-producer"
    metrics = (_SIZE, _HIT_RATIO, _HIT_BYTES)
    is_lasting = is_for_decisions = True

    def setup(self) -> None:
        self._hit_ratios, self._hit_bytes = Distribution(_HIT_RATIO.bounds), Distribution(_HIT_BYTES.bounds)
        self._match_key = PREFIX_MATCH.produced_by(self.name)
        self._hashed_key: DataKey[_Hashed] = DataKey("prefix-block-hashes", self.plugin_type, self.name)
        self._index, self._conversations = PrefixIndex(), Conversations()
        self._secret = int.from_bytes(token_bytes(8))  # prevents clients from making hashes collide
        self._outbox = Outbox(Placed)
        self._reported: Floats | None = None
        self._engine_tokens = 0
        self.writes = (self._match_key,)
        self.may_read = (KV_BLOCKS, KV_BLOCK_TOKENS, PROMPT_TOKENS)

    @property
    def warnings(self) -> Sequence[str]:
        deprecated = "blockSize is deprecated: write blockSizeTokens"
        return (deprecated,) if self.parameters.block_size else ()

    @property
    def samples(self) -> Sequence[Sample]:
        return (
            Sample(_SIZE, len(self._index)),
            Sample(_HIT_RATIO, self._hit_ratios),
            Sample(_HIT_BYTES, self._hit_bytes),
        )

    def dump_state(self, snapshot: Snapshot) -> object | None:
        blocks = np.array([self._index.entries(slot) for slot in range(snapshot.capacity)], dtype=np.int64)
        return {"distinctBlocks": len(self._index), **endpoint_state(snapshot, {"blocks": blocks})}

    def produce(self, request: Request, candidates: Candidates) -> None:
        hashed = self._hashed(request, candidates.snapshot)
        request.put(self._match_key, self._match(hashed, candidates.snapshot.capacity))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        snapshot = result.primary.candidates.snapshot
        hashed = request.get(self._hashed_key) or self._hashed(request, snapshot)
        match = request.get(self._match_key)
        if match is not None:
            held = match.matched_blocks.item(result.primary.slot)
            self._hit_bytes.observe(held * match.block_tokens * BYTES_PER_TOKEN)
            if match.total_blocks:
                self._hit_ratios.observe(held / match.total_blocks)
        for slot in {leg.slot: None for leg in result.profiles.values() if leg is not None}:
            limit, endpoint = self._limit(snapshot, slot, hashed.block_tokens), snapshot.endpoints.values[slot]
            for chain in hashed.chains:
                self._record(slot, chain, limit)
                if endpoint is not None:
                    self._outbox.add(Placed.of(endpoint, chain))

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        hashed = request.get(self._hashed_key)
        match = request.get(self._match_key)
        if hashed is None or match is None:
            return
        for slot in {leg.slot: None for leg in result.profiles.values() if leg is not None}:
            if match.matched_blocks.item(slot) < hashed.blocks:  # the request added blocks
                endpoint = result.primary.candidates.snapshot.endpoints.values[slot]
                for chain in hashed.chains:
                    self._withdraw(slot, chain)
                    if endpoint is not None:
                        self._outbox.add(Placed.of(endpoint, chain, is_withdrawn=True))

    def slots_removed(self, slots: Sequence[int]) -> None:
        self._index.forget(*slots)
        self._conversations.forget(*slots)

    @property
    def share_name(self) -> str:
        return f"chains/{self.name}"

    def join(self, salt: int) -> None:
        """Start to record changes. A new salt changes all hashes, so the index is emptied."""
        if salt != self._secret:
            self._secret, self._index, self._conversations = salt, PrefixIndex(), Conversations()
        self._outbox.is_open = True

    def changes(self, snapshot: Snapshot) -> bytes | None:
        return self._outbox.take()

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        """Record and withdraw the chains of another picker, at endpoints of the pool."""
        slots = snapshot.endpoints.derive(slots_by_address)
        block_tokens, count = self._block_tokens(snapshot), 0
        limits: dict[int, int] = {}
        for one in self._outbox.read(payload):
            slot = slots.get(one.address)
            if slot is None:
                continue
            if one.is_withdrawn:
                self._withdraw(slot, one.hashes)
            else:
                if slot not in limits:
                    limits[slot] = self._limit(snapshot, slot, block_tokens)
                self._record(slot, one.hashes, limits[slot])
            count += 1
        return count

    def _record(self, slot: int, chain: "array[int]", limit: int) -> None:
        self._index.record(slot, chain, limit)
        self._conversations.note(chain, slot)

    def _withdraw(self, slot: int, chain: "array[int]") -> None:
        self._index.withdraw(slot, chain)
        self._conversations.withdraw(chain, slot)

    def _hashed(self, request: Request, snapshot: Snapshot) -> _Hashed:
        """Return the blocks of the request, computed once unless the block size changes."""
        block_tokens = self._block_tokens(snapshot)
        hashed = request.get(self._hashed_key)
        if hashed is None or hashed.block_tokens != block_tokens:
            hashed = self._hash(request, block_tokens)
            request.put(self._hashed_key, hashed)
        return hashed

    def _hash(self, request: Request, block_tokens: int) -> _Hashed:
        seed = chain_seed(request.model, request.body.cache_salt) ^ self._secret
        room = self.parameters.max_blocks(block_tokens)
        chains: list[array[int]] = []
        tokens: list[int] = []
        counted = request.get(PROMPT_TOKENS)
        sized = None if counted is None else counted.prompt
        for prompt in request.body.prompts if sized is None else (sized,):
            chain = block_hashes(prompt, seed=seed, block_tokens=block_tokens, max_blocks=room)
            if chain:
                chains.append(chain)
                tokens.append(-(-len(prompt) // BYTES_PER_TOKEN))
                room -= len(chain)
            if room <= 0:
                break
        return _Hashed(block_tokens, chains, tokens)

    def _match(self, hashed: _Hashed, slots: int) -> PrefixMatch:
        if len(hashed.chains) <= 1:
            chain = hashed.chains[0] if hashed.chains else _NO_BLOCKS
            last_slot, computed = self._conversations.find(chain)
            return PrefixMatch(
                self._index.match(chain, slots),
                len(chain),
                hashed.block_tokens,
                last_slot=last_slot,
                last_tokens=computed * hashed.block_tokens,
            )
        blocks = np.zeros(slots, dtype=np.int32)
        held = np.zeros(slots, dtype=np.int64)
        for chain, tokens in zip(hashed.chains, hashed.tokens, strict=True):
            matched = self._index.match(chain, slots)
            blocks += matched
            held += np.minimum(matched.astype(np.int64) * hashed.block_tokens, tokens)
        return PrefixMatch(blocks, hashed.blocks, hashed.block_tokens, held)

    def _block_tokens(self, snapshot: Snapshot) -> int:
        """Return the tokens of one block: with `autoTune`, those of the engines if known."""
        if self.parameters.auto_tune:
            reported = snapshot.columns.get(KV_BLOCK_TOKENS.name)
            if reported is not self._reported:  # a column is replaced as a whole
                self._reported, self._engine_tokens = reported, _block_tokens(reported)
            return self._engine_tokens or self.parameters.block_tokens
        return self.parameters.block_tokens

    def _limit(self, snapshot: Snapshot, slot: int, block_tokens: int) -> int:
        """Return the most blocks to record for the slot."""
        capacity = self.parameters.lru_capacity_per_server
        if self.parameters.auto_tune:
            engine_tokens = snapshot.column(KV_BLOCKS).item(slot) * snapshot.column(KV_BLOCK_TOKENS).item(slot)
            if isfinite(engine_tokens):
                # not in `may_read`: the plugin that counts these tokens reads matches, and comes after this one
                capacity = int(engine_tokens + snapshot.column(IN_FLIGHT_TOKENS).item(slot)) // block_tokens
        return max(0, min(capacity, self.parameters.max_bytes_per_server // BYTES_PER_ENTRY))


def _block_tokens(reported: Floats | None) -> int:
    """Return the block size of the first endpoint that reports one, within bounds; 0 for none."""
    if reported is None or not len(reported):
        return 0
    first = float(reported[np.argmax(np.isfinite(reported))])
    return int(min(max(first, MIN_BLOCK_TOKENS), MAX_BLOCK_TOKENS)) if first > 0 else 0


class MultiClusterApproxPrefixCacheProducer(ApproxPrefixCacheProducer):
    """Publishes the prompt blocks that were sent to each cluster, as `approx-prefix-cache-producer` does for endpoints.

    If the plugin is declared without a name, it is the default producer of prefix matches.
    """

    plugin_type = "multicluster-approx-prefix-cache-producer"
    stability = Stability.ALPHA

    def setup(self) -> None:
        super().setup()
        if self.name == self.plugin_type:
            self._match_key = PREFIX_MATCH
            self.writes = (PREFIX_MATCH,)
