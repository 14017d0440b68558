# SPDX-License-Identifier: Apache-2.0
"""LLM requests and responses for plugins, independent of the protocol, with a typed store for computed data."""

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
"""Estimate for text; exact for token ids, which have four bytes each in a prompt."""


class Headers(Mapping[str, str]):
    """Header fields by lower-case name. A look-up returns the first of several values; `fields` has all of them."""

    __slots__ = ("_fields", "_first")

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: tuple[tuple[str, str], ...] | None = tuple((name.lower(), value) for name, value in fields)
        self._first: dict[str, str] = {}
        for name, value in self._fields:
            self._first.setdefault(name, value)

    @classmethod
    def unique(cls, fields: dict[str, str]) -> Self:
        """Return fields with unique lower-case names; a fast constructor, which takes ownership of the dict."""
        headers = cls.__new__(cls)
        headers._fields, headers._first = None, fields  # noqa: SLF001  a constructor
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
        """Return all fields, including duplicates, in order of arrival."""
        if self._fields is None:
            self._fields = tuple(self._first.items())
        return self._fields

    def first_of(self, *names: str) -> str | None:
        """Return the value of the first of these names that is present."""
        for name in names:
            value = self._first.get(name)
            if value is not None:
                return value
        return None


class Media(msgspec.Struct, frozen=True, gc=False):
    """An image, an audio clip or a video in a prompt, represented by a placeholder with its hash."""

    kind: Literal["image", "audio", "video"]
    offset: int
    """Start of the placeholder in the prompt, in bytes."""
    tokens: int
    """Length of the placeholder, estimated by the parser."""
    width: int = 0
    """Width in pixels of an image that the request itself contains; 0 if unknown."""
    height: int = 0


class GrpcCounts(NamedTuple):
    """Numbers of the Protobuf fields with token counts; 0 if there is none."""

    message: int = 0
    """Number of the field whose message has these fields; 0 for the response itself."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class GrpcResponse(NamedTuple):
    """Location of token counts in the responses of a gRPC method."""

    counts: tuple[GrpcCounts, ...] = ()
    json_body: int = 0
    """Number of the field with JSON, or part of an event stream, with token counts; 0 if there is none."""


class RequestBody(msgspec.Struct, frozen=True):
    """Fields of a body that routing needs; the body itself is forwarded unchanged."""

    model: str = ""
    """Model requested by the client; empty if the API has no model."""
    prompt: bytes = b""
    """Prompt in the order of the engine: equal prefixes here are equal prefixes in the engine."""
    prompt_tokens: int = 0
    """Estimated number of prompt tokens; exact for token ids."""
    max_output_tokens: int | None = None
    streaming: bool = False
    cache_salt: str = ""
    """Requests with different salts never share cached prefixes."""
    skip_response: bool = False
    """Whether the response reports no usage, so that it need not be read."""
    media_items: int = 0
    """Images, audio clips and videos in the prompt."""
    media: tuple[Media, ...] = ()
    """Media items for which the prompt has a placeholder of estimated size."""
    media_hashes: tuple[tuple[str, bytes], ...] = ()
    """Kind (`image`, `audio`, `video` or `other`) and hash of media items with known content, up to a limit."""
    prompt_ends: tuple[int, ...] = ()
    """End of each prompt of a list within `prompt`, in bytes; empty for a single prompt."""
    is_token_ids: bool = False
    """Whether the prompt consists of token ids, each of four bytes, unsigned and little-endian."""
    grpc_response: GrpcResponse | None = None
    """Location of token counts in the response of a gRPC method; None for other APIs."""

    @property
    def prompts(self) -> Sequence[bytes]:
        """All prompts; engines compute and cache the prompts of a list separately."""
        if not self.prompt_ends:
            return (self.prompt,)
        return [self.prompt[start:end] for start, end in pairwise((0, *self.prompt_ends))]


@dataclass(frozen=True, slots=True)
class DataKey(Generic[T]):
    """Name and type of data that a producer computes for a request."""

    name: str
    default_producer: str = ""
    """Plugin type that is added if a configured plugin reads this key and no plugin writes it; empty for none."""
    producer: str = ""
    """Name of the producer instance; empty for the default one."""
    id: str = field(init=False, repr=False, compare=False)
    """Name and producer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.name + "@" + self.producer)

    def produced_by(self, producer: str) -> "DataKey[T]":
        """Return the key with the producer instance of this name."""
        return replace(self, producer="" if producer == self.default_producer else producer)


class PrefixMatch(msgspec.Struct, frozen=True, eq=False):
    """Estimated part of the prompt in the KV cache of each endpoint."""

    matched_blocks: NDArray[np.int32]
    """Leading cached blocks, one number for each slot."""
    total_blocks: int
    """Blocks in the prompt, or in all prompts of a list; the last block of each may be shorter."""
    block_tokens: int
    held_tokens: NDArray[np.int64] | None = None
    """Leading cached tokens, one number for each slot; None if every block counts in full."""
    offloaded_tokens: NDArray[np.int64] | None = None
    """Leading tokens cached in host memory, one number for each slot; None if tiers are unknown."""
    tier_tokens: Mapping[str, NDArray[np.int64]] = MappingProxyType({})
    """Cached tokens by their best tier, for tiers below accelerator memory; one number for each slot."""
    last_slot: int = -1
    """Slot that computed the conversation last; -1 for a new conversation."""
    last_tokens: int = 0
    """Leading tokens of the prompt that `last_slot` computed then, and may have evicted since."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "matched_blocks", read_only(self.matched_blocks.view()))

    def matched_tokens(self, candidates: Candidates) -> NDArray[np.float64]:
        """Return the leading cached tokens, one number for each candidate; a short last block may count in full."""
        if self.held_tokens is not None:
            return self.held_tokens[candidates.slots].astype(np.float64)
        tokens: NDArray[np.float64] = self.blocks(candidates).astype(np.float64) * np.array(float(self.block_tokens))
        return tokens

    def shares(self, candidates: Candidates) -> NDArray[np.float64]:
        """Return the cached share of the prompt's blocks, one number for each candidate; for a prompt with blocks."""
        shares: NDArray[np.float64] = self.blocks(candidates).astype(np.float64) / np.array(float(self.total_blocks))
        return shares

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Leading cached tokens, one number for each slot."""
        if self.held_tokens is not None:
            return self.held_tokens
        return self.matched_blocks.astype(np.int64) * self.block_tokens

    @property
    def copyable_tokens(self) -> NDArray[np.int64]:
        """Leading tokens that other endpoints can copy, one number for each slot: those in host memory if known."""
        return self.tokens if self.offloaded_tokens is None else self.offloaded_tokens

    def tokens_at(self, slot: int) -> int:
        """Return the leading tokens that one slot has cached."""
        if self.held_tokens is not None:
            return int(self.held_tokens[slot])
        return int(self.matched_blocks[slot]) * self.block_tokens

    def blocks(self, candidates: Candidates) -> NDArray[np.int32]:
        """Return the leading cached blocks, one number for each candidate."""
        return self.matched_blocks[candidates.slots]


class MediaMatch(msgspec.Struct, frozen=True, eq=False):
    """Estimated number of the request's media in the encoder cache of each endpoint."""

    matched: NDArray[np.int32]
    """Distinct cached media, one number for each slot."""
    total: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "matched", read_only(self.matched.view()))


class MediaTokens(msgspec.Struct, frozen=True):
    """Placeholder tokens of an image, an audio clip or a video in a single prompt."""

    identifier: str
    """Hash of the media by the engine, which distinguishes equal placeholders."""
    offset: int
    """Number of tokens before it."""
    length: int


class PromptTokens(msgspec.Struct, frozen=True):
    """Tokens of the prompt by the tokenizer of the model."""

    count: int
    ids: NDArray[np.uint32] | None = None
    """Token ids; None if the tokens were only counted."""
    ends: tuple[int, ...] = ()
    """End of each prompt of a list within `ids`; empty for a single prompt."""
    media: tuple[MediaTokens, ...] = ()
    """Placeholders of media among the tokens, in order."""
    no_ids: str = ""
    """Reason for missing ids, in a word or two, if the producer has a source of ids."""
    exact: bool = False
    """Whether a tokenizer counted the tokens; otherwise the count is an estimate from the length of the prompt."""
    prompt: bytes | None = None
    """The prompt with placeholders of other sizes for its media; None for that of the body."""


PREFIX_MATCH: DataKey[PrefixMatch] = DataKey("prefix-match", "approx-prefix-cache-producer")
"""Estimated part of the prompt in the KV cache of each endpoint."""
IN_FLIGHT_COST: DataKey[Mapping[str, int]] = DataKey("in-flight-cost", "inflight-load-producer")
"""Uncached tokens that the target of each profile must compute, credited to it until the first token."""
MEDIA_MATCH: DataKey[MediaMatch] = DataKey("media-match", "mm-embeddings-cache-producer")
"""Estimated number of the request's media in the encoder cache of each endpoint."""
PROMPT_TOKENS: DataKey[PromptTokens] = DataKey("prompt-tokens", "token-producer")
"""Number of prompt tokens, and possibly their ids."""
SESSION_ID: DataKey[str] = DataKey("session-id", "session-id-producer")
"""Identifier of the conversation of the request."""
PULLED_TOKENS: DataKey[NDArray[np.int64]] = DataKey("kv-pulled-tokens")
"""Leading tokens, beyond the cached ones, that are worth copying from another endpoint; one number for each slot."""
FETCH_SECONDS: DataKey[NDArray[np.float64]] = DataKey("kv-fetch-seconds")
"""Time to load the cached prompt from lower tiers to the accelerator in seconds, one number for each slot."""
CACHED_TOKENS_PREDICTED: DataKey[int] = DataKey("cached-tokens-predicted")
"""Prompt tokens in the KV cache of the picked endpoint, according to reports of its engine before the pick."""
COPY_SOURCE: DataKey[str] = DataKey("kv-copy-source", "p2p-source-producer")
"""Address of the endpoint from which the picked one copies KV blocks of the prompt."""
AGENT_IDENTITY: DataKey[str] = DataKey("agent-identity", "agent-identity")
"""Identifier of the agent that sent the request: its flow, unless a header names another."""


class Request(msgspec.Struct, eq=False):
    """A request that is being processed, with its computed data."""

    id: str
    body: RequestBody = RequestBody()
    headers: Headers = msgspec.field(default_factory=Headers)
    path: str = ""
    """Path without the query."""
    size_bytes: int = 0
    fairness_id: str = DEFAULT_FLOW
    """Flow of the request; requests of a flow queue together, and share a quota."""
    received_at: float = 0.0
    """Time at which the request was complete, in seconds on the clock."""
    began_at: float = 0.0
    """Time at which the headers arrived, which may be long before the body is complete."""
    seed: int = 0
    """Seed of the random choices, 64 bits: the same seed, snapshot and configuration give the same result."""
    target_model: str = ""
    """Model that replaces the one in the body; empty for no replacement."""
    rewritten_by: str = ""
    """Name of the InferenceModelRewrite that chose `target_model`; empty for none."""
    priority: int = 0
    """Priority from the objective; negative for requests that are refused while the pool is saturated."""
    objective: str = ""
    """Name of the InferenceObjective that gave the priority; empty for none."""
    subset: Subset | None = None
    """Endpoints that the gateway allows; None for all."""
    dry_run: bool = False
    """Whether the request is simulated: plugins must not count or record it."""
    content: bytes = b""
    """Whole body, while producers and admitters run, if one of them `reads_content`; otherwise empty."""
    _data: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def model(self) -> str:
        """Model in the request to the endpoint."""
        return self.target_model or self.body.model

    def uniform(self, purpose: str) -> float:
        """Return a number in [0, 1) from the seed: the same at every call, independent between purposes."""
        return float(self._digest(purpose) >> 11) * 2.0**-53  # as many bits as a float has

    def generator(self, purpose: str) -> "np.random.Generator":  # in quotes, because NumPy imports it lazily
        """Return a random generator from the seed: the same at every call, independent between purposes."""
        return np.random.default_rng(self._digest(purpose))

    def _digest(self, purpose: str) -> int:
        return xxhash.xxh3_64_intdigest(purpose.encode(), self.seed)

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens: counted by a producer, or else estimated by the parser."""
        tokens = self.get(PROMPT_TOKENS)
        return self.body.prompt_tokens if tokens is None else tokens.count

    @property
    def rewrites_model(self) -> bool:
        """Whether the request to the endpoint has another model than that of the client."""
        return self.target_model not in ("", self.body.model)

    def dry_copy(self, seed: int) -> "Request":
        """Return a simulated copy of the request with another seed, including the data of producers."""
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
    """Tokens of the prompt, including cached ones."""
    completion_tokens: int
    """Generated tokens; 0 for embeddings."""
    cached_tokens: int
    """Prompt tokens from a cache."""


@dataclass(frozen=True, slots=True)
class Response:
    """Known parts of a response."""

    served: Endpoint
    """Endpoint that serves the request, as far as known."""
    served_address: str = ""
    """`ip:port` that the gateway reports to have used; empty if it does not report any."""
    status: int = 0
    headers: Headers = field(default_factory=Headers)
    usage: Usage | None = None
    """Tokens counted by the endpoint, after the end of the body."""
    events: int = 0
    """Number of events of an event stream so far; 0 if they are not counted."""
    reports_cached: bool = False
    """Whether the response has the number of cached tokens, which engines may omit."""
