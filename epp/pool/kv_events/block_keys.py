# SPDX-License-Identifier: Apache-2.0
"""Keys of token blocks: a hash chain over the tokens, equal on the side of events and on that of requests.

The key of a block depends on all earlier tokens, on the name of the model (or LoRA adapter) and on extra strings: the
cache salt on the first block, and the identifiers of media that overlap the block. Both algorithms give the keys of
llm-d-kv-cache, so that pickers of both kinds can share an index.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import xxhash

ExtraKeys: TypeAlias = Sequence[str]
"""Extra strings of one block, in order."""
TOKEN_BYTES = 4
"""Bytes of a token id: unsigned, little endian."""
_MASK = 2**64 - 1
_CBOR_INLINE = 24
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class BlockHash(ABC):
    """A hash algorithm for block keys, which are unsigned 64-bit integers."""

    most_tokens: ClassVar[int]
    """Tokens of a request that are looked up: those of 15 ms at most, in blocks of 16 tokens or more."""
    tokens_at_once: ClassVar[int]
    """Tokens whose blocks are computed at once: those of a millisecond or two."""

    def __init__(self, seed: str = "") -> None:
        self._seed = self._seed_of(seed)

    def chain(self, parent: int, tokens: bytes, block_tokens: int, extras: Sequence[ExtraKeys] = ()) -> list[int]:
        """Return the keys of the whole blocks of `tokens`, without a shorter rest.

        `parent` is the key of the block before them, or `first(model)`. `extras` has the extra strings by block; blocks
        beyond it have none.
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
    def _seed_of(self, seed: str) -> int: ...

    @abstractmethod
    def _blocks(self, tokens: bytes, block_tokens: int) -> Sequence[bytes]:
        """Return the tokens of each whole block, as they are hashed."""

    @abstractmethod
    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int: ...


class XxHash(BlockHash):
    """XXH64 of the parent, the tokens, and for each extra string its length and its bytes.

    0.3 microseconds for a block of 16 tokens.
    """

    most_tokens = 128 * 1024
    tokens_at_once = 16 * 1024

    def first(self, model: str) -> int:
        """Return the hash of a block without tokens, whose extra string is the model."""
        return self._block(self._seed, b"", (model,))

    def _seed_of(self, seed: str) -> int:
        return xxhash.xxh64_intdigest(seed.encode())

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

    10 microseconds for a block of 16 tokens, as each byte depends on the one before it.
    """

    most_tokens = 20 * 1024
    tokens_at_once = 2 * 1024

    def first(self, model: str) -> int:
        """Return the hash of `[seed, null, model]`."""
        return _fnv1a(b"\x83" + _cbor_head(0, self._seed) + b"\xf6" + _cbor_text(model))

    def _seed_of(self, seed: str) -> int:
        return _fnv1a(seed.encode())

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
