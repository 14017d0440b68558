# SPDX-License-Identifier: Apache-2.0
"""Keys of token blocks: a hash chain over the tokens, equal on the side of events and on that of requests.

The key of a block depends on all earlier tokens, on the name of the model (or LoRA adapter) and on extra strings: the
cache salt on the first block, and the identifiers of media that overlap the block. Both algorithms give the keys of
llm-d-kv-cache, so that pickers of both kinds can share an index.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

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

    def __init__(self, seed: str = "") -> None:
        self._seed = self._seed_of(seed)

    def chain(self, parent: int, tokens: bytes, block_tokens: int, extras: Sequence[ExtraKeys] = ()) -> list[int]:
        """Return the keys of the whole blocks of `tokens`, without a shorter rest.

        `parent` is the key of the block before them, or `first(model)`. `extras` has the extra strings by block; blocks
        beyond it have none.
        """
        size = TOKEN_BYTES * block_tokens
        keys: list[int] = []
        for number, start in enumerate(range(0, len(tokens) - size + 1, size)):
            parent = self._block(parent, tokens[start : start + size], extras[number] if number < len(extras) else ())
            keys.append(parent)
        return keys

    @abstractmethod
    def first(self, model: str) -> int:
        """Return the parent of the first block of a prompt for this model or adapter."""

    @abstractmethod
    def _seed_of(self, seed: str) -> int: ...

    @abstractmethod
    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int: ...


class XxHash(BlockHash):
    """XXH64 of the parent, the tokens, and for each extra string its length and its bytes."""

    def first(self, model: str) -> int:
        """Return the hash of a block without tokens, whose extra string is the model."""
        return self._block(self._seed, b"", (model,))

    def _seed_of(self, seed: str) -> int:
        return xxhash.xxh64_intdigest(seed.encode())

    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int:
        content = parent.to_bytes(8, "little") + tokens
        for text in extra:
            encoded = text.encode("utf-8", "surrogatepass")
            content += len(encoded).to_bytes(8, "little") + encoded
        return xxhash.xxh64_intdigest(content)


class CborFnv(BlockHash):
    """FNV-1a of the canonical CBOR of `[parent, tokens or null, extra]`; a hundred times slower than XXH64."""

    def first(self, model: str) -> int:
        """Return the hash of `[seed, null, model]`."""
        return _fnv1a(b"\x83" + _cbor_head(0, self._seed) + b"\xf6" + _cbor_text(model))

    def _seed_of(self, seed: str) -> int:
        return _fnv1a(seed.encode())

    def _block(self, parent: int, tokens: bytes, extra: ExtraKeys) -> int:
        ids = memoryview(tokens).cast("I")
        content = b"\x83" + _cbor_head(0, parent) + _cbor_head(4, len(ids))
        content += b"".join([_cbor_head(0, token) for token in ids])
        if not extra:
            return _fnv1a(content + b"\xf6")
        content += _cbor_head(4, len(extra))
        content += b"".join([b"\xa1\x64Hash" + _cbor_text(text) for text in extra])
        return _fnv1a(content)


def _fnv1a(content: bytes) -> int:
    value = _FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def _cbor_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return _cbor_head(3, len(encoded)) + encoded


def _cbor_head(major: int, value: int) -> bytes:
    """Return the shortest head of a CBOR item (RFC 8949, section 3)."""
    if value < _CBOR_INLINE:
        return bytes((major << 5 | value,))
    size = next(size for size in (1, 2, 4, 8) if value < 1 << 8 * size)
    return bytes((major << 5 | 23 + size.bit_length(),)) + value.to_bytes(size, "big")
