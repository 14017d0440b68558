# SPDX-License-Identifier: Apache-2.0
"""The index of blocks, fed by events, and compared with sets."""

from array import array
from collections import Counter, defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored
from epp.pool.kv_events.holders import Held
from epp.pool.kv_events.index import BlockIndex, Message
from epp.pool.kv_events.prompt_blocks import XxHash

SIZE = 4
HASH = XxHash()
WEIGHTS = {"gpu": 1.0, "cpu": 0.8}


def prompt(first: int, blocks: int) -> list[int]:
    return [1000 * first + number for number in range(SIZE * blocks)]


def keys_of(tokens, model="m", extras=(), size=SIZE) -> np.ndarray:
    return np.array(HASH.chain(HASH.first(model), array("I", tokens).tobytes(), size, extras), dtype=np.uint64)


def stored(hashes, tokens, parent=None, size=SIZE, **more) -> BlockStored:
    return BlockStored(list(hashes), parent, list(tokens), size, **more)


class Fleet:
    """An index with lanes, and what they hold of a prompt."""

    def __init__(self, lanes: int = 2, capacity: int = 10_000) -> None:
        self.index = BlockIndex(HASH, capacity=capacity, secret=0x4F1BBCDCBFA53E0B)
        self.lanes = [self.index.add() for _ in range(lanes)]
        self.now = 1

    def apply(self, lane: int, *events, model="m") -> None:
        self.index.apply([Message(self.lanes[lane], model, events)], self.now)

    def sweep(self) -> None:
        while self.index.sweep():
            pass

    def match(self, tokens, **more) -> Held:
        return self.index.match(keys_of(tokens, **more), WEIGHTS, self.ids, self.now)

    def held(self, tokens, **more) -> list[int]:
        return self.match(tokens, **more).blocks.tolist()

    def weighted(self, tokens) -> list[float]:
        return self.match(tokens).weighted.round(6).tolist()

    @property
    def ids(self) -> np.ndarray:
        return np.array([lane.id for lane in self.lanes], dtype=np.intp)


def test_leading_blocks_that_an_engine_stored_are_found():
    fleet = Fleet()
    fleet.apply(0, stored([1, 2, 3], prompt(1, 3)))
    fleet.apply(1, stored([1], prompt(1, 1)))
    assert fleet.held(prompt(1, 4)) == [3, 1]
    assert fleet.held(prompt(2, 4)) == [0, 0]
    assert fleet.held(prompt(1, 4), model="other") == [0, 0]


def test_child_of_a_stored_block_continues_its_chain_and_an_orphan_is_dropped():
    fleet = Fleet()
    tokens = prompt(1, 3)
    fleet.apply(0, stored([1], tokens[:4]), stored([2, 3], tokens[4:], parent=1))
    fleet.apply(1, stored([3], tokens[8:], parent=77))
    assert fleet.held(tokens) == [3, 0]
    assert fleet.index.skipped_stores == Counter({("unknown", "unknown_parent"): 1})
    fleet.apply(1, stored([2], tokens[4:8], parent=1))  # as engine 0 has stored it: the same tokens have the same hash
    assert fleet.held(tokens) == [3, 0]
    fleet.apply(1, stored([1], tokens[:4]))
    assert fleet.held(tokens) == [3, 2]


def test_block_in_the_middle_that_is_removed_ends_the_match():
    fleet = Fleet()
    fleet.apply(0, stored([1, 2, 3], prompt(1, 3)))
    fleet.apply(0, BlockRemoved([2]))
    assert fleet.held(prompt(1, 3)) == [1, 0]
    fleet.apply(0, BlockRemoved([1]), BlockRemoved([3]), BlockRemoved([99]))
    assert fleet.held(prompt(1, 3)) == [0, 0]
    assert len(fleet.index) == 0


def test_block_that_was_stored_twice_is_gone_with_the_second_removal_though_that_names_no_group():
    fleet = Fleet()
    for _ in range(2):
        fleet.apply(0, stored([1], prompt(1, 1), group_idx=0, kv_cache_spec_kind="full_attention"))
    for copies in (1, 0):
        fleet.apply(0, BlockRemoved([1]))
        assert fleet.held(prompt(1, 1)) == [copies, 0]


def test_copies_from_before_a_cache_was_cleared_do_not_count():
    fleet = Fleet(lanes=1)
    fleet.apply(0, stored([1], prompt(1, 1)), stored([1], prompt(1, 1)), AllBlocksCleared())
    fleet.sweep()
    fleet.apply(0, AllBlocksCleared(), stored([1], prompt(1, 1)), BlockRemoved([1]))  # the first bit is used again
    assert fleet.held(prompt(1, 1)) == [0]


def test_block_counts_with_the_weight_of_its_best_tier():
    fleet = Fleet()
    fleet.apply(0, stored([1, 2], prompt(1, 2), medium="CPU"), stored([1], prompt(1, 1), medium="GPU"))
    fleet.apply(1, stored([1, 2], prompt(1, 2), medium="disk"))
    assert fleet.weighted(prompt(1, 2)) == [1.8, 2.0]
    fleet.apply(0, BlockRemoved([1], medium="gpu"))
    assert fleet.weighted(prompt(1, 2)) == [1.6, 2.0]


def test_block_that_is_copied_to_the_host_needs_no_token_ids_again():
    """vLLM reports offloaded blocks by their hashes, without their size and the kind of their cache."""
    fleet = Fleet()
    group = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    for _ in range(2):
        copied = BlockStored([2, 1, 99], None, [], 0, medium="CPU", group_idx=0)
        fleet.apply(0, stored([1, 2], prompt(1, 2), medium="GPU", **group), copied)
        assert fleet.weighted(prompt(1, 2)) == [2.0, 0]
        fleet.apply(0, BlockRemoved([1, 2], medium="GPU", group_idx=0))
        assert fleet.weighted(prompt(1, 2)) == [1.6, 0]
        fleet.apply(0, BlockRemoved([1, 2], medium="CPU", group_idx=0))
        assert fleet.weighted(prompt(1, 2)) == [0, 0]
    assert fleet.index.block_sizes == {SIZE}
    fleet.apply(1, copied)
    assert fleet.index.skipped_stores["unknown", "unknown_group"] == 1


def test_removal_from_a_cache_that_is_not_indexed_leaves_the_block():
    """The groups of a model with two kinds of attention hold the same hashes; only the window forgets them early."""
    fleet = Fleet(1)
    for number, kind in enumerate(("full_attention", "mine")):
        fleet.apply(0, stored([1], prompt(1, 1), group_idx=number, kv_cache_spec_kind=kind))
    fleet.apply(0, BlockRemoved([1], group_idx=1), BlockRemoved([1], group_idx=2))
    assert fleet.held(prompt(1, 1)) == [1]
    assert fleet.index.skipped_stores == Counter({("other", "unsupported_cache_kind"): 1})
    skipped = Counter({("other", "unsupported_cache_kind"): 1, ("unknown", "unknown_group"): 1})
    assert fleet.index.skipped_removals == skipped
    fleet.apply(0, BlockRemoved([1], group_idx=0))
    assert fleet.held(prompt(1, 1)) == [0]


def test_blocks_that_come_and_go_are_counted():
    fleet = Fleet(1, capacity=100)
    for number in range(3):
        fleet.now += 1
        hashes = range(1000 * number, 1000 * number + 50)
        fleet.apply(0, stored(hashes, prompt(number, 50)))
    blocks = fleet.index.blocks
    assert (blocks.admitted, blocks.evicted, len(fleet.index)) == (150, 50, 100)
    fleet.apply(0, stored([2000], prompt(2, 1)))
    fleet.apply(0, BlockRemoved([2000, 2001, 9]))
    assert (fleet.index.removed_copies, fleet.index.removed_hashes) == (1, 2)


def test_blocks_that_change_again_and_again_are_applied_in_several_calls():
    fleet = Fleet(1)
    changes = [stored([1], prompt(1, 1)), BlockRemoved([1])] * 500 + [stored([1], prompt(1, 1))]
    messages = [Message(fleet.lanes[0], "m", (change,)) for change in changes]
    applied = fleet.index.apply(messages, 1)
    assert 0 < applied < len(messages)
    while applied < len(messages):
        applied += fleet.index.apply(messages[applied:], 1)
    assert fleet.held(prompt(1, 1)) == [1]


def test_eight_tiers_are_known_and_further_ones_ignored():
    fleet = Fleet(1)
    for number in range(20):
        fleet.apply(0, stored([number], prompt(number, 1), medium=f"tier{number}"))
    assert [fleet.held(prompt(number, 1)) for number in (0, 7, 8, 19)] == [[1], [1], [0], [0]]
    assert fleet.index.skipped_stores == Counter({("unknown", "too_many_tiers"): 12})


def test_salt_and_identifiers_of_media_are_part_of_the_chain():
    fleet = Fleet()
    fleet.apply(0, stored([1, 2], prompt(1, 2), extra_keys=[["salt"], [["image", 3], 7]]))
    assert fleet.held(prompt(1, 2), extras=[["salt"], ["image"]]) == [2, 0]
    assert fleet.held(prompt(1, 2), extras=[["salt"]]) == [1, 0]
    assert fleet.held(prompt(1, 2)) == [0, 0]


def test_cleared_engine_holds_nothing_and_its_bit_serves_again_after_a_sweep():
    fleet = Fleet()
    fleet.apply(0, stored([1], prompt(1, 1)))
    fleet.apply(1, stored([1], prompt(1, 1)))
    fleet.apply(0, AllBlocksCleared(), stored([5], prompt(5, 1)))
    assert fleet.held(prompt(1, 1)) == [0, 1]
    assert fleet.held(prompt(5, 1)) == [1, 0]
    fleet.sweep()
    fleet.lanes.append(fleet.index.add())
    assert fleet.held(prompt(1, 1)) == [0, 1, 0]
    assert fleet.held(prompt(5, 1)) == [1, 0, 0]
    for _ in range(2):  # endpoints that leave
        fleet.index.remove(fleet.lanes.pop(0))
    fleet.sweep()
    assert len(fleet.index) == 0
    assert fleet.held(prompt(1, 1)) == [0]


def test_more_endpoints_than_one_word_has_bits_and_one_without_a_lane():
    fleet = Fleet(lanes=150)
    for lane in range(150):
        fleet.apply(lane, stored(range(1, lane % 5 + 1), prompt(1, lane % 5)))
    assert fleet.held(prompt(1, 5)) == [lane % 5 for lane in range(150)]
    assert fleet.index.blocks_of(fleet.ids).tolist() == [lane % 5 for lane in range(150)]
    found = fleet.index.match(keys_of(prompt(1, 5)), WEIGHTS, np.array([-1, fleet.lanes[4].id]), 1)
    assert found.blocks.tolist() == [0, 4]


LANES, PROMPTS, BLOCKS = 3, 3, 4
TIERS = ("gpu", "cpu")


class Model:
    """The same in counters. Block b of prompt p has the hash 10 p + b + 1."""

    def __init__(self) -> None:
        self.fleet = Fleet(lanes=LANES)
        self.known: set[int] = set()
        """Hashes whose tokens the index knows."""
        self.held: dict[int, Counter] = defaultdict(Counter)

    def store(self, lane: int, which: int, start: int, count: int, tier: str) -> None:
        blocks = range(start, min(start + count, BLOCKS))
        hashes = [10 * which + block + 1 for block in blocks]
        parent = 10 * which + start if start else None
        tokens = prompt(which + 1, BLOCKS)[SIZE * start : SIZE * (start + len(blocks))]
        self.fleet.apply(lane, stored(hashes, tokens, parent=parent, medium=tier.upper()))
        if parent is None or parent in self.known:
            self.known.update(hashes)
            self.held[lane].update((each, tier) for each in hashes)

    def offload(self, lane: int, which: int, start: int, count: int, tier: str) -> None:
        hashes = [10 * which + block + 1 for block in range(start, min(start + count, BLOCKS))]
        self.fleet.apply(lane, stored(hashes, [], size=0, medium=tier.upper()))
        self.held[lane].update((each, tier) for each in hashes if each in self.known)

    def remove(self, lane: int, which: int, block: int, _: int, tier: str) -> None:
        name = 10 * which + block + 1
        self.fleet.apply(lane, BlockRemoved([name], medium=tier))
        if self.held[lane][name, tier] > 0:
            self.held[lane][name, tier] -= 1
        if not any(held[name, each] for held in self.held.values() for each in TIERS):
            self.known.discard(name)

    def clear(self, lane: int, *_: object) -> None:
        self.fleet.apply(lane, AllBlocksCleared())
        self.empty(lane)

    def leave(self, lane: int, *_: object) -> None:
        self.fleet.index.remove(self.fleet.lanes[lane])
        self.fleet.lanes[lane] = self.fleet.index.add()
        self.empty(lane)

    def empty(self, lane: int) -> None:
        self.held[lane].clear()
        self.fleet.sweep()

    def leading(self, lane: int, which: int, tiers: tuple[str, ...] = TIERS) -> int:
        """Return how many leading blocks of a prompt a lane holds in these tiers."""
        has = [any(self.held[lane][10 * which + block + 1, tier] for tier in tiers) for block in range(BLOCKS)]
        return [*has, False].index(False)


STEP = st.tuples(
    st.sampled_from([Model.store, Model.store, Model.offload, Model.remove, Model.clear, Model.leave]),
    st.integers(0, LANES - 1),
    st.integers(0, PROMPTS - 1),
    st.integers(0, BLOCKS - 1),
    st.integers(1, BLOCKS),
    st.sampled_from(TIERS),
)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=40))
def test_index_agrees_with_counters(steps):
    model = Model()
    for step, *arguments in steps:
        step(model, *arguments)
        for which in range(PROMPTS):
            held = model.fleet.match(prompt(which + 1, BLOCKS))
            assert held.blocks.tolist() == [model.leading(lane, which) for lane in range(LANES)]
            assert held.offloaded.tolist() == [model.leading(lane, which, ("cpu",)) for lane in range(LANES)]
