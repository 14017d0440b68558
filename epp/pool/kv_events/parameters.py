# SPDX-License-Identifier: Apache-2.0
"""Parameters of the producer of matches by KV events, in the form of llm-d-router."""

from typing import Literal

from msgspec import field

from epp.framework import Count, Name, Natural, NonNegative, Parameters
from epp.framework.quantities import parse_duration
from epp.pool.kv_events.accuracy import PredictionCheck
from epp.pool.kv_events.subscriptions import KvEvents
from epp.pool.tokens.source import UdsTokenizerConfig
from epp.runtime.addresses import RedisAddress

_DEFAULT_BLOCK_TOKENS = 16
MOST_BLOCKS = 10_000_000
"""Most blocks in the index: 62 bytes each, and 8 more for each 64 endpoints beyond 128."""


class TokenProcessor(Parameters, frozen=True):
    """Blocks of a prompt."""

    block_size_tokens: Natural = _DEFAULT_BLOCK_TOKENS
    """Tokens of a block in scores; engines may have blocks of another size."""
    block_size: Natural = 0
    """Deprecated: used if `blockSizeTokens` is 0."""
    hash_seed: str = ""
    """Seed of the keys of blocks."""
    hash_algorithm: Literal["", "cbor-fnv", "xxh64"] = ""
    """Algorithm of the keys that are shared with `redisConfig`; empty for `cbor-fnv`. `xxh64` is twenty times as fast,
    and looks up prompts of 131,072 tokens instead of 20,480. Without `redisConfig`, XXH64 is always used, since the
    keys stay in the picker."""


class InMemory(Parameters, frozen=True):
    """The index of this picker."""

    size: Count = MOST_BLOCKS
    """Most blocks in the index. Numbers above 10 million count as 10 million, with a warning; the default of
    llm-d-router is 100 million."""
    pod_cache_size: Count = 10
    """Endpoints for each block. Without effect: all endpoints that hold a block are known."""


class RedisParameters(Parameters, frozen=True):
    """A Redis or Valkey server, or Sentinels that name one; clusters are not supported."""

    address: str = "redis://127.0.0.1:6379"
    """`redis://` or, with TLS, `rediss://`, then `[user:password@]host[:port][/database]`; or `unix:///path`; or, for
    the primary that Sentinels name, `redis+sentinel://[user:password@]host[:port],.../service[/database]`.
    The default scheme is `redis://`; `valkey://` and `valkeys://` are the same as `redis://` and `rediss://`. If there
    is no password, the environment variables `EPP_REDIS_USERNAME` and `EPP_REDIS_PASSWORD` supply user and password."""
    ca_file: str = ""
    """File with the certificate authorities of the server, for `rediss://`; empty for those of the system. Not a
    parameter of llm-d-router."""

    def __post_init__(self) -> None:
        self.server.connection()

    @property
    def server(self) -> RedisAddress:
        """Address and certificate authorities."""
        return RedisAddress(self.address, self.ca_file, "redisConfig.address", "redisConfig.caFile")


class BlockIndexParameters(Parameters, frozen=True):
    """Place in which blocks are indexed."""

    in_memory_config: InMemory = InMemory()
    """Size of the index."""
    enable_metrics: bool = False
    """Without effect: the metrics are always there."""
    metrics_logging_interval: Natural = 0
    """Without effect: nothing is logged at intervals."""
    redis_config: RedisParameters | None = None
    """A Redis or Valkey server through which pickers share their indexes, in addition to the index of this picker;
    requires the extra `redis`. Without effect if `costAwareMemoryConfig` is given, as in llm-d-router."""
    cost_aware_memory_config: dict[str, object] | None = None
    """Without effect: `inMemoryConfig` is used."""


class Backend(Parameters, frozen=True):
    """A tier of caches."""

    name: Name
    """Name of the tier, such as gpu, cpu or disk."""
    weight: NonNegative
    """Weight of a block whose best tier this is."""


class TokenizersPool(Parameters, frozen=True):
    """The tokenizer service of llm-d-kv-cache."""

    model_name: str = ""
    """Model whose tokens it supplies; if empty, the service is not used."""
    workers_count: Count = 5
    """Without effect."""
    uds: UdsTokenizerConfig = UdsTokenizerConfig()
    """Socket of the tokenizer service."""

    def __post_init__(self) -> None:
        if self.model_name:
            self.uds.tokenizer(self.model_name)


class Indexer(Parameters, frozen=True):
    """The index, and the weights of tiers."""

    kv_block_index_config: BlockIndexParameters = BlockIndexParameters()
    """Place in which blocks are indexed."""
    kv_cache_backend_configs: tuple[Backend, ...] = (Backend(name="gpu", weight=1.0), Backend(name="cpu", weight=0.8))
    """Weights of tiers; a tier that is not listed weighs 1."""
    tokenizers_pool_config: TokenizersPool | None = None
    """Refused, except by `precise-prefix-cache-scorer`: declare a token-producer with `udsTokenizerConfig`."""


class PrecisePrefixCacheParameters(Parameters, frozen=True):
    """The parameters of llm-d-router: blocks, index, subscriptions, and expected blocks."""

    token_processor_config: TokenProcessor = TokenProcessor()
    """Blocks of a prompt, and their keys."""
    indexer_config: Indexer = Indexer()
    """The index, and the weights of tiers."""
    kv_events_config: KvEvents = KvEvents()
    """Subscriptions to the events of engines."""
    speculative_indexing: bool = False
    """Assume that the target of a request will hold its blocks, until its engine reports them."""
    speculative_ttl: str = field(default="2s", name="speculativeTTL")
    """Time after which an expected block that no event confirmed is forgotten."""
    prediction_check: PredictionCheck = PredictionCheck()
    """Check of the predictions against the cached tokens of responses. Not a parameter of llm-d-router."""

    def __post_init__(self) -> None:
        parse_duration(self.speculative_ttl or "0")
