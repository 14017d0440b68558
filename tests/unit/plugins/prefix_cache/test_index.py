# SPDX-License-Identifier: Apache-2.0
"""The index against a naive model, and its rules as examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.plugins.prefix_cache.block_hashes import block_hashes, chain_seed
from epp.plugins.prefix_cache.index import PrefixIndex

SLOTS = 4
ROOMY = 100


def matches(index, hashes):
    return index.match(hashes, SLOTS).tolist()


def test_each_slot_gets_the_length_of_its_own_match():
    index = PrefixIndex()
    index.record(0, [1, 2, 3], ROOMY)
    index.record(2, [1, 9], ROOMY)
    assert matches(index, [1, 2, 3, 4]) == [3, 0, 1, 0]


def test_match_ends_at_the_first_gap():
    index = PrefixIndex()
    index.record(0, [1], ROOMY)
    index.record(0, [3], ROOMY)
    assert matches(index, [1, 2, 3]) == [1, 0, 0, 0]


def test_empty_chain_matches_no_slot():
    index = PrefixIndex()
    index.record(0, [1], ROOMY)
    assert matches(index, []) == [0, 0, 0, 0]


def test_tail_is_evicted_before_head():
    index = PrefixIndex()
    index.record(0, [1, 2, 3, 4], 4)
    index.record(0, [7], 4)
    assert matches(index, [1, 2, 3, 4]) == [3, 0, 0, 0]


def test_touched_chain_outlives_an_older_one():
    index = PrefixIndex()
    index.record(0, [1, 2], 4)
    index.record(0, [5, 6], 4)
    index.record(0, [1, 2], 4)
    index.record(0, [8, 9], 4)
    assert matches(index, [1, 2]) == [2, 0, 0, 0]
    assert matches(index, [5, 6]) == [0, 0, 0, 0]


def test_chain_longer_than_the_limit_keeps_its_head():
    index = PrefixIndex()
    index.record(0, [1, 2, 3], 2)
    assert matches(index, [1, 2, 3]) == [2, 0, 0, 0]


def test_eviction_in_one_slot_leaves_the_others():
    index = PrefixIndex()
    index.record(0, [1], 1)
    index.record(1, [1], 1)
    index.record(0, [2], 1)
    assert matches(index, [1]) == [0, 1, 0, 0]


def test_slot_taken_by_another_endpoint_starts_empty():
    index = PrefixIndex()
    index.record(1, [1, 2], ROOMY)
    index.forget(1)
    assert matches(index, [1, 2]) == [0, 0, 0, 0]
    assert len(index) == 0
    index.record(1, [1], ROOMY)
    assert matches(index, [1, 2]) == [0, 1, 0, 0]


def test_slots_past_those_asked_for_are_left_out():
    index = PrefixIndex()
    index.record(9, [1], ROOMY)
    index.record(1, [1], ROOMY)
    assert index.match([1], 2).tolist() == [0, 1]


class IndexAgainstModel(RuleBasedStateMachine):
    """The model: for each slot a list of hashes, least recently used first."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex()
        self.model = {slot: [] for slot in range(SLOTS)}
        self.limits = dict.fromkeys(range(SLOTS), 0)

    # A chain is a path in a small tree: blocks with equal paths are equal, as chained hashes are.
    paths = st.lists(st.integers(1, 2), max_size=6)

    @staticmethod
    def chain(path):
        return [int("".join(map(str, path[: depth + 1]))) for depth in range(len(path))]

    @rule(slot=st.integers(0, SLOTS - 1), path=paths, limit=st.integers(0, 8))
    def record(self, slot, path, limit):
        hashes = self.chain(path)
        self.index.record(slot, hashes, limit)
        used = self.model[slot]
        for block in reversed(hashes[:limit]):
            if block in used:
                used.remove(block)
            used.append(block)
        while len(used) > limit:
            used.pop(0)
        self.limits[slot] = limit

    @rule(slot=st.integers(0, SLOTS - 1))
    def forget(self, slot):
        self.index.forget(slot)
        self.model[slot] = []

    @rule(path=paths)
    def match(self, path):
        hashes = self.chain(path)
        expected = []
        for slot in range(SLOTS):
            depth = 0
            while depth < len(hashes) and hashes[depth] in self.model[slot]:
                depth += 1
            expected.append(depth)
        assert matches(self.index, hashes) == expected

    @invariant()
    def bits_are_set_exactly_for_what_the_slots_hold(self):
        held = {}
        for slot, used in self.model.items():
            assert list(self.index._orders.get(slot, ())) == used
            for block in used:
                held[block] = held.get(block, 0) | 1 << slot
        assert self.index._holders == held

    @invariant()
    def no_slot_is_over_its_limit(self):
        assert all(self.index.entries(slot) <= limit for slot, limit in self.limits.items())


IndexAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexAgainstModel = IndexAgainstModel.TestCase


def hashes_of(prompt, *, model="m", salt="", **limits):
    return block_hashes(prompt, seed=chain_seed(model, salt), block_tokens=64, **limits)


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 1), (256, 1), (257, 2), (512, 2)])
def test_blocks_are_of_four_bytes_a_token_and_the_last_may_be_shorter(length, blocks):
    assert len(hashes_of(b"x" * length)) == blocks


def test_limit_cuts_the_chain():
    prompt = b"x" * 2560
    assert hashes_of(prompt, max_blocks=3) == hashes_of(prompt)[:3]


@given(st.integers(0, 1023))
def test_changed_byte_changes_its_block_and_all_after_it(position):
    prompt = bytes(1024)
    changed = bytearray(prompt)
    changed[position] = 1
    same = [a == b for a, b in zip(hashes_of(prompt), hashes_of(bytes(changed)), strict=True)]
    assert same == [block < position // 256 for block in range(4)]


def test_other_model_or_other_salt_shares_no_block():
    prompt = b"x" * 256
    chains = [
        tuple(hashes_of(prompt, model=model, salt=salt))
        for model, salt in [("m", ""), ("n", ""), ("m", "s"), ("ms", ""), ("", "m"), ("", "ms")]
    ]
    assert len(set(chains)) == len(chains)
