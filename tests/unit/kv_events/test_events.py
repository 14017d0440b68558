# SPDX-License-Identifier: Apache-2.0
"""KV events: the forms in which engines send them, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from epp.pool.kv_events.events import (
    MOST_BLOCKS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_events,
    hash_of,
    pieces_of,
    skip_reason,
)
from tests.support.kv_publisher import CLEARED, removed, stored

RECORDED = Path(__file__).parents[2] / "data" / "kv_events" / "vllm-0.32.txt"


def payload(*events):
    return msgspec.msgpack.encode([1.5, list(events), 0])


def decoded(*events):
    return decode_events(payload(*events))


def test_messages_of_a_real_engine_are_read():
    lines = [line.split() for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    events = [event for _, _, payload in lines for event in decode_events(bytes.fromhex(payload))]
    for kind in (BlockStored, BlockRemoved, AllBlocksCleared):
        assert any(isinstance(event, kind) for event in events)
    first = events[0]
    assert first.block_hashes[0] == 6641085209413538332
    assert (first.block_size, len(first.token_ids), first.medium, first.parent_block_hash) == (32, 128, "GPU", None)
    kinds = [(event, event.kv_cache_spec_kind or "") for event in events if isinstance(event, BlockStored)]
    assert not any(skip_reason(*each) for each in kinds)


def test_maps_and_arrays_say_the_same_and_fields_may_be_left_out_at_the_end_or_added():
    as_map = decoded(stored([1, 2], range(8), size=4, medium="GPU", lora_name="a"), removed([3], group_idx=0), CLEARED)
    as_array = decoded(
        ["BlockStored", [1, 2], None, list(range(8)), 4, None, "GPU", "a"],
        ["BlockRemoved", [3], None, 0],
        ["AllBlocksCleared"],
    )
    assert [msgspec.structs.asdict(each) for each in as_map] == [msgspec.structs.asdict(each) for each in as_array]
    (short,) = decoded(["BlockStored", [1], 7, [1, 2], 2])  # of SGLang
    assert (short.parent_block_hash, short.medium, short.group_idx) == (7, None, None)
    (long,) = decoded({**stored([1], [1, 2], size=2), "new_field": {"x": 1}})
    assert long.block_hashes == [1]


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"events": []}),
        payload({"type": "BlockMoved"}),
        payload(stored([1], [-1], size=1)),
        payload(stored([1], [2**32], size=1)),
        payload(stored([b""], [1], size=1)),
        payload(stored([1], [1], size=0)),
        payload(stored([1], [1], size=16_385)),
        payload(stored([1], [2**64 - 1], size=1)),
        payload(["BlockStored", [1]]),
        payload(removed(["a"])),
        payload(stored([1], [1], size=1, extra_keys=[[]] * 131_072)),
        payload(stored([1], [1] * 262_145, size=1)),
        payload(removed([1] * 262_145)),
        payload(*[CLEARED] * 16_385),
        payload(stored([1], [1], size=1, extra_keys=[["a"] * 65])),
        payload(stored([1], [1], size=1, lora_name="a" * 1025)),
        b"\x93" * 5_000,
    ],
)
def test_malformed_messages_are_refused(malformed):
    with pytest.raises(msgspec.DecodeError):
        decode_events(malformed)


def test_many_events_of_a_message_are_all_read_in_order():
    every = [removed([number]) if number % 2 else stored([number], [1], size=1) for number in range(2_500)]
    assert [event.block_hashes for event in decoded(*every)] == [[number] for number in range(2_500)]


def test_last_eight_bytes_of_a_hash_count():
    assert hash_of(b"\x01" * 24 + (7).to_bytes(8, "big")) == hash_of(7) == 7
    assert hash_of(b"\x07") == 7
    assert hash_of(-1) == 2**64 - 1


@pytest.mark.parametrize(
    ("hashes", "more", "reason"),
    [
        ([1], {}, ""),
        ([1], {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}, ""),
        ([1], {"group_idx": 1, "kv_cache_spec_kind": "mla_attention"}, ""),
        ([1], {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}, "unsupported_cache_kind"),
        ([1], {"group_idx": 0}, "unsupported_cache_kind"),
        ([1, 2], {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}, "non_dense_block_span"),
    ],
)
def test_only_caches_whose_blocks_serve_all_later_tokens_are_indexed(hashes, more, reason):
    (event,) = decoded(stored(hashes, [1, 2], size=2, **more))
    assert skip_reason(event, event.kv_cache_spec_kind or "") == reason


def test_long_event_is_split_into_pieces_that_follow_one_another():
    count = MOST_BLOCKS + 1
    (event,) = decoded(
        stored(range(count), range(2 * count), size=2, parent=9, extra_keys=[["a"]] * MOST_BLOCKS + [["b"]])
    )
    first, second = pieces_of(event)
    assert (first.parent_block_hash, len(first.block_hashes), len(first.token_ids)) == (9, MOST_BLOCKS, 2 * MOST_BLOCKS)
    assert (second.parent_block_hash, second.block_hashes) == (MOST_BLOCKS - 1, [MOST_BLOCKS])
    assert (second.token_ids, second.extra_keys) == ([2 * MOST_BLOCKS, 2 * MOST_BLOCKS + 1], [["b"]])


def test_pieces_have_no_more_tokens_than_can_be_applied_at_a_time():
    (event,) = decoded(stored(range(8), range(8 * 16_384), size=16_384))
    assert [len(piece.token_ids) for piece in pieces_of(event)] == [2 * 16_384] * 4
    (event,) = decoded(stored([1], range(200_000), size=16))
    assert [len(piece.token_ids) for piece in pieces_of(event)] == [16]
    (event,) = decoded(removed(range(2_500)))
    assert [len(piece.block_hashes) for piece in pieces_of(event)] == [1_000, 1_000, 500]


def test_event_without_blocks_is_one_piece_without_extra_keys():
    every = decoded(removed([]), stored([], [], size=1), stored([], [1], size=1, extra_keys=[["a"]] * 3), CLEARED)
    pieces = [list(pieces_of(event)) for event in every]
    assert [len(each) for each in pieces] == [1, 1, 1, 1]
    assert pieces[2][0].extra_keys == []
