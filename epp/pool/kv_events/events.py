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
"""Most blocks and events that are applied at a time: this takes at most ten milliseconds."""
_MOST_TOKENS = 32 * 1024
"""Most tokens of these blocks; a single block may have more."""
_MOST_BLOCK_TOKENS = 16 * 1024
_MOST_EVENTS = 16 * 1024
"""Most events of a message: a step of an engine has a few thousand."""
_EVENTS_AT_A_TIME, _BYTES_AT_A_TIME = 1024, 256 * 1024
"""Number and bytes of events that one call decodes, holding the interpreter lock for up to ten milliseconds."""
_MOST_IN_LIST = 256 * 1024
"""Most token ids, and most hashes, of an event."""
_MOST_NAME = 1024
_MOST_EXTRA_BYTES = 128 * 1024
"""Most bytes of the extra keys of an event: enough for 8,000 adapter names; nested lists take 10 milliseconds."""
_ExtraKeys: TypeAlias = Annotated[list[Any], Meta(max_length=64)] | None
"""Extra keys of one block."""
INDEXED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of caches in which a block serves all later tokens."""
KINDS = INDEXED_KINDS | {"sliding_window", "sliding_window_mla", "chunked_local_attention", "mamba", "cross_attention"}
"""Kinds that metrics name."""
_NO_KEYS = msgspec.Raw(b"\xc0")


class BlockStored(msgspec.Struct, tag_field="type", frozen=True):
    """Consecutive blocks were added to a cache.

    vLLM omits the token ids of blocks that it copies to the memory of the host. Earlier events have described such
    blocks; `block_size` may be 0 then, and the kind of the cache is that of the group.
    """

    block_hashes: Annotated[list[Hash], Meta(max_length=_MOST_IN_LIST)]
    parent_block_hash: Hash | None
    token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_IN_LIST)]
    block_size: Annotated[int, Meta(ge=0, le=_MOST_BLOCK_TOKENS)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: Annotated[str, Meta(max_length=_MOST_NAME)] | None = None
    extra_keys: list[_ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag_field="type", frozen=True):
    block_hashes: Annotated[list[Hash], Meta(max_length=_MOST_IN_LIST)]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag_field="type", frozen=True):
    """The engine emptied all its caches."""


class _StoredMap(BlockStored, tag="BlockStored", frozen=True):
    extra_keys: msgspec.Raw = _NO_KEYS  # type: ignore[assignment]  # decoded last: may be too many


class _StoredArray(_StoredMap, tag="BlockStored", array_like=True, frozen=True): ...


class _RemovedArray(BlockRemoved, tag="BlockRemoved", array_like=True, frozen=True): ...


class _ClearedArray(AllBlocksCleared, tag="AllBlocksCleared", array_like=True, frozen=True): ...


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class _Message(msgspec.Struct, array_like=True, frozen=True):
    at: float
    events: Annotated[list[msgspec.Raw], Meta(max_length=_MOST_EVENTS)]


class _RankedMessage(msgspec.Struct, array_like=True, frozen=True):
    at: float
    events: msgspec.Raw
    rank: int | None = None


_decode_ranked = msgspec.msgpack.Decoder(_RankedMessage).decode
_decode_message = msgspec.msgpack.Decoder(_Message).decode
_decode_maps = msgspec.msgpack.Decoder(list[_StoredMap | BlockRemoved | AllBlocksCleared]).decode
_decode_arrays = msgspec.msgpack.Decoder(list[_StoredArray | _RemovedArray | _ClearedArray]).decode
_decode_extra_keys = msgspec.msgpack.Decoder(list[_ExtraKeys] | None).decode


def decode_events(payload: bytes) -> Sequence[Event]:
    """Return the events of a message: maps from newer versions of vLLM, arrays from older versions and from SGLang.

    Raises msgspec.DecodeError if an event is malformed or of an unknown type.
    """
    every = _decode_message(payload).events
    found: list[Event] = []
    for some in _portions(every):
        packed = b"\xdd" + len(some).to_bytes(4, "big") + b"".join(some)
        try:
            found += _decode_maps(packed)
        except msgspec.ValidationError:
            found += _decode_arrays(packed)
    for event in found:
        if isinstance(event, _StoredMap):
            if memoryview(event.extra_keys).nbytes > _MOST_EXTRA_BYTES:
                raise msgspec.ValidationError(f"an event has extra keys of more than {_MOST_EXTRA_BYTES} bytes")
            if event.token_ids and not event.block_size:
                raise msgspec.ValidationError("an event has token ids, but block_size is 0")
            msgspec.structs.force_setattr(event, "extra_keys", _decode_extra_keys(event.extra_keys))
    return found


def _portions(every: Sequence[msgspec.Raw]) -> Iterator[Sequence[msgspec.Raw]]:
    start = size = 0
    for end, event in enumerate(every, 1):
        size += memoryview(event).nbytes
        if end == len(every) or end - start == _EVENTS_AT_A_TIME or size >= _BYTES_AT_A_TIME:
            yield every[start:end]
            start, size = end, 0


def rank_in(payload: bytes) -> int:
    """Return the data-parallel rank of the engine that sent a message; 0 if the message has none."""
    try:
        return _decode_ranked(payload).rank or 0
    except msgspec.DecodeError:
        return 0


def hash_of(value: Hash) -> int:
    """Return a block hash as an unsigned 64-bit integer."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    return value & 0xFFFFFFFFFFFFFFFF


def skip_reason(event: BlockStored | BlockRemoved, kind: str | None) -> str:
    """Return the reason that the index skips an event of this kind of cache (None if unknown); empty for no reason."""
    if event.group_idx is None:
        return ""
    if kind is None:
        return "unknown_group"
    if kind not in INDEXED_KINDS:
        return "unsupported_cache_kind"
    if isinstance(event, BlockRemoved) or not event.token_ids:
        return ""
    is_dense = len(event.token_ids) == len(event.block_hashes) * event.block_size
    return "" if is_dense else "non_dense_block_span"


def pieces_of(event: Event) -> Iterator[Event]:
    """Yield at least one event; together they have the same effect, and each is applied in a few milliseconds."""
    if isinstance(event, BlockRemoved):
        hashes = event.block_hashes
        for start in range(0, max(1, len(hashes)), MOST_BLOCKS):
            yield msgspec.structs.replace(event, block_hashes=hashes[start : start + MOST_BLOCKS])
    elif isinstance(event, BlockStored):
        yield from _stored_pieces(event, max(1, min(MOST_BLOCKS, _MOST_TOKENS // max(1, event.block_size))))
    else:
        yield event


def _stored_pieces(event: BlockStored, most: int) -> Iterator[BlockStored]:
    hashes, size = event.block_hashes, event.block_size
    if event.token_ids and skip_reason(event, event.kv_cache_spec_kind or ""):
        yield msgspec.structs.replace(event, block_hashes=hashes[:most])  # the index skips it
        return
    has_more_keys = event.extra_keys is not None and len(event.extra_keys) > len(hashes)
    if len(hashes) <= most and len(event.token_ids) <= len(hashes) * size and not has_more_keys:
        yield event
        return
    for start in range(0, max(1, len(hashes)), most):
        end = min(start + most, len(hashes))
        yield msgspec.structs.replace(
            event,
            block_hashes=hashes[start:end],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=event.token_ids[start * size : end * size],
            extra_keys=None if event.extra_keys is None else event.extra_keys[start:end],
        )
