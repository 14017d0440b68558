# SPDX-License-Identifier: Apache-2.0
"""KV events of vLLM and SGLang: the messages in which engines report the blocks of their caches."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Hash: TypeAlias = int | Annotated[bytes, Meta(min_length=1)]
"""Hash of a block in an engine: an integer of 64 bits, or bytes; only the last 8 bytes count."""
TokenId: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
DEFAULT_TIER = "gpu"
MOST_BLOCKS = 1_000
"""Blocks of an event that are applied at a time: five milliseconds."""
_MOST_TOKENS = 32 * 1024
"""Tokens of these blocks, unless there is only one."""
_MOST_BLOCK_TOKENS = 16 * 1024
_INDEXED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of caches in which a block serves all later tokens."""


class BlockStored(msgspec.Struct, tag_field="type", frozen=True):
    """Blocks were added to a cache, one after another."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[TokenId]
    block_size: Annotated[int, Meta(gt=0, le=_MOST_BLOCK_TOKENS)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag_field="type", frozen=True):
    """Blocks were removed from a cache."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag_field="type", frozen=True):
    """All caches of the engine were emptied."""


class _StoredArray(BlockStored, tag="BlockStored", array_like=True, frozen=True): ...


class _RemovedArray(BlockRemoved, tag="BlockRemoved", array_like=True, frozen=True): ...


class _ClearedArray(AllBlocksCleared, tag="AllBlocksCleared", array_like=True, frozen=True): ...


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class _Maps(msgspec.Struct, array_like=True, frozen=True):
    at: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _Arrays(msgspec.Struct, array_like=True, frozen=True):
    at: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]


_decode_maps = msgspec.msgpack.Decoder(_Maps).decode
_decode_arrays = msgspec.msgpack.Decoder(_Arrays).decode


def decode_events(payload: bytes) -> Sequence[Event]:
    """Return the events of a message, which are maps in newer versions of vLLM and arrays in older ones and in SGLang.

    Raises msgspec.DecodeError if one of them is malformed or of an unknown type.
    """
    try:
        return _decode_maps(payload).events
    except msgspec.ValidationError:
        return _decode_arrays(payload).events


def hash_of(value: Hash) -> int:
    """Return a block hash as an unsigned 64-bit integer."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    return value & 0xFFFFFFFFFFFFFFFF


def is_indexed(event: BlockStored) -> bool:
    """Return whether a cache of this kind serves all later tokens, and the event has all tokens of each block."""
    if event.group_idx is None:
        return True
    tokens, blocks = len(event.token_ids), len(event.block_hashes)
    return event.kv_cache_spec_kind in _INDEXED_KINDS and tokens == blocks * event.block_size


def pieces_of(event: Event) -> Iterator[Event]:
    """Yield events with the same effect one after another, each applied in a few milliseconds."""
    if isinstance(event, BlockRemoved):
        hashes = event.block_hashes
        for start in range(0, len(hashes), MOST_BLOCKS):
            yield msgspec.structs.replace(event, block_hashes=hashes[start : start + MOST_BLOCKS])
    elif isinstance(event, BlockStored):
        yield from _stored_pieces(event, max(1, min(MOST_BLOCKS, _MOST_TOKENS // event.block_size)))
    else:
        yield event


def _stored_pieces(event: BlockStored, most: int) -> Iterator[BlockStored]:
    hashes, size = event.block_hashes, event.block_size
    if not is_indexed(event):
        yield msgspec.structs.replace(event, block_hashes=hashes[:most])  # the index skips it
        return
    if len(hashes) <= most and len(event.token_ids) <= len(hashes) * size:
        yield event
        return
    for start in range(0, len(hashes), most):
        end = min(start + most, len(hashes))
        yield msgspec.structs.replace(
            event,
            block_hashes=hashes[start:end],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=event.token_ids[start * size : end * size],
            extra_keys=None if event.extra_keys is None else event.extra_keys[start:end],
        )
