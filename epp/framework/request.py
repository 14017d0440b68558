# SPDX-License-Identifier: Apache-2.0
"""One LLM request and its response as plugins see them: protocol-neutral, with a typed store for computed data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.framework.arrays import read_only
from epp.framework.candidates import Candidates, Subset
from epp.framework.endpoint import Endpoint

__all__ = [
    "AGENT_IDENTITY",
    "CACHED_TOKENS_PREDICTED",
    "COPY_SOURCE",
    "FETCH_SECONDS",
    "IN_FLIGHT_COST",
    "MEDIA_MATCH",
    "PREFIX_MATCH",
    "PROMPT_TOKENS",
    "PULLED_TOKENS",
    "SESSION_ID",
    "DataKey",
    "GrpcCounts",
    "GrpcResponse",
    "Headers",
    "Media",
    "MediaMatch",
    "MediaTokens",
    "PrefixMatch",
    "PromptTokens",
    "Request",
    "RequestBody",
    "Response",
    "Usage",
]

T = TypeVar("T")

DEFAULT_FLOW = "default-flow"
BYTES_PER_TOKEN = 4
"""Estimate for text; exact for token ids, which a prompt holds as four bytes each."""


class Headers(Mapping[str, str]):
    """Header fields by lower-case name; the first of several values answers, all are kept, in order."""

    __slots__ = ("_fields", "_first")

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: tuple[tuple[str, str], ...] | None = tuple((name.lower(), value) for name, value in fields)
        self._first: dict[str, str] = {}
        for name, value in self._fields:
            self._first.setdefault(name, value)

    @classmethod
    def unique(cls, fields: dict[str, str]) -> Self:
        """Return fields of different names, which are lower-case already: the same, sooner. Takes the dict over."""
        headers = cls.__new__(cls)
        headers._fields, headers._first = None, fields  # noqa: SLF001  another constructor
        return headers

    def __getitem__(self, name: str) -> str:
        return self._first[name]

    def __contains__(self, name: object) -> bool:
        return name in self._first

    @overload
    def get(self, name: str, default: None = None, /) -> str | None: ...
    @overload
    def get(self, name: str, default: str | T, /) -> str | T: ...
    def get(self, name: str, default: str | T | None = None, /) -> str | T | None:
        return self._first.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Every field, duplicates included, in the order of arrival."""
        if self._fields is None:
            self._fields = tuple(self._first.items())
        return self._fields

    def first_of(self, *names: str) -> str | None:
        """Return the value of the first of these names that is present: current spellings before deprecated ones."""
        for name in names:
            value = self._first.get(name)
            if value is not None:
                return value
        return None


class Media(msgspec.Struct, frozen=True, gc=False):
    """An image, an audio clip or a video in a prompt, where a placeholder of its hash stands for it."""

    kind: Literal["image", "audio", "video"]
    offset: int
    """Where the placeholder begins in the prompt, in bytes."""
    tokens: int
    """Length of the placeholder, estimated by the parser."""
    width: int = 0
    """Pixels of an image that the request itself carries; 0 for unknown."""
    height: int = 0


class GrpcCounts(NamedTuple):
    """Numbers of the fields of a message that count tokens; 0 for none."""

    message: int = 0
    """Number of the field with that message; 0 for the response itself."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class GrpcResponse(NamedTuple):
    """Where the responses of a gRPC method have token counts."""

    counts: tuple[GrpcCounts, ...] = ()
    json_body: int = 0
    """Number of the field with JSON, or a piece of an event stream, that has them; 0 for none."""


class RequestBody(msgspec.Struct, frozen=True):
    """The few fields of a body that routing needs; the body itself is forwarded as it came."""

    model: str = ""
    """As the client wrote it; empty where the API names no model."""
    prompt: bytes = b""
    """The prompt in the order of the engine: equal prefixes here are equal prefixes in the engine."""
    prompt_tokens: int = 0
    """Estimate, or exact where the request came as token ids."""
    max_output_tokens: int | None = None
    streaming: bool = False
    cache_salt: str = ""
    """Requests with different salts never share cached prefixes."""
    skip_response: bool = False
    """The response reports no usage: it need not be read."""
    media_items: int = 0
    """Images, audio clips and videos in the prompt."""
    media: tuple[Media, ...] = ()
    """Those of them that the parser gave a placeholder of its own size."""
    media_hashes: tuple[tuple[str, bytes], ...] = ()
    """Kind (`image`, `audio`, `video` or `other`) and hash of those whose content is known, up to a limit."""
    prompt_ends: tuple[int, ...] = ()
    """Where each prompt of a list ends within `prompt`, in bytes; empty for a single prompt."""
    is_token_ids: bool = False
    """Whether the prompt is token ids: four bytes each, unsigned and little endian."""
    grpc_response: GrpcResponse | None = None
    """How the response of a gRPC method is read; None for other APIs."""

    @property
    def prompts(self) -> Sequence[bytes]:
        """Each prompt by itself; engines compute and cache those of a list one by one."""
        if not self.prompt_ends:
            return (self.prompt,)
        return [self.prompt[start:end] for start, end in pairwise((0, *self.prompt_ends))]


@dataclass(frozen=True, slots=True)
class DataKey(Generic[T]):
    """The name and type of something a producer computes for a request."""

    name: str
    default_producer: str = ""
    """Plugin type that is added when a configured plugin reads this key and no plugin writes it; empty for none."""
    producer: str = ""
    """Name of the producer instance; empty for the default one."""
    id: str = field(init=False, repr=False, compare=False)
    """Name and producer in one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.name + "@" + self.producer)

    def produced_by(self, producer: str) -> "DataKey[T]":
        """Return the same key as written by the producer instance of that name."""
        return replace(self, producer="" if producer == self.default_producer else producer)


class PrefixMatch(msgspec.Struct, frozen=True, eq=False):
    """How much of the prompt each endpoint is believed to hold in its KV cache."""

    matched_blocks: NDArray[np.int32]
    """Leading blocks held, one number for each slot."""
    total_blocks: int
    """Blocks in the prompt, or in all prompts of a list; the last of each may be shorter."""
    block_tokens: int
    held_tokens: NDArray[np.int64] | None = None
    """Leading tokens held, one number for each slot; None where every block counts in full."""
    offloaded_tokens: NDArray[np.int64] | None = None
    """Leading tokens held in the memory of the host, one number for each slot; None where tiers are unknown."""
    tier_tokens: Mapping[str, NDArray[np.int64]] = MappingProxyType({})
    """By tier below the accelerator's memory: those of these tokens whose best tier it is, one number for each slot."""
    last_slot: int = -1
    """The slot that computed the conversation last; -1 for a new one."""
    last_tokens: int = 0
    """Leading tokens of the prompt that it computed then. It may have evicted them since."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "matched_blocks", read_only(self.matched_blocks.view()))

    def matched_tokens(self, candidates: Candidates) -> NDArray[np.float64]:
        """Leading tokens held, one number for each candidate; a short last block may count in full."""
        if self.held_tokens is not None:
            return self.held_tokens[candidates.slots].astype(np.float64)
        tokens: NDArray[np.float64] = self.blocks(candidates).astype(np.float64) * np.array(float(self.block_tokens))
        return tokens

    def shares(self, candidates: Candidates) -> NDArray[np.float64]:
        """Share of the prompt's blocks that is held, one number for each candidate; for a prompt that has any."""
        shares: NDArray[np.float64] = self.blocks(candidates).astype(np.float64) / np.array(float(self.total_blocks))
        return shares

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Leading tokens held, one number for each slot."""
        if self.held_tokens is not None:
            return self.held_tokens
        return self.matched_blocks.astype(np.int64) * self.block_tokens

    @property
    def copyable_tokens(self) -> NDArray[np.int64]:
        """Leading tokens that other endpoints can copy, one number for each slot: those in host memory, if known."""
        return self.tokens if self.offloaded_tokens is None else self.offloaded_tokens

    def tokens_at(self, slot: int) -> int:
        """Leading tokens that one slot holds."""
        if self.held_tokens is not None:
            return int(self.held_tokens[slot])
        return int(self.matched_blocks[slot]) * self.block_tokens

    def blocks(self, candidates: Candidates) -> NDArray[np.int32]:
        """Leading blocks held, one number for each candidate."""
        return self.matched_blocks[candidates.slots]


class MediaMatch(msgspec.Struct, frozen=True, eq=False):
    """How many of the request's media each endpoint is believed to hold in its encoder cache."""

    matched: NDArray[np.int32]
    """Different media held, one number for each slot."""
    total: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "matched", read_only(self.matched.view()))


class MediaTokens(msgspec.Struct, frozen=True):
    """The tokens that stand for an image, an audio clip or a video, in a single prompt."""

    identifier: str
    """The engine's hash of the media, by which it tells equal placeholders apart."""
    offset: int
    """Number of tokens before it."""
    length: int


class PromptTokens(msgspec.Struct, frozen=True):
    """The prompt in the model's own tokens."""

    count: int
    ids: NDArray[np.uint32] | None = None
    """The tokens themselves; None where they were only counted."""
    ends: tuple[int, ...] = ()
    """Where each prompt of a list ends within `ids`; empty for a single prompt."""
    media: tuple[MediaTokens, ...] = ()
    """Placeholders of media among the tokens, in their order."""
    no_ids: str = ""
    """Why there are no ids, in a word or two, although the producer has a source of them."""
    exact: bool = False
    """Whether a tokenizer counted, as opposed to an estimate from the prompt's length."""
    prompt: bytes | None = None
    """The prompt with placeholders of other sizes for its media; None for the body's own."""


PREFIX_MATCH: DataKey[PrefixMatch] = DataKey("prefix-match", "approx-prefix-cache-producer")
"""How much of the prompt each endpoint is estimated to hold in its KV cache."""
IN_FLIGHT_COST: DataKey[Mapping[str, int]] = DataKey("in-flight-cost", "inflight-load-producer")
"""Uncached tokens that the target of each profile has to compute, credited to it until the first token."""
MEDIA_MATCH: DataKey[MediaMatch] = DataKey("media-match", "mm-embeddings-cache-producer")
"""How many of the request's media each endpoint is estimated to hold in its encoder cache."""
PROMPT_TOKENS: DataKey[PromptTokens] = DataKey("prompt-tokens", "token-producer")
"""Number of prompt tokens, or the tokens themselves."""
SESSION_ID: DataKey[str] = DataKey("session-id", "session-id-producer")
"""Identifier of the conversation that the request belongs to."""
PULLED_TOKENS: DataKey[NDArray[np.int64]] = DataKey("kv-pulled-tokens")
"""Leading tokens in addition to those held that are worth copying from another endpoint, one number for each slot."""
FETCH_SECONDS: DataKey[NDArray[np.float64]] = DataKey("kv-fetch-seconds")
"""Seconds to bring the cached prompt from lower tiers to the accelerator, one number for each slot."""
CACHED_TOKENS_PREDICTED: DataKey[int] = DataKey("cached-tokens-predicted")
"""Prompt tokens in the KV cache of the picked endpoint, as its engine reported them before the pick."""
COPY_SOURCE: DataKey[str] = DataKey("kv-copy-source", "p2p-source-producer")
"""Address of the endpoint from which the picked one copies KV blocks of the prompt."""
AGENT_IDENTITY: DataKey[str] = DataKey("agent-identity", "agent-identity")
"""Identifier of the agent that sent the request: its flow, unless a header names another."""


class Request(msgspec.Struct, eq=False):
    """One request on its way; one owner, never shared between requests."""

    id: str
    body: RequestBody = RequestBody()
    headers: Headers = msgspec.field(default_factory=Headers)
    path: str = ""
    """Without the query."""
    size_bytes: int = 0
    fairness_id: str = DEFAULT_FLOW
    """Its flow: requests of a flow queue together, and share a quota."""
    received_at: float = 0.0
    """When it was complete, in seconds on the clock."""
    began_at: float = 0.0
    """When its headers came: a client may take long to send the body."""
    seed: int = 0
    """Seed of the random choices, 64 bits: the same seed, snapshot and configuration give the same result."""
    target_model: str = ""
    """The model that replaces the one in the body; empty for no replacement."""
    rewritten_by: str = ""
    """Name of the InferenceModelRewrite that chose `target_model`; empty for none."""
    priority: int = 0
    """Priority by its objective; negative for requests that are refused while the pool is saturated."""
    objective: str = ""
    """Name of the InferenceObjective that gave the priority; empty for none."""
    subset: Subset | None = None
    """Endpoints among which the gateway allows to pick; None for all."""
    dry_run: bool = False
    """Whether it is a simulation: plugins count nothing and remember nothing of it."""
    content: bytes = b""
    """The whole body, while producers and admitters run, if one of them `reads_content`; otherwise empty."""
    _data: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model that the endpoint will be asked for."""
        return self.target_model or self.body.model

    def uniform(self, purpose: str) -> float:
        """Return a number in [0, 1) from the seed: the same at every call, independent between purposes."""
        return float(self._digest(purpose) >> 11) * 2.0**-53  # as many bits as a float has

    def generator(self, purpose: str) -> "np.random.Generator":  # a name in quotes is imported when it is used
        """Return a random generator from the seed: the same at every call, independent between purposes."""
        return np.random.default_rng(self._digest(purpose))

    def _digest(self, purpose: str) -> int:
        return xxhash.xxh3_64_intdigest(purpose.encode(), self.seed)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: counted, where a producer did, else the parser's estimate."""
        tokens = self.get(PROMPT_TOKENS)
        return self.body.prompt_tokens if tokens is None else tokens.count

    @property
    def rewrites_model(self) -> bool:
        """Whether the endpoint is asked for another model than the client was."""
        return self.target_model not in ("", self.body.model)

    def dry_copy(self, seed: int) -> "Request":
        """Return the same request as one that goes nowhere, with another seed and what producers have computed."""
        return msgspec.structs.replace(self, dry_run=True, seed=seed, _data=dict(self._data))

    def put(self, key: DataKey[T], value: T) -> None:
        self._data[key.id] = value

    def drop(self, key: DataKey[T]) -> None:
        self._data.pop(key.id, None)

    def get(self, key: DataKey[T]) -> T | None:
        """Return a producer's result; None if there is none."""
        found: T | None = self._data.get(key.id)
        return found


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    """Of the prompt, cached ones included."""
    completion_tokens: int
    """Generated tokens; 0 for embeddings."""
    cached_tokens: int
    """Prompt tokens that came from a cache."""


@dataclass(frozen=True, slots=True)
class Response:
    """Known parts of a response so far."""

    served: Endpoint
    """The endpoint that serves it, as far as is known."""
    served_address: str = ""
    """`ip:port` that the gateway says it used; empty where it does not say."""
    status: int = 0
    headers: Headers = field(default_factory=Headers)
    usage: Usage | None = None
    """Tokens as the endpoint counted them, once the body is over."""
    events: int = 0
    """Events of an event stream so far; 0 where they are not counted."""
    tells_cached: bool = False
    """Whether it has the number of cached tokens, which engines may leave out."""
