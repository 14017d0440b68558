# SPDX-License-Identifier: Apache-2.0
"""Produce the part of a prompt that each endpoint holds in its KV cache, as its engine reports it."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from secrets import randbits
from typing import Annotated, Literal, NamedTuple

import numpy as np
from msgspec import Meta, field
from numpy.typing import NDArray

from epp.framework import (
    CACHED_TOKENS_PREDICTED,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Count,
    DataKey,
    Endpoint,
    Metadata,
    Name,
    Natural,
    NonNegative,
    Parameters,
    PrefixMatch,
    PreRequest,
    Producer,
    Request,
    Response,
    ResponseReporter,
    SchedulingResult,
    Snapshot,
)
from epp.framework.datalayer import AffectedEndpoints, FollowingTagger, Report
from epp.framework.endpoint import Identity
from epp.framework.plugin_status import MOST_ENDPOINTS, PluginMetric, Sample, endpoint_state
from epp.framework.quantities import parse_duration
from epp.framework.snapshot import Column
from epp.pool.kv_events.accuracy import METRICS as ACCURACY_METRICS
from epp.pool.kv_events.accuracy import Accuracy, PredictionCheck
from epp.pool.kv_events.block_keys import TOKEN_BYTES, XxHash
from epp.pool.kv_events.events import DEFAULT_TIER, BlockRemoved, BlockStored, pieces_of
from epp.pool.kv_events.index import SPECULATIVE, BlockIndex, Lane, Message
from epp.pool.kv_events.subscriber import Received, Subscriber

_DEFAULT_BLOCK_TOKENS = 16
_BLOCKS_AT_A_TIME = 1_000
"""Blocks whose events are applied in one turn of the event loop: five milliseconds."""
_MOST_BLOCKS = 10_000_000
"""Blocks that the index holds at most: 62 bytes each, and 8 more for each 64 endpoints beyond 128."""
_MOST_TOKENS = 128 * 1024
"""Tokens of a request that are looked up: ten milliseconds."""
_MOST_EXPECTED = 100_000
"""Requests whose blocks are expected at an endpoint."""
_DEFAULT_TTL_SECONDS = 2.0
_SWEEP_SECONDS = 0.1
_PREFILL = "prefill"
_FAST_TIERS = {DEFAULT_TIER, SPECULATIVE}
_ROUNDING = 1e-9
LANE = Column("kv_event_lane", "id")
"""Id of the lane of an endpoint in the index."""
_OK = 200
_MOST_SHOWN = 20
"""Endpoints that are named on the health page."""
_RANK = re.compile(r"-rank-(\d+)$")


class TokenProcessor(Parameters, frozen=True):
    """Blocks of a prompt."""

    block_size_tokens: Natural = _DEFAULT_BLOCK_TOKENS
    """Tokens of a block in scores; engines may have blocks of another size."""
    block_size: Natural = 0
    """Deprecated: used if `blockSizeTokens` is 0."""
    hash_seed: str = ""
    """Seed of the keys of blocks."""
    hash_algorithm: Literal["", "cbor-fnv", "xxh64"] = ""
    """Algorithm of the keys; without effect on scores. XXH64 is always used, as the keys stay in the picker."""


class InMemory(Parameters, frozen=True):
    """The index of this picker."""

    size: Count = 100_000_000
    """Most blocks; at most 10 million are held."""
    pod_cache_size: Count = 10
    """Endpoints for each block. Without effect: all endpoints that hold a block are known."""


class BlockIndexParameters(Parameters, frozen=True):
    """Where blocks are indexed."""

    in_memory_config: InMemory = InMemory()
    """Size of the index."""
    enable_metrics: bool = False
    """Without effect: the metrics are always there."""
    metrics_logging_interval: Natural = 0
    """Without effect: nothing is logged at intervals."""
    redis_config: dict[str, object] | None = None
    """An index in Redis or Valkey. Refused: not supported yet."""
    cost_aware_memory_config: dict[str, object] | None = None
    """Without effect: `inMemoryConfig` is used."""

    def __post_init__(self) -> None:
        if self.redis_config is not None:
            raise ValueError("redisConfig is known, not supported yet; leave it out")


class Backend(Parameters, frozen=True):
    """A tier of caches."""

    name: Name
    """Name of the tier, such as gpu, cpu or disk."""
    weight: NonNegative
    """Weight of a block whose best tier this is."""


class Indexer(Parameters, frozen=True):
    """The index, and the weights of tiers."""

    kv_block_index_config: BlockIndexParameters = BlockIndexParameters()
    """Where blocks are indexed."""
    kv_cache_backend_configs: tuple[Backend, ...] = (Backend(name="gpu", weight=1.0), Backend(name="cpu", weight=0.8))
    """Weights of tiers; a tier that is not listed weighs 1."""
    tokenizers_pool_config: dict[str, object] | None = None
    """Refused: declare a token-producer."""

    def __post_init__(self) -> None:
        if self.tokenizers_pool_config is not None:
            raise ValueError("tokenizersPoolConfig is not supported; declare a token-producer plugin instead")


class PodDiscovery(Parameters, frozen=True):
    """Sockets of engines."""

    socket_port: Annotated[int, Meta(ge=1, le=65535)] = 5557
    """Port of the first rank's events; rank i has the port i higher."""
    replay_socket_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port on which engines repeat events. Without effect yet: after a gap, the cache counts as empty."""
    pod_label_selector: str = ""
    """Without effect: the endpoints of the pool are used."""
    pod_namespace: str = ""
    """Without effect."""


class KvEvents(Parameters, frozen=True):
    """Subscriptions to KV events."""

    topic_filter: str = "kv@"
    """Beginning of the topics subscribed to."""
    concurrency: Count = 4
    """Without effect: one thread receives the events."""
    engine_type: Literal["vllm", "sglang"] = "vllm"
    """Engine; the formats of both are read."""
    discover_pods: bool = True
    """Subscribe to each endpoint of the pool."""
    pod_discovery_config: PodDiscovery = PodDiscovery()
    """Ports of the engines."""
    zmq_endpoint: str = ""
    """A socket that engines connect to. Refused: not supported yet."""

    def __post_init__(self) -> None:
        if self.zmq_endpoint:
            raise ValueError(
                "zmqEndpoint is known, not supported yet; leave it out: the picker subscribes to endpoints"
            )


class PrecisePrefixCacheParameters(Parameters, frozen=True):
    """The parameters of llm-d-router: blocks, index, subscriptions, and expected blocks."""

    token_processor_config: TokenProcessor = TokenProcessor()
    """Blocks of a prompt, and their keys."""
    indexer_config: Indexer = Indexer()
    """The index, and the weights of tiers."""
    kv_events_config: KvEvents = KvEvents()
    """Subscriptions to the events of engines."""
    speculative_indexing: bool = False
    """Expect that the target of a request will hold its blocks, until its engine confirms it."""
    speculative_ttl: str = field(default="2s", name="speculativeTTL")
    """Time after which an expected block that no event confirmed is forgotten."""
    prediction_check: PredictionCheck = PredictionCheck()
    """When the predictions for an endpoint count as wrong. Not a parameter of llm-d-router."""

    def __post_init__(self) -> None:
        parse_duration(self.speculative_ttl or "0")


_BLOCKS = PluginMetric("kv_cache_index_blocks", "Distinct blocks that the index holds.")
_LOOKUPS = PluginMetric("kv_cache_index_lookup_requests", "Prompts looked up in the index.")
_HITS = PluginMetric("kv_cache_index_lookup_hits", "Longest match of each lookup, in blocks, summed up.")
_SUBSCRIBERS = PluginMetric("kv_cache_events_active_subscribers", "Subscriptions to the events of engines.")
_MESSAGES = PluginMetric("kv_cache_events_messages_received", "Messages with events, by result.", ("result",))
_UNTOLD = PluginMetric("prefix_requests_without_tokens", "Requests that were not looked up: no token ids.")


class _Prompts(NamedTuple):
    """The blocks of a request, of each block size of the engines."""

    keys: Mapping[int, Sequence[NDArray[np.uint64]]]
    """By block size: keys of each prompt."""
    total_blocks: int
    """Blocks of the configured size, in all prompts."""


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


class PrecisePrefixCacheProducer(
    Producer[PrecisePrefixCacheParameters],
    PreRequest[PrecisePrefixCacheParameters],
    ResponseReporter[PrecisePrefixCacheParameters],
    FollowingTagger[PrecisePrefixCacheParameters],
):
    """Publishes, for each endpoint, the leading blocks of the prompt that its engine reports to hold in its KV cache.

    Subscribes to the KV events of each endpoint of the pool. The prompt must be known as token ids: those of the
    request, or those of a token-producer. Blocks are compared at the block size of the engines, and count in blocks of
    `blockSizeTokens`, with the weight of the best tier that has them. After a gap in its events, a lost connection or
    a restart, the cache of an endpoint counts as empty until its engine reports again.

    The match of the picked endpoint is compared with the `cached_tokens` of its response, if the engine reports them
    (vLLM: `--enable-prompt-tokens-details`) and the gateway shows the body. While the matches of an endpoint are wrong
    too often (`predictionCheck`), those of another producer replace them, and `/healthz` names the endpoint.
    """

    plugin_type = "precise-prefix-cache-producer"
    metrics = (_BLOCKS, _LOOKUPS, _HITS, _SUBSCRIBERS, _MESSAGES, _UNTOLD, *ACCURACY_METRICS)
    namespaces = ()
    reads_response_body = False

    def setup(self) -> None:
        """Prepare the index; raises ValueError for blocks without tokens."""
        given = self.parameters
        processor = given.token_processor_config
        self._block_tokens = processor.block_size_tokens or processor.block_size
        if not self._block_tokens:
            raise ValueError("tokenProcessorConfig.blockSizeTokens must be at least 1")
        self._weights = {tier.name.lower(): tier.weight for tier in given.indexer_config.kv_cache_backend_configs}
        self._ttl = parse_duration(given.speculative_ttl or "0") or _DEFAULT_TTL_SECONDS
        self._match_key = PREFIX_MATCH.produced_by(self.name)
        self._prompts_key: DataKey[_Prompts] = DataKey("kv-event-blocks", self.plugin_type, self.name)
        self._hash = XxHash(processor.hash_seed)
        size = given.indexer_config.kv_block_index_config.in_memory_config.size
        self._index = BlockIndex(self._hash, capacity=min(size, _MOST_BLOCKS), secret=randbits(63))
        self._lanes: dict[Identity, Lane] = {}
        self._by_id: dict[int, Lane] = {}
        self._addresses: dict[int, str] = {}
        self._subscriber: Subscriber | None = None
        self._expected: deque[_Expected] = deque()
        self._lookups = self._hits = self._untold = 0
        self._accuracy = Accuracy(given.prediction_check, self._block_tokens)
        self._held_key: DataKey[NDArray[np.int64]] = DataKey("kv-event-tokens", self.plugin_type, self.name)
        """Matches as the index has them, also those of endpoints that are distrusted."""
        self._sent_key: DataKey[_Sent] = DataKey("kv-event-prediction", self.plugin_type, self.name)
        self._other_key = PREFIX_MATCH.produced_by(given.prediction_check.prefix_match_info_producer_name)
        self.writes = (self._match_key, LANE)
        self.may_read = (PROMPT_TOKENS, self._other_key)

    def tag(self, endpoint: Endpoint) -> Report:
        """Subscribe to the events of an endpoint that is new."""
        lane = self._lanes.get(endpoint.identity)
        if lane is None:
            lane = self._lanes[endpoint.identity] = self._index.add()
            self._by_id[lane.id] = lane
            self._addresses[lane.id] = self._address_of(endpoint)
            if self._subscriber is not None:
                self._subscriber.connect(lane.id, self._addresses[lane.id])
        return Report({LANE: lane.id})

    def tag_made_up(self, endpoint: Endpoint) -> Report:  # noqa: ARG002  as the role calls it
        """Return nothing: there is no engine."""
        return Report()

    def untag(self, endpoint: Endpoint) -> None:
        """End the subscription of an endpoint that left, and forget its blocks."""
        lane = self._lanes.pop(endpoint.identity, None)
        if lane is not None:
            del self._by_id[lane.id], self._addresses[lane.id]
            self._index.remove(lane)
            self._accuracy.forget(lane.id)
            if self._subscriber is not None:
                self._subscriber.disconnect(lane.id)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:  # noqa: ARG002  as the role calls it
        """Receive events until cancelled; what engines hold is unknown at first."""
        events = self.parameters.kv_events_config
        if not events.discover_pods:
            return
        self._subscriber = subscriber = Subscriber(events.topic_filter, self._apply)
        try:
            for identifier, address in self._addresses.items():
                subscriber.connect(identifier, address)
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                self._forget_expected()
                while self._index.sweep():  # noqa: ASYNC110  it is work, not a condition
                    await asyncio.sleep(0)
        finally:
            self._subscriber = None
            for lane in self._lanes.values():
                self._index.clear(lane)
            await subscriber.close()

    def produce(self, request: Request, candidates: Candidates) -> None:
        """Publish the match; without token ids, none."""
        prompts = self._prompts(request)
        if prompts is None:
            self._untold += not request.dry_run
            return
        snapshot = candidates.snapshot
        lanes = _lane_ids(snapshot)
        tokens, weighted = np.zeros(len(lanes), dtype=np.int64), np.zeros(len(lanes))
        tiers: dict[str, NDArray[np.int64]] = {}
        now = None if request.dry_run else int(self.clock.now()) + 1
        for size, chains in prompts.keys.items():
            for keys in chains:
                held = self._index.match(keys, self._weights, lanes, now)
                tokens += held.blocks.astype(np.int64) * size
                weighted += held.weighted * size
                for tier in held.by_tier.keys() - _FAST_TIERS:
                    tiers[tier] = tiers.get(tier, 0) + held.by_tier[tier].astype(np.int64) * size
        request.put(self._held_key, tokens)
        if self._accuracy.distrusted:
            distrusted = np.isin(lanes, tuple(self._accuracy.distrusted))
            other = request.get(self._other_key)
            tokens = np.where(distrusted, 0 if other is None else other.tokens, tokens)
            weighted = np.where(distrusted, tokens, weighted)
            tiers = {tier: np.where(distrusted, 0, each) for tier, each in tiers.items()}
        blocks = np.floor(weighted / self._block_tokens + _ROUNDING).astype(np.int32)
        if not request.dry_run:
            self._lookups += 1
            self._hits += int(blocks.max(initial=0))
        request.put(self._match_key, PrefixMatch(blocks, prompts.total_blocks, self._block_tokens, tokens, tiers))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        """Note the prediction for the target, and expect the blocks of the request at the targets."""
        prompts, held = request.get(self._prompts_key), request.get(self._held_key)
        if prompts is None or held is None:
            return
        lanes = _lane_ids(result.primary.candidates.snapshot)
        slot = result.primary.slot
        lane = self._by_id.get(lanes.item(slot))
        if lane is not None and all(leg is None or leg.slot == slot for leg in result.profiles.values()):
            request.put(CACHED_TOKENS_PREDICTED, held.item(slot))
            request.put(self._sent_key, _Sent(lane, result.targets[0], held.item(slot)))
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

    def report(self, request: Request, response: Response) -> Metadata:
        """Compare the prediction with the cached tokens of the response; there is no metadata."""
        sent, usage = request.get(self._sent_key), response.usage
        if sent is None or usage is None or response.status != _OK or len(request.body.prompts) > 1:
            return {}
        if response.served.hostport == sent.target.hostport and self._by_id.get(sent.lane.id) is sent.lane:
            cached = usage.cached_tokens if response.tells_cached else None
            self._accuracy.check(sent.lane.id, request.path, sent.tokens, cached, usage.prompt_tokens)
        return {}

    @property
    def degraded(self) -> Sequence[str]:
        """The endpoints whose predictions are not used."""
        found = sorted(self._addresses.get(each, "") for each in tuple(self._accuracy.distrusted))
        if not found:
            return ()
        shown = ", ".join(found[:_MOST_SHOWN]) + (
            f" and {len(found) - _MOST_SHOWN} more" if found[_MOST_SHOWN:] else ""
        )
        problem = f"the KV events of {shown} disagree with the cached tokens of responses, and are not used"
        return (f"{problem}; compare the model and the token ids in events with those of requests",)

    @property
    def samples(self) -> Sequence[Sample]:
        """Size and use of the index, and numbers of messages."""
        found = [
            Sample(_BLOCKS, len(self._index)),
            Sample(_LOOKUPS, self._lookups),
            Sample(_HITS, self._hits),
            Sample(_UNTOLD, self._untold),
            Sample(_SUBSCRIBERS, len(self._addresses) if self._subscriber is not None else 0),
            *self._accuracy.samples,
        ]
        if self._subscriber is not None:
            found += [Sample(_MESSAGES, count, (result,)) for result, count in self._subscriber.counts.by_result()]
        return found

    def dump_state(self, snapshot: Snapshot) -> object | None:
        """Return the sizes of the index, the addresses of events, and the number of blocks of each endpoint."""
        return {
            "distinctBlocks": len(self._index),
            "blockSizes": sorted(self._index.block_sizes),
            "subscriptions": sorted(self._addresses.values())[:MOST_ENDPOINTS],
            **endpoint_state(snapshot, {"blocks": self._index.blocks_of(_lane_ids(snapshot))}),
        }

    async def _apply(self, received: Sequence[Received]) -> None:
        """Apply events, some in each iteration of the event loop."""
        now = int(self.clock.now()) + 1
        batch: list[Message] = []
        blocks = 0
        for engine, model, events, is_complete in received:
            if not is_complete:
                self._write(batch, now)
                batch = []
                if (lane := self._by_id.get(engine)) is not None:
                    self._index.clear(lane)
                    self._accuracy.forget(engine)
            for event in events:
                for piece in pieces_of(event, _BLOCKS_AT_A_TIME) if isinstance(event, BlockStored) else (event,):
                    if (lane := self._by_id.get(engine)) is not None:
                        batch.append(Message(lane, model, (piece,)))
                    blocks += len(piece.block_hashes) if isinstance(piece, BlockStored | BlockRemoved) else 1
                    if blocks >= _BLOCKS_AT_A_TIME:
                        self._write(batch, now)
                        batch, blocks = [], 0
                        await asyncio.sleep(0)
        self._write(batch, now)

    def _write(self, batch: Sequence[Message], now: int) -> None:
        self._index.apply([each for each in batch if self._by_id.get(each.lane.id) is each.lane], now)

    def _forget_expected(self) -> None:
        """Withdraw the blocks that were expected for too long."""
        while self._expected and self._expected[0].until <= self.clock.now():
            _, lane, keys = self._expected.popleft()
            if self._by_id.get(lane.id) is lane:
                self._index.withdraw(keys, [(lane, SPECULATIVE, len(keys))])

    def _address_of(self, endpoint: Endpoint) -> str:
        rank = _RANK.search(endpoint.name)
        port = self.parameters.kv_events_config.pod_discovery_config.socket_port + (int(rank[1]) if rank else 0)
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        return f"tcp://{host}:{port}"

    def _prompts(self, request: Request) -> _Prompts | None:
        """Return the blocks of the request, computed once; None without token ids."""
        found = request.get(self._prompts_key)
        if found is None:
            prompts = _token_ids(request)
            if prompts is None:
                return None
            extras = [[request.body.cache_salt]] if request.body.cache_salt else []
            first = self._hash.first(request.model)
            sizes = self._index.block_sizes or {self._block_tokens}
            keys = {
                size: [np.array(self._hash.chain(first, ids, size, extras), dtype=np.uint64) for ids in prompts]
                for size in sizes
            }
            total = sum(len(ids) // TOKEN_BYTES // self._block_tokens for ids in prompts)
            found = _Prompts(keys, total)
            request.put(self._prompts_key, found)
        return found


def _token_ids(request: Request) -> Sequence[bytes] | None:
    """Return the token ids of each prompt, up to the limit; None if they are unknown."""
    counted = request.get(PROMPT_TOKENS)
    if counted is not None and counted.ids is not None:
        prompts: Sequence[bytes] = (counted.ids.astype(np.uint32).tobytes(),)
    elif request.body.is_token_ids:
        prompts = request.body.prompts
    else:
        return None
    left = _MOST_TOKENS * TOKEN_BYTES
    found = []
    for prompt in prompts:
        found.append(prompt[:left])
        left -= len(found[-1])
    return found


def _lane_ids(snapshot: Snapshot) -> NDArray[np.intp]:
    """Return the lane of each slot; -1 for none."""
    return np.nan_to_num(snapshot.column(LANE), nan=-1.0).astype(np.intp)
