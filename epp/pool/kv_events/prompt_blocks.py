# SPDX-License-Identifier: Apache-2.0
"""Blocks of the prompts of a request: their keys, and the numbers of their tokens that endpoints hold.

The keys are a hash chain over the tokens, computed in the same way for events and for requests. The key of a block
depends on all earlier tokens, on the name of the model (or LoRA adapter) and on extra strings: the cache salt for the
first block, and the identifiers of media that overlap the block. Both algorithms compute the same keys as
llm-d-kv-cache, so that pickers of both kinds can share an index.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.framework import PROMPT_TOKENS, DataKey, MediaTokens, Request
from epp.pool.kv_events.events import DEFAULT_TIER
from epp.pool.kv_events.holders import HOST_TIER, SPECULATIVE
from epp.pool.kv_events.rows import Keys

ExtraKeys: TypeAlias = Sequence[str]
"""Extra strings of one block, in order."""
TOKEN_BYTES = 4
"""Bytes of a token id, an unsigned little-endian integer."""
_MASK = 2**64 - 1
_CBOR_INLINE = 24
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class BlockHash(ABC):
    """A hash algorithm for block keys, which are unsigned 64-bit integers."""

    most_tokens: ClassVar[int]
    """Most tokens of a request that are looked up: hashing takes at most 15 ms, in blocks of 16 tokens or more."""
    tokens_at_once: ClassVar[int]
    """Most tokens that are hashed without a pause, in one or two milliseconds."""

    def chain(self, parent: int, tokens: bytes, block_tokens: int, extras: Sequence[ExtraKeys] = ()) -> list[int]:
        """Return the keys of the complete blocks in `tokens`.

        `parent` is the key of the block before them, or `first(model)`. `extras` has the extra strings of the first
        blocks; later blocks have none.
        """
        blocks = self._blocks(tokens, block_tokens)
        if not extras:
            return self._plain(parent, blocks)
        keys: list[int] = []
        for block, extra in zip(blocks, extras, strict=False):
            keys.append(parent := self._block(parent, block, extra))
        return keys + self._plain(parent, blocks[len(keys) :])

    def _plain(self, parent: int, blocks: Sequence[bytes]) -> list[int]:
        """Return the keys of blocks without extra strings."""
        return [parent := self._block(parent, block, ()) for block in blocks]

    @abstractmethod
    def first(self, model: str) -> int:
        """Return the parent of the first block of a prompt for this model or adapter."""

    @abstractmethod
    def _blocks(self, tokens: bytes, block_tokens: int) -> Sequence[bytes]:
        """Return the tokens of each complete block, in the form that is hashed."""

    @abstractmethod
    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int: ...


class XxHash(BlockHash):
    """XXH64 of the parent, the tokens, and the length and the bytes of each extra string.

    A block of 16 tokens takes 0.3 microseconds.
    """

    most_tokens = 128 * 1024
    tokens_at_once = 16 * 1024

    def __init__(self, seed: str = "") -> None:
        self._seed = xxhash.xxh64_intdigest(seed.encode())

    def first(self, model: str) -> int:
        """Return the hash of a block without tokens that has the model as extra string."""
        return self._block(self._seed, b"", (model,))

    def _blocks(self, tokens: bytes, block_tokens: int) -> Sequence[bytes]:
        size = TOKEN_BYTES * block_tokens
        if len(tokens) == size:
            return (tokens,)
        return [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]

    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int:
        content = parent.to_bytes(8, "little") + tokens
        for text in extra:
            encoded = text.encode("utf-8", "surrogatepass")
            content += len(encoded).to_bytes(8, "little") + encoded
        return xxhash.xxh64_intdigest(content)

    def _plain(self, parent: int, blocks: Sequence[bytes]) -> list[int]:
        return [parent := xxhash.xxh64_intdigest(parent.to_bytes(8, "little") + block) for block in blocks]


class CborFnv(BlockHash):
    """FNV-1a of the canonical CBOR of `[parent, tokens or null, extra]`.

    A block of 16 tokens takes 10 microseconds, since each byte depends on the previous one.
    """

    most_tokens = 20 * 1024
    tokens_at_once = 2 * 1024

    def __init__(self, seed: str = "") -> None:
        self._seed = _fnv1a(seed.encode())

    def first(self, model: str) -> int:
        """Return the hash of `[seed, null, model]`."""
        return _fnv1a(b"\x83" + _cbor_head(0, self._seed) + b"\xf6" + _cbor_text(model))

    def _blocks(self, tokens: bytes, block_tokens: int) -> Sequence[bytes]:
        count = len(tokens) // TOKEN_BYTES // block_tokens
        ids = np.frombuffer(tokens, dtype="<u4", count=count * block_tokens)
        sizes = np.searchsorted((_CBOR_INLINE, 1 << 8, 1 << 16), ids, side="right")  # of a head: 1, 2, 3 or 5 bytes
        sizes = np.array((1, 2, 3, 5))[sizes]
        heads = np.zeros((len(ids), 5), dtype=np.uint8)
        heads[:, 0] = np.where(sizes == 1, ids, _CBOR_INLINE - 1 + (sizes + 1) // 2)
        for size in (2, 3, 5):
            chosen = sizes == size
            number = ids[chosen].astype(">u4").view(np.uint8).reshape(-1, TOKEN_BYTES)
            heads[chosen, 1:size] = number[:, TOKEN_BYTES + 1 - size :]
        content = heads[np.arange(5) < sizes[:, None]].tobytes()
        ends = np.cumsum(sizes)[block_tokens - 1 :: block_tokens].tolist()
        begin = _cbor_head(4, block_tokens)
        return [begin + content[start:end] for start, end in zip((0, *ends), ends, strict=False)]

    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int:
        content = b"\x83" + _cbor_head(0, parent) + tokens
        if not extra:
            return _fnv1a(content + b"\xf6")
        content += _cbor_head(4, len(extra))
        content += b"".join([b"\xa1\x64Hash" + _cbor_text(text) for text in extra])
        return _fnv1a(content)


def _fnv1a(content: bytes) -> int:
    value = _FNV_OFFSET
    some = iter(content)
    for one, two, three, four in zip(some, some, some, some, strict=False):  # one remainder for four bytes
        value = ((((value ^ one) * _FNV_PRIME ^ two) * _FNV_PRIME ^ three) * _FNV_PRIME ^ four) * _FNV_PRIME & _MASK
    for byte in content[len(content) & ~3 :]:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def _cbor_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return _cbor_head(3, len(encoded)) + encoded


def _cbor_head(major: int, value: int) -> bytes:
    """Return the shortest head of a CBOR item (RFC 8949, section 3)."""
    if value < _CBOR_INLINE:
        return bytes((major << 5 | value,))
    size = 8 if value >> 32 else next(size for size in (1, 2, 4) if value < 1 << 8 * size)
    return bytes((major << 5 | 23 + size.bit_length(),)) + value.to_bytes(size, "big")


_MOST_BLOCKS = 12 * 1024
"""Most blocks of a request that are looked up, for all block sizes of the engines together."""
_MOST_PROMPTS = 32
"""Number of prompts of a list that are looked up, divided by the number of block sizes of the engines. A prompt takes
0.3 ms for 1,000 endpoints."""


class PromptBlocks(NamedTuple):
    """The blocks of a request, for each block size of the engines."""

    keys: Mapping[int, Sequence[Keys]]
    """Keys of each prompt, by block size."""
    total_blocks: int
    """Number of blocks of the configured size in all prompts."""


class PromptHashing:
    """Computes the blocks of requests, and stores them in the request."""

    def __init__(self, block_hash: BlockHash, block_tokens: int, key: DataKey[PromptBlocks]) -> None:
        self._hash = block_hash
        self._block_tokens = block_tokens
        self._key = key

    def known(self, request: Request) -> PromptBlocks | None:
        return request.get(self._key)

    def begin(self, request: Request, sizes: Collection[int]) -> "Iterator[None] | None":
        """Return the steps that compute the blocks of these sizes; None without token ids."""
        counted = request.get(PROMPT_TOKENS)
        if counted is not None and counted.ids is not None:
            every: Sequence[NDArray[np.integer]] = np.split(counted.ids, counted.ends[:-1][:_MOST_PROMPTS])
            prompts: Sequence[bytes] = [ids.astype("<u4", copy=False).tobytes() for ids in every[:_MOST_PROMPTS]]
        elif request.body.is_token_ids:
            prompts = request.body.prompts[:_MOST_PROMPTS]
        else:
            return None
        return self._steps(request, _first(prompts, self._hash.most_tokens), sizes)

    def is_long(self, request: Request) -> bool:
        """Return whether the computation takes more than one or two milliseconds."""
        return request.prompt_tokens > self._hash.tokens_at_once

    def _steps(self, request: Request, prompts: Sequence[bytes], sizes: Collection[int]) -> Iterator[None]:
        counted = request.get(PROMPT_TOKENS)
        media = () if counted is None else counted.media
        left, keys = _MOST_BLOCKS, {}
        for size in sorted(sizes, reverse=True):
            extras = _extras(media, request.body.cache_salt, size)
            step = max(1, self._hash.tokens_at_once // 4 // size)
            chains = []
            for prompt in _first(prompts[: _MOST_PROMPTS // len(sizes)], left * size):
                parent, chain = self._hash.first(request.model), []
                for start in range(0, len(prompt) // TOKEN_BYTES // size, step):
                    some = prompt[start * size * TOKEN_BYTES : (start + step) * size * TOKEN_BYTES]
                    found = self._hash.chain(parent, some, size, extras[start : start + step])
                    chain += found
                    parent = found[-1]
                    yield
                chains.append(np.array(chain, dtype=np.uint64))
            keys[size] = chains
            left -= sum(map(len, chains))
        total = sum(len(ids) // TOKEN_BYTES // self._block_tokens for ids in prompts)
        request.put(self._key, PromptBlocks(keys, total))


def _first(prompts: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return the first `most` token ids of the prompts."""
    left, found = most * TOKEN_BYTES, []
    for prompt in prompts:
        found.append(prompt[:left])
        left -= len(found[-1])
    return found


def _extras(media: Sequence[MediaTokens], salt: str, size: int) -> Sequence[Sequence[str]]:
    """Return the extra strings of each block: the media that overlap it, and for the first block also the salt."""
    end = max((each.offset + each.length for each in media), default=0)
    extras: list[list[str]] = [[] for _ in range(max(1, -(-end // size)))]
    for each in media:
        for block in range(each.offset // size, -(-(each.offset + each.length) // size)):
            extras[block].append(each.identifier)
    if salt:
        extras[0].append(salt)
    return extras


FAST_TIERS = frozenset({DEFAULT_TIER, SPECULATIVE})


class Matched(NamedTuple):
    """Leading tokens of all prompts of a request, by slot."""

    tokens: NDArray[np.int64]
    """Tokens in any tier."""
    weighted: NDArray[np.float64]
    """Tokens, each counted with the weight of its best tier."""
    offloaded: NDArray[np.int64]
    """Tokens in the tier `cpu`."""
    tiers: Mapping[str, NDArray[np.int64]]
    """Tokens by best tier, without the fast tiers."""

    def replaced(self, where: NDArray[np.bool_], other: "Matched") -> "Matched":
        """Return a match with the values of another match in some slots."""
        none = np.zeros_like(self.tokens)
        tiers = {
            tier: np.where(where, other.tiers.get(tier, none), self.tiers.get(tier, none))
            for tier in self.tiers.keys() | other.tiers.keys()
        }
        tokens, weighted, offloaded = (np.where(where, new, old) for new, old in zip(other[:3], self[:3], strict=True))
        return Matched(tokens, weighted, offloaded, tiers)


class SharedMatch:
    """Leading blocks of the prompts of a request, by endpoint; each answer adds some."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.blocks: Counter[tuple[str, str]] = Counter()
        """Number of blocks by endpoint and best tier."""
        self.offloaded: Counter[str] = Counter()
        """Number of blocks in the tier `cpu` by endpoint."""
        self._weights = weights
        self._whole: set[str] | None = None
        self._offloaded_whole: set[str] | None = None
        """Endpoints that hold all blocks of the prompt so far, in any tier and in `cpu`; None at its beginning."""

    def begin(self) -> None:
        """Begin the next prompt."""
        self._whole = self._offloaded_whole = None

    def add(self, count: int, runs: Sequence[tuple[str, str, list[int]]]) -> bool:
        """Add the next blocks of a prompt, as runs by endpoint and tier; return whether an endpoint has all of them.

        Raises ValueError or IndexError for invalid block numbers.
        """
        found = [each for each in runs if self._whole is None or each[0] in self._whole]
        endpoints = list(dict.fromkeys(endpoint for endpoint, *_ in found))
        tiers = sorted({tier for _, tier, _ in found}, key=lambda tier: -self._weights.get(tier, 1.0))
        held = np.zeros((len(tiers), len(endpoints), count), dtype=np.bool_)
        rows = {endpoint: row for row, endpoint in enumerate(endpoints)}
        for endpoint, tier, numbers in found:
            for first, last in zip(numbers[::2], numbers[1::2], strict=True):
                held[tiers.index(tier), rows[endpoint], first - 1 : last] = True
        in_host = held[tiers.index(HOST_TIER)] if HOST_TIER in tiers else np.zeros((len(endpoints), count), np.bool_)
        before, self._offloaded_whole = self._offloaded_whole, set()
        for endpoint, blocks in zip(endpoints, _leading(in_host).sum(axis=1).tolist(), strict=True):
            if before is None or endpoint in before:
                self.offloaded[endpoint] += blocks
                if blocks == count:
                    self._offloaded_whole.add(endpoint)
        left = _leading(np.logical_or.reduce(held, axis=0))
        self._whole = {endpoint for endpoint, row in zip(endpoints, left, strict=True) if row.all()}
        for tier, in_tier in zip(tiers, held, strict=True):
            for endpoint, blocks in zip(endpoints, (in_tier & left).sum(axis=1).tolist(), strict=True):
                self.blocks[endpoint, tier] += blocks
            left &= ~in_tier
        return bool(self._whole)

    def matched(self, slots: Mapping[str, int], count: int, block_tokens: int) -> Matched:
        """Return the tokens in blocks of this size, for `count` slots; `slots` has the slots of endpoints."""
        tokens, weighted = np.zeros(count, dtype=np.int64), np.zeros(count)
        offloaded = tokens.copy()
        tiers: dict[str, NDArray[np.int64]] = {}
        for (endpoint, tier), blocks in self.blocks.items():
            if (slot := slots.get(endpoint)) is not None:
                tokens[slot] += blocks * block_tokens
                weighted[slot] += blocks * block_tokens * self._weights.get(tier, 1.0)
                if tier not in FAST_TIERS:
                    tiers.setdefault(tier, np.zeros(count, dtype=np.int64))[slot] = blocks * block_tokens
        for endpoint, blocks in self.offloaded.items():
            if (slot := slots.get(endpoint)) is not None:
                offloaded[slot] = blocks * block_tokens
        return Matched(tokens, weighted, offloaded, tiers)


def _leading(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the blocks that are held together with all before them."""
    leading: NDArray[np.bool_] = np.logical_and.accumulate(held, axis=1)
    return leading
