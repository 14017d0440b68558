# SPDX-License-Identifier: Apache-2.0
"""The index of blocks."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.plugins.prefix_cache.index import PrefixIndex
from epp.plugins.prefix_cache.producer import block_hashes, chain_seed

SLOTS = 4
ROOMY = 100


def chain(*hashes):
    return array("Q", hashes)


def matches(index, *hashes):
    return index.match(chain(*hashes), SLOTS).tolist()


def recorded(*records):
    """Return an index with these records: a slot, its limit, and the hashes of a chain."""
    index = PrefixIndex()
    for slot, limit, *hashes in records:
        index.record(slot, chain(*hashes), limit)
    return index


@pytest.mark.parametrize(
    ("records", "asked", "expected"),
    [
        ([(0, ROOMY, 1, 2, 3), (2, ROOMY, 1, 9)], (1, 2, 3, 4), [3, 0, 1, 0]),  # each has its own match
        ([(0, ROOMY, 1)], (), [0, 0, 0, 0]),
        # blocks are found only after those before them
        ([(0, ROOMY, 1, 2, 3), (0, ROOMY, 1, 2, 4)], (2, 3), [0, 0, 0, 0]),
        ([(0, ROOMY, 1, 2, 3), (0, ROOMY, 1, 2, 4)], (3,), [0, 0, 0, 0]),
        ([(0, 4, 1, 2, 3, 4), (0, 4, 7)], (1, 2, 3, 4), [3, 0, 0, 0]),  # the tail is evicted before the head
        # a touched chain outlives an older one
        ([(0, 4, 1, 2), (0, 4, 5, 6), (0, 4, 1, 2), (0, 4, 8, 9)], (1, 2), [2, 0, 0, 0]),
        ([(0, 4, 1, 2), (0, 4, 5, 6), (0, 4, 1, 2), (0, 4, 8, 9)], (5, 6), [0, 0, 0, 0]),
        # a beginning that two chains share outlives the older one
        ([(0, 6, 1, 2, 3, 4), (0, 6, 1, 2, 5, 6), (0, 6, 8, 9)], (1, 2, 3, 4), [2, 0, 0, 0]),
        ([(0, 6, 1, 2, 3, 4), (0, 6, 1, 2, 5, 6), (0, 6, 8, 9)], (1, 2, 5, 6), [4, 0, 0, 0]),
        ([(0, 2, 1, 2, 3)], (1, 2, 3), [2, 0, 0, 0]),  # a chain longer than the limit keeps its head
        # eviction in one slot leaves the others
        ([(0, 3, 1, 2, 3), (1, 3, 1, 2, 3), (0, 3, 4, 5)], (1, 2, 3), [1, 3, 0, 0]),
        ([(0, 3, 1, 2, 3), (1, 3, 1, 2, 3), (0, 3, 4, 5)], (4, 5), [2, 0, 0, 0]),
        ([(9, ROOMY, 1), (1, ROOMY, 1)], (1,), [0, 1, 0, 0]),  # slots past those asked for are left out
    ],
)
def test_match_is_the_leading_blocks_recorded_and_not_evicted(records, asked, expected):
    assert matches(recorded(*records), *asked) == expected


def test_slot_taken_by_another_endpoint_starts_empty():
    index = recorded((1, ROOMY, 1, 2))
    index.forget(1)
    index.forget(3)
    assert matches(index, 1, 2) == [0, 0, 0, 0]
    index.record(1, chain(1), ROOMY)
    assert matches(index, 1, 2) == [0, 1, 0, 0]


def test_forgotten_blocks_are_freed_a_few_with_each_record_that_follows():
    index = recorded(*((1, 1000, 1, number) for number in range(2, 102)))
    index.forget(1)
    index.record(2, chain(1), 1000)
    assert 50 < len(index) < 101
    for _ in range(10):
        index.record(2, chain(1), 1000)
    assert len(index) == 1
    assert matches(index, 1) == [0, 0, 1, 0]


def test_block_that_nearly_all_of_a_large_pool_hold_is_found_at_each():
    index = recorded(*((slot, ROOMY, 1, 2) if slot % 10 else (slot, ROOMY, 1) for slot in range(100, 0, -1)))
    found = index.match(chain(1, 2), 95).tolist()
    assert found == [0] + [2 if slot % 10 else 1 for slot in range(1, 95)]


def test_chain_of_an_enormous_prompt_is_recorded_up_to_a_million_tokens():
    index = recorded((0, 10**6, *range(20_000)))
    assert matches(index, *range(20_000))[0] == 16_384  # blocks of 64 tokens


def test_limit_that_is_far_below_the_one_before_is_reached_with_a_few_records():
    index = recorded(*((0, 2000, number) for number in range(2000)))
    counts = [2000]
    while counts[-1] > 100:
        index.record(0, chain(5000 + len(counts), 6000 + len(counts)), 100)
        counts.append(index.entries(0))
    assert counts == [2000, 1488, 976, 464, 100]  # 512 fewer each time, whatever is added
    assert matches(index, 1998)[0] == 1  # the youngest of the former ones
    assert matches(index, 1000)[0] == 0


def test_chain_that_comes_again_and_again_takes_no_more_memory():
    index = recorded(*[(0, ROOMY, 1, 2, 3), (0, ROOMY, 1, 2)] * 1000)
    assert len(index._lanes[0].ends) == 2


def test_chains_whose_hashes_collide_neither_fail_nor_grow():
    index = PrefixIndex()
    for first, second in ((1, 2), (3, 2), (2, 1), (2, 2), (1, 1)):  # no hash comes after two different ones by right
        for slot in range(2):
            index.record(slot, chain(first, second, 7), 2)
            assert index.entries(slot) <= 2
    index.forget(0)
    index.forget(1)
    for _ in range(5):
        index.record(2, chain(8), 1)
    assert len(index) == 1


def test_withdrawn_chain_leaves_what_others_share_with_it():
    index = recorded((0, ROOMY, 1, 2, 3), (0, ROOMY, 1, 2, 4, 5), (1, ROOMY, 1, 2, 4, 5))
    index.withdraw(0, chain(1, 2, 4, 5))
    assert matches(index, 1, 2, 4, 5) == [2, 4, 0, 0]
    assert matches(index, 1, 2, 3) == [3, 2, 0, 0]


def test_withdrawing_an_unknown_chain_changes_nothing():
    index = recorded((0, ROOMY, 1, 2))
    index.withdraw(0, chain(1, 2, 3))
    index.withdraw(1, chain(1, 2))
    assert matches(index, 1, 2) == [2, 0, 0, 0]


class IndexAgainstModel(RuleBasedStateMachine):
    """The model: for each slot a list of hashes, least recently used first."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex()
        self.model = {slot: [] for slot in range(SLOTS)}
        self.limits = dict.fromkeys(range(SLOTS), 0)

    # A chain is a path in a small tree: blocks with equal paths are equal, as chained hashes are.
    paths = st.lists(st.integers(1, 2), max_size=8)

    @staticmethod
    def chain(path):
        return chain(*(int("".join(map(str, path[: depth + 1]))) for depth in range(len(path))))

    @rule(slot=st.integers(0, SLOTS - 1), path=paths, limit=st.integers(0, 12))
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

    @rule(slot=st.integers(0, SLOTS - 1), path=paths.filter(bool))
    def record_and_withdraw(self, slot, path):
        hashes = self.chain(path)
        if self.depth(slot, hashes) < len(hashes):
            self.index.record(slot, hashes, ROOMY)
            assert matches(self.index, *hashes)[slot] == len(hashes)
            self.index.withdraw(slot, hashes)

    @rule(slot=st.integers(0, SLOTS - 1))
    def forget(self, slot):
        self.index.forget(slot)
        self.model[slot] = []

    @rule(path=paths)
    def match(self, path):
        hashes = self.chain(path)
        assert matches(self.index, *hashes) == [self.depth(slot, hashes) for slot in range(SLOTS)]

    def depth(self, slot, hashes):
        depth = 0
        while depth < len(hashes) and hashes[depth] in self.model[slot]:
            depth += 1
        return depth

    @invariant()
    def every_slot_holds_what_the_model_holds_and_no_more(self):
        for slot, used in self.model.items():
            assert self.index.entries(slot) == len(used) <= max(self.limits[slot], 0)
            for block in used:
                digits = [int(digit) for digit in str(block)]
                assert matches(self.index, *self.chain(digits))[slot] == len(digits)

    @invariant()
    def blocks_of_no_slot_are_gone_when_the_forgotten_ones_are_freed(self):
        if not self.index._forgotten:
            assert len(self.index) == len({block for used in self.model.values() for block in used})

    def teardown(self):
        """Check that forgotten slots leave neither blocks nor references."""
        for slot in range(SLOTS):
            self.index.forget(slot)
        for _ in range(50):
            self.index.record(SLOTS, chain(3), 0)
        assert len(self.index) == 0
        assert not any(self.index._runs._tables)


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
