"""The KV cache: what is held, what is found again, what is promised."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.sim.kv_cache import KVCache

A, B, C, D = (bytes([number]) * 16 for number in range(4))


def fill(cache: KVCache, owner: int, hashes: list[bytes]) -> int | None:
    found = cache.admit(owner, prefix=hashes, first_blocks=len(hashes), total_blocks=len(hashes))
    for index, block_hash in enumerate(hashes):
        cache.commit(owner, index, block_hash)
    return found


def test_blocks_of_a_released_owner_are_found_again():
    cache = KVCache(4)
    assert fill(cache, 1, [A, B, C]) == 0
    cache.release(1)
    assert cache.usage == 0.0
    assert fill(cache, 2, [A, B, D]) == 2


def test_hits_stop_at_the_first_block_that_is_missing():
    cache = KVCache(8)
    fill(cache, 1, [A, B, C])
    assert cache.admit(2, prefix=[A, D, C], first_blocks=3, total_blocks=3) == 1


def test_shared_blocks_count_once():
    cache = KVCache(4)
    fill(cache, 1, [A, B])
    fill(cache, 2, [A, B])
    assert cache.used_blocks == 2
    cache.release(1)
    assert cache.used_blocks == 2


def test_what_is_reserved_for_growth_is_not_given_to_another():
    cache = KVCache(4)
    assert cache.admit(1, prefix=[], first_blocks=1, total_blocks=3) == 0
    assert cache.admit(2, prefix=[], first_blocks=1, total_blocks=2) is None  # 4 - 3 = 1 block is left
    assert cache.admit(2, prefix=[], first_blocks=1, total_blocks=1) == 0
    cache.grow(1, 3)
    assert cache.usage == 1.0


def test_cached_blocks_without_an_owner_cost_a_free_block_to_share():
    cache = KVCache(2)
    fill(cache, 1, [A, B])
    cache.release(1)
    # A and B are found, and with them both free blocks are gone: there is none for the third.
    assert cache.admit(2, prefix=[A, B], first_blocks=3, total_blocks=3) is None
    assert cache.admit(2, prefix=[A, B], first_blocks=2, total_blocks=2) == 2


def test_end_of_the_longest_unused_prefix_is_evicted_first():
    cache = KVCache(4)
    fill(cache, 1, [A, B])
    cache.release(1)
    fill(cache, 2, [C, D])
    cache.release(2)
    cache.admit(3, prefix=[], first_blocks=1, total_blocks=1)
    cache.release(3)
    assert cache.admit(4, prefix=[A, B], first_blocks=2, total_blocks=2) == 1
    cache.release(4)
    assert cache.admit(5, prefix=[C, D], first_blocks=2, total_blocks=2) == 2


def test_blocks_without_content_are_taken_before_cached_ones():
    cache = KVCache(3)
    fill(cache, 1, [A, B])
    cache.admit(2, prefix=[], first_blocks=1, total_blocks=1)
    cache.release(1)
    cache.release(2)
    cache.admit(3, prefix=[], first_blocks=1, total_blocks=1)
    assert cache.admit(4, prefix=[A, B], first_blocks=2, total_blocks=2) == 2


def test_growth_beyond_the_promise_is_refused():
    cache = KVCache(4)
    cache.admit(1, prefix=[], first_blocks=1, total_blocks=2)
    with pytest.raises(ValueError, match="owner 1 has 1 blocks reserved and asks for 2"):
        cache.grow(1, 3)
    with pytest.raises(ValueError, match="owner 1 is in the cache already"):
        cache.admit(1, prefix=[], first_blocks=1, total_blocks=1)


class CacheMachine(RuleBasedStateMachine):
    """Owners come, grow, fill blocks and go, with prefixes drawn from a small tree so that they share."""

    BLOCKS = 12

    def __init__(self):
        super().__init__()
        self.cache = KVCache(self.BLOCKS)
        self.paths: dict[int, list[bytes]] = {}
        self.totals: dict[int, int] = {}
        self.next_owner = 0

    @rule(path=st.text(alphabet="xy", min_size=1, max_size=6), first=st.integers(1, 6))
    def admit(self, path, first):
        hashes = [path[: length + 1].encode() for length in range(len(path))]
        first = min(first, len(path))
        owner = self.next_owner
        used_before = self.cache.used_blocks
        hits = self.cache.admit(owner, prefix=hashes[:first], first_blocks=first, total_blocks=len(path))
        if hits is None:
            assert self.cache.used_blocks == used_before
            promised = sum(total - len(self.held(known)) for known, total in self.totals.items())
            assert used_before + promised + len(path) > self.BLOCKS
            return
        self.next_owner += 1
        self.paths[owner] = hashes
        self.totals[owner] = len(path)
        assert [self.cache._hash_of[block] for block in self.held(owner)[:hits]] == hashes[:hits]

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def grow_to_the_end_and_fill(self, data):
        owner = data.draw(st.sampled_from(sorted(self.paths)))
        self.cache.grow(owner, self.totals[owner])
        for index, block_hash in enumerate(self.paths[owner]):
            self.cache.commit(owner, index, block_hash)

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def release(self, data):
        owner = data.draw(st.sampled_from(sorted(self.paths)))
        self.cache.release(owner)
        del self.paths[owner], self.totals[owner]

    def held(self, owner):
        return self.cache._tables[owner].blocks

    @invariant()
    def every_block_is_free_or_held_as_often_as_counted(self):
        references = [0] * self.BLOCKS
        for owner in self.paths:
            assert len(set(self.held(owner))) == len(self.held(owner))
            for block in self.held(owner):
                references[block] += 1
        assert references == self.cache._references
        assert {block for block, held in enumerate(references) if not held} == set(self.cache._free)

    @invariant()
    def every_hash_has_one_block_and_every_block_one_hash(self):
        assert {block: block_hash for block_hash, block in self.cache._block_of.items()} == self.cache._hash_of

    @invariant()
    def promises_can_be_kept(self):
        promised = sum(total - len(self.held(owner)) for owner, total in self.totals.items())
        assert promised == self.cache._reserved <= len(self.cache._free)

    def teardown(self):
        for owner in self.paths:
            self.cache.release(owner)
        assert self.cache.usage == 0.0
        assert self.cache._reserved == 0


TestCacheMachine = CacheMachine.TestCase
