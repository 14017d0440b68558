# SPDX-License-Identifier: Apache-2.0
"""Publishes the part of a prompt that each endpoint holds in its KV cache, as reported by its engine."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from secrets import randbits
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from epp.framework import (
    CACHED_TOKENS_PREDICTED,
    COPY_SOURCE,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Admitter,
    Candidates,
    DataKey,
    Endpoint,
    EndpointObserver,
    Metadata,
    PrefixMatch,
    PreRequest,
    Producer,
    Request,
    Response,
    ResponseReporter,
    SchedulingResult,
    Snapshot,
)
from epp.framework.datalayer import AffectedEndpoints, Follower, Report, Tagger
from epp.framework.endpoint import Identity
from epp.framework.messages import listed
from epp.framework.plugin_status import Distribution, InputState, PluginMetric, Sample, endpoint_state
from epp.framework.quantities import parse_duration
from epp.framework.session_affinity import BLOCKS_SEARCHED, Conversations
from epp.framework.snapshot import Column
from epp.pool.collectors.tagging import run_in_steps
from epp.pool.kv_events.accuracy import (
    HITS,
    INDEX_METRICS,
    LATENCY,
    LONGEST_HITS,
    LOOKUPS,
    WITHOUT_TOKENS,
    Accuracy,
    index_samples,
)
from epp.pool.kv_events.accuracy import METRICS as ACCURACY_METRICS
from epp.pool.kv_events.events import MOST_BLOCKS, AllBlocksCleared, pieces_of
from epp.pool.kv_events.holders import SPECULATIVE, Lane
from epp.pool.kv_events.index import BlockIndex, Message
from epp.pool.kv_events.order import Received
from epp.pool.kv_events.parameters import MOST_BLOCKS as MOST_INDEXED
from epp.pool.kv_events.parameters import PrecisePrefixCacheParameters
from epp.pool.kv_events.prompt_blocks import (
    FAST_TIERS,
    CborFnv,
    Matched,
    PromptBlocks,
    PromptHashing,
    SharedMatch,
    XxHash,
)
from epp.pool.kv_events.shared_index import SHARED_METRICS, SharedIndex
from epp.pool.kv_events.subscriptions import EVENT_METRICS, KvEvents, Subscriptions

_MOST_EXPECTED = 100_000
"""Most requests whose blocks are expected at an endpoint."""
_TOKENIZERS = "tokenizersPoolConfig is not supported; declare a token-producer plugin with udsTokenizerConfig instead"
_DEFAULT_TTL_SECONDS = 2.0
_SWEEP_SECONDS = 0.1
_PREFILL = "prefill"
_ROUNDING = 1e-9
LANE = Column("kv_event_lane", "id")
"""Id of the lane of an endpoint in the index."""
_OK = 200
_MOST_SHOWN = 20
"""Most endpoints that are named on the health page."""


class _Sent(NamedTuple):
    """The prediction for a picked endpoint."""

    lane: Lane
    target: Endpoint
    tokens: int


class _Expected(NamedTuple):
    """Blocks that an engine is expected to store."""

    until: float
    lane: Lane
    keys: NDArray[np.uint64]


PP = TypeVar("PP", bound=PrecisePrefixCacheParameters, default=PrecisePrefixCacheParameters)


class PrecisePrefixCacheProducer(
    Producer[PP], Admitter[PP], PreRequest[PP], ResponseReporter[PP], EndpointObserver[PP], Tagger[PP], Follower[PP]
):
    """Publishes, for each endpoint, the leading blocks of the prompt that its KV cache holds, as its engine reports.

    Subscribes to the KV events of each endpoint of the pool. The token ids of the prompt must be known, from the
    request or from a token-producer. Blocks are compared at the block size of the engines, and count in blocks of
    `blockSizeTokens`, with the weight of the best tier that has them. After a lost connection or a restart, the cache
    of an endpoint counts as empty until its engine reports blocks again. The same holds after a gap in its events,
    unless its responses report cached tokens: then the known blocks are used until such a response contradicts them.

    The match of the picked endpoint is compared with the `cached_tokens` of its response, if the engine reports them
    (vLLM: `--enable-prompt-tokens-details`) and the gateway sends the response body. While the matches of an endpoint
    are wrong too often (`predictionCheck`), the matches of another producer replace them, and `/healthz` names the
    endpoint.

    With `redisConfig`, pickers share their indexes, also with llm-d-router. A request waits for the shared index for at
    most 50 ms; the longer match of both indexes counts. While the server fails, this picker uses its own index.
    """

    plugin_type = "precise-prefix-cache-producer"
    parameters_type = PrecisePrefixCacheParameters
    has_tokenizers = False
    """Whether `tokenizersPoolConfig` is used rather than refused."""
    metrics: ClassVar[tuple[PluginMetric, ...]] = (
        *INDEX_METRICS, LOOKUPS, HITS, LONGEST_HITS, LATENCY, WITHOUT_TOKENS, *EVENT_METRICS, *ACCURACY_METRICS,
        *SHARED_METRICS,
    )  # fmt: skip
    namespaces = ()
    reads_response_body = False

    def setup(self) -> None:
        given = self.parameters
        if given.indexer_config.tokenizers_pool_config is not None and not self.has_tokenizers:
            raise ValueError(f"indexerConfig.{_TOKENIZERS}")
        processor = given.token_processor_config
        self._block_tokens = processor.block_size_tokens or processor.block_size
        if not self._block_tokens:
            raise ValueError("tokenProcessorConfig.blockSizeTokens must be at least 1")
        self._weights = {tier.name.lower(): tier.weight for tier in given.indexer_config.kv_cache_backend_configs}
        self._ttl = parse_duration(given.speculative_ttl or "0") or _DEFAULT_TTL_SECONDS
        self._match_key = PREFIX_MATCH.produced_by(self.name)
        stored_in = given.indexer_config.kv_block_index_config
        self._shared: SharedIndex | None = None
        if (redis := stored_in.redis_config) is not None and stored_in.cost_aware_memory_config is None:
            self._shared = SharedIndex(redis, self.clock, block_tokens=self._block_tokens, weights=self._weights)
        is_fast = self._shared is None or processor.hash_algorithm == "xxh64"
        self._hash = XxHash(processor.hash_seed) if is_fast else CborFnv(processor.hash_seed)
        key: DataKey[PromptBlocks] = DataKey("kv-event-blocks", self.plugin_type, self.name)
        self._hashing = PromptHashing(self._hash, self._block_tokens, key)
        capacity = min(stored_in.in_memory_config.size, MOST_INDEXED)
        self._index = BlockIndex(self._hash, capacity=capacity, secret=randbits(63), journal=self._shared)
        self._lanes: dict[Identity, Lane] = {}
        self._by_hostport: dict[str, Lane] = {}
        self._by_id: dict[int, Lane] = {}
        self._subscriptions = Subscriptions(given.kv_events_config)
        self._expected: deque[_Expected] = deque()
        self._conversations = Conversations()
        self._lookups = self._hits = self._without_tokens = 0
        self._accuracy = Accuracy(given.prediction_check, self._block_tokens)
        self._held_key: DataKey[NDArray[np.int64]] = DataKey("kv-event-tokens", self.plugin_type, self.name)
        """Matches of the index, including those of distrusted endpoints."""
        self._shared_key: DataKey[SharedMatch] = DataKey("kv-event-shared-blocks", self.plugin_type, self.name)
        self._sent_key: DataKey[_Sent] = DataKey("kv-event-prediction", self.plugin_type, self.name)
        self._other_key = PREFIX_MATCH.produced_by(given.prediction_check.prefix_match_info_producer_name)
        self._latency = Distribution(LATENCY.bounds)
        self.writes = (self._match_key, LANE)
        self.may_read = (PROMPT_TOKENS, self._other_key)

    def tag(self, endpoint: Endpoint) -> Report:
        lane = self._lanes.get(endpoint.identity)
        if lane is None:
            lane = self._lanes[endpoint.identity] = self._index.add()
            self._by_id[lane.id] = self._by_hostport[endpoint.hostport] = lane
            if self._shared is not None:
                self._shared.endpoints[lane] = endpoint.hostport
            self._subscriptions.add(endpoint, lane)
        else:
            self._subscriptions.update(endpoint)
        return Report({LANE: lane.id})

    def tag_made_up(self, endpoint: Endpoint) -> Report:  # noqa: ARG002  as the role calls it
        return Report()

    def untag(self, endpoint: Endpoint) -> None:
        lane = self._lanes.pop(endpoint.identity, None)
        if lane is not None:
            del self._by_id[lane.id]
            if self._by_hostport[endpoint.hostport] is lane:
                del self._by_hostport[endpoint.hostport]
            self._index.remove(lane)
            if self._shared is not None:
                self._shared.endpoints.pop(lane, None)
            self._accuracy.forget(lane.id)
            self._subscriptions.remove(endpoint)

    def slots_removed(self, slots: Sequence[int]) -> None:
        self._conversations.forget(*slots)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:  # noqa: ARG002  as the role calls it
        """Receive events until cancelled; at first, the caches of engines are unknown."""
        self._subscriptions.start(self._apply)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._subscriptions.ask())
                tasks.create_task(self._sweep())
                if self._shared is not None:
                    tasks.create_task(self._shared.run())
        finally:
            for lane in self._lanes.values():
                self._index.clear(lane)
            await self._subscriptions.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._forget_expected()
            while self._index.sweep():  # noqa: ASYNC110  each call does work
                await asyncio.sleep(0)

    def produce(self, request: Request, candidates: Candidates) -> None:
        """Publish the match if token ids are known; `admit` computes the blocks of a long prompt."""
        if self._hashing.known(request) is None and (request.dry_run or not self._hashing.is_long(request)):
            for _ in self._hashing.begin(request, self._sizes) or ():
                pass
        prompts = self._hashing.known(request)
        if prompts is None:
            return
        snapshot = candidates.snapshot
        lanes = self._subscriptions.current(_lane_ids(snapshot))
        started = perf_counter()
        matched = self._matched(prompts, lanes, None if request.dry_run else int(self.clock.now()) + 1)
        if (shared := request.get(self._shared_key)) is not None:
            slots = {lane: slot for slot, lane in enumerate(lanes.tolist())}
            known = {name: slots[lane.id] for name, lane in self._by_hostport.items() if lane.id in slots}
            other = shared.matched(known, len(lanes), self._block_tokens)
            matched = matched.replaced(other.tokens > matched.tokens, other)
        request.put(self._held_key, matched.tokens)
        if self._accuracy.distrusted:
            given = request.get(self._other_key)
            tokens = np.zeros(len(lanes), dtype=np.int64) if given is None else given.tokens.astype(np.int64)
            other = Matched(tokens, tokens.astype(np.float64), np.zeros_like(tokens), {})
            matched = matched.replaced(np.isin(lanes, tuple(self._accuracy.distrusted)), other)
        blocks = np.floor(matched.weighted / self._block_tokens + _ROUNDING).astype(np.int32)
        if not request.dry_run:
            self._latency.observe(perf_counter() - started)
            before = None if shared is None else request.get(self._match_key)
            self._lookups += before is None
            self._hits += int(blocks.max(initial=0))
            self._hits -= 0 if before is None else int(before.matched_blocks.max(initial=0))
        size, keys, skipped = _last_blocks(prompts)
        last_slot, computed = self._conversations.find(keys)
        match = PrefixMatch(
            blocks,
            prompts.total_blocks,
            self._block_tokens,
            matched.tokens,
            offloaded_tokens=matched.offloaded,
            tier_tokens=matched.tiers,
            last_slot=last_slot,
            last_tokens=(skipped + computed) * size if computed else 0,
        )
        request.put(self._match_key, match)

    def _matched(self, prompts: PromptBlocks, lanes: NDArray[np.intp], now: int | None) -> Matched:
        """Look up the blocks in the index of this picker."""
        tokens, weighted = np.zeros(len(lanes), dtype=np.int64), np.zeros(len(lanes))
        offloaded = tokens.copy()
        tiers: dict[str, NDArray[np.int64]] = {}
        for size, chains in prompts.keys.items():
            for keys in chains:
                held = self._index.match(keys, self._weights, lanes, now)
                tokens += held.blocks.astype(np.int64) * size
                weighted += held.weighted * size
                offloaded += held.offloaded.astype(np.int64) * size
                for tier in held.by_tier.keys() - FAST_TIERS:
                    tiers[tier] = tiers.get(tier, 0) + held.by_tier[tier].astype(np.int64) * size
        return Matched(tokens, weighted, offloaded, tiers)

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:  # noqa: ARG002  as the role calls it
        """Hold a request with a long prompt until its blocks are computed, in steps.

        With a shared index, also hold it for the answer, at most 50 ms; then `produce` publishes the longer matches.
        """
        if request.dry_run:
            return None
        if self._hashing.known(request) is not None:
            return self._look_up(request)
        steps = self._hashing.begin(request, self._sizes)
        return None if steps is None else asyncio.ensure_future(self._hash_and_look_up(request, steps))

    async def _hash_and_look_up(self, request: Request, steps: Iterator[None]) -> None:
        await run_in_steps(steps)
        if (held := self._look_up(request)) is not None:
            await held

    def _look_up(self, request: Request) -> Awaitable[None] | None:
        """Start to look up a request in the shared index."""
        prompts = self._hashing.known(request)
        if self._shared is None or prompts is None or request.get(self._shared_key) is not None:
            return None
        chains = [keys for keys in prompts.keys[self._block_tokens] if len(keys)]
        found = self._shared.look_up(chains, self._by_hostport) if chains else None
        if found is None:
            return None
        match, held = found
        request.put(self._shared_key, match)
        return held

    @property
    def _sizes(self) -> Collection[int]:
        """Block sizes of the engines and of the shared index, in tokens."""
        known = self._index.block_sizes or {self._block_tokens}
        return known if self._shared is None else known | {self._block_tokens}

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        """Record the prediction for the target, and expect the blocks of the request at the targets."""
        prompts, held = self._hashing.known(request), request.get(self._held_key)
        self._without_tokens += prompts is None
        if prompts is None or held is None:
            return
        lanes = _lane_ids(result.primary.candidates.snapshot)
        slot = result.primary.slot
        lane = self._by_id.get(lanes.item(slot))
        if lane is not None and all(leg is None or leg.slot == slot for leg in result.profiles.values()):
            request.put(CACHED_TOKENS_PREDICTED, held.item(slot))
            request.put(self._sent_key, _Sent(lane, result.targets[0], held.item(slot)))
        self._conversations.note(_last_blocks(prompts, 2)[1], slot)
        if not self.parameters.speculative_indexing:
            return
        until, now = self.clock.now() + self._ttl, int(self.clock.now()) + 1
        legs = (result.primary, result.profiles.get(_PREFILL))
        for slot in {leg.slot for leg in legs if leg is not None}:
            lane = self._by_id.get(lanes.item(slot))
            if lane is None or len(self._expected) >= _MOST_EXPECTED:
                continue
            keys = np.concatenate([keys for chains in prompts.keys.values() for keys in chains])
            self._index.store(keys, [(lane, SPECULATIVE, len(keys))], now)
            self._expected.append(_Expected(until, lane, keys))

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        prompts = self._hashing.known(request)
        if prompts is not None:
            self._conversations.withdraw(_last_blocks(prompts, 2)[1], result.primary.slot)

    def report(self, request: Request, response: Response) -> Metadata:
        """Compare the prediction with the cached tokens of the response; there is no metadata."""
        sent, usage = request.get(self._sent_key), response.usage
        if sent is None or usage is None or response.status != _OK or len(request.body.prompts) > 1:
            return {}
        if request.get(COPY_SOURCE) is not None:
            return {}  # the engine also counts blocks that it copies
        if response.served.hostport == sent.target.hostport and self._by_id.get(sent.lane.id) is sent.lane:
            cached = usage.cached_tokens if response.reports_cached else None
            if self._accuracy.check(sent.lane.id, request.path, sent.tokens, cached, usage.prompt_tokens):
                self._index.clear(sent.lane)
        return {}

    @property
    def degraded(self) -> Sequence[str]:
        if not (found := self._subscriptions.addresses(self._accuracy.distrusted)):
            return ()
        shown = listed(found, _MOST_SHOWN)
        problem = f"the KV events of {shown} disagree with the cached tokens of responses, and are not used"
        return (f"{problem}; compare the model and the token ids in events with those of requests",)

    @property
    def warnings(self) -> Sequence[str]:
        """Parameters that have no effect, or less effect than in llm-d-router."""
        index, events = self.parameters.indexer_config.kv_block_index_config, self.parameters.kv_events_config
        size, most = index.in_memory_config.size, MOST_INDEXED
        is_unused = index.redis_config is not None and self._shared is None
        found = {
            f"inMemoryConfig.size is {size}; only the {most} most recently used blocks are kept": size > most,
            "costAwareMemoryConfig has no effect: inMemoryConfig is used": index.cost_aware_memory_config,
            "redisConfig has no effect with costAwareMemoryConfig, as in llm-d-router": is_unused,
            "metricsLoggingInterval has no effect: nothing is logged": index.metrics_logging_interval,
            "concurrency has no effect: one thread receives events": events.concurrency != KvEvents().concurrency,
        }
        return [text for text, holds in found.items() if holds]

    @property
    def inputs(self) -> InputState:
        """Reasons that the picker does not listen or does not share its index, and invalid ports in labels."""
        shared = () if self._shared is None else self._shared.problems
        return InputState((*self._subscriptions.problems, *shared), ignored=self._subscriptions.ignored)

    @property
    def samples(self) -> Sequence[Sample]:
        return [
            *index_samples(self._index),
            Sample(LOOKUPS, self._lookups),
            Sample(HITS, self._hits),
            Sample(LONGEST_HITS, self._hits),
            Sample(LATENCY, self._latency),
            Sample(WITHOUT_TOKENS, self._without_tokens),
            *self._subscriptions.samples,
            *self._accuracy.samples,
            *(() if self._shared is None else self._shared.samples),
        ]

    def dump_state(self, snapshot: Snapshot) -> object | None:
        """Return the sizes of the index, the addresses of events, and the number of blocks of each endpoint."""
        return {
            "distinctBlocks": len(self._index),
            "blockSizes": sorted(self._index.block_sizes),
            **self._subscriptions.state,
            **endpoint_state(snapshot, {"blocks": self._index.blocks_of(_lane_ids(snapshot))}),
        }

    async def _apply(self, received: Sequence[Received]) -> None:
        """Apply events in portions, one in each iteration of the event loop."""
        now = int(self.clock.now()) + 1
        batch: list[Message] = []
        blocks = 0
        for engine, model, events, is_known, is_current, is_first, has_gap in received:
            if is_first or has_gap or not is_known:
                await self._write(batch, now)
                lane = self._subscriptions.lane_of(engine)
                if lane is not None and not (has_gap and self._accuracy.doubt(lane.id)):
                    self._index.clear(lane)
                    self._accuracy.forget(lane.id)
            if not is_current:
                self._subscriptions.doubt(engine)
            for event in events:
                for piece in pieces_of(event):
                    if (lane := self._subscriptions.lane_of(engine)) is not None:
                        batch.append(Message(lane, model, (piece,)))
                    blocks += 1  # an event takes as long as a block
                    blocks += 0 if isinstance(piece, AllBlocksCleared) else len(piece.block_hashes)
                    if blocks >= MOST_BLOCKS:
                        await self._write(batch, now)
                        blocks = 0
            if is_current and self._subscriptions.is_doubted(engine):
                await self._write(batch, now)
                self._subscriptions.doubt(engine, is_doubted=False)
        await self._write(batch, now)

    async def _write(self, batch: list[Message], now: int) -> None:
        """Apply a batch and empty it; leave half of the time for requests."""
        while batch:
            if self._shared is not None and (unknown := self._index.unknown(batch)):
                keys = await self._shared.keys_of(tuple(unknown.values()))
                self._index.learn({each: key for each, key in zip(unknown, keys, strict=False) if key}, now)
            started = perf_counter()
            left = [each for each in batch if self._by_id.get(each.lane.id) is each.lane]
            batch[:] = left[self._index.apply(left, now) :]
            await asyncio.sleep(perf_counter() - started)

    def _forget_expected(self) -> None:
        while self._expected and self._expected[0].until <= self.clock.now():
            _, lane, keys = self._expected.popleft()
            if self._by_id.get(lane.id) is lane:
                self._index.withdraw(keys, [(lane, SPECULATIVE, len(keys))])


def _last_blocks(prompts: PromptBlocks, most: int = BLOCKS_SEARCHED) -> tuple[int, list[int], int]:
    """Return the block size, the keys of the last blocks of a single prompt, and the number of blocks before them."""
    size, chains = next(iter(prompts.keys.items()), (0, ()))
    if len(chains) != 1:
        return size, [], 0
    keys: list[int] = chains[0][-most:].tolist()
    return size, keys, len(chains[0]) - len(keys)


def _lane_ids(snapshot: Snapshot) -> NDArray[np.intp]:
    """Return the lane id of each slot; -1 if it has no lane."""
    return np.nan_to_num(snapshot.column(LANE), nan=-1.0).astype(np.intp)
