# SPDX-License-Identifier: Apache-2.0
"""The KV cache: blocks that are held, and blocks that are found again."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.lab.sim.work import Found, KVCache

A, B, C, D = (bytes([number]) * 16 for number in range(4))


def fill(cache: KVCache, owner: int, hashes: list[bytes]) -> Found | None:
    found = cache.admit(owner, prefix=hashes, blocks=len(hashes))
    cache.commit(owner, 0, hashes)
    return found


def cache_of(blocks: int, *prefixes: list[bytes], **tiers: int) -> KVCache:
    """Return a cache that these prefixes were in, one after the other."""
    cache = KVCache(blocks, **tiers)
    cache.take_changes()
    for owner, prefix in enumerate(prefixes):
        fill(cache, owner, prefix)
        cache.release(owner)
    return cache


def test_blocks_of_a_released_owner_are_found_again():
    cache = KVCache(4)
    assert fill(cache, 1, [A, B, C]) == Found(0)
    cache.release(1)
    assert cache.usage == 0.0
    assert fill(cache, 2, [A, B, D]) == Found(2)


def test_cached_blocks_without_an_owner_cost_a_free_block_to_share():
    cache = cache_of(2, [A, B])
    # A and B are found, and with them both free blocks are gone: there is none for the third.
    assert cache.admit(2, prefix=[A, B], blocks=3) is None
    assert cache.admit(2, prefix=[A, B], blocks=2) == Found(2)


def test_end_of_the_longest_unused_prefix_is_evicted_first():
    cache = cache_of(4, [A, B], [C, D])
    cache.admit(3, prefix=[], blocks=1)
    cache.release(3)
    assert cache.admit(4, prefix=[A, B], blocks=2) == Found(1)
    cache.release(4)
    assert cache.admit(5, prefix=[C, D], blocks=2) == Found(2)


def test_blocks_without_content_are_taken_before_cached_ones():
    cache = KVCache(3)
    fill(cache, 1, [A, B])
    cache.admit(2, prefix=[], blocks=1)
    cache.release(1)
    cache.release(2)
    cache.admit(3, prefix=[], blocks=1)
    assert cache.admit(4, prefix=[A, B], blocks=2) == Found(2)


def test_growth_beyond_the_free_blocks_changes_nothing():
    cache = KVCache(4)
    cache.admit(1, prefix=[], blocks=2)
    assert not cache.grow(1, 5)
    assert cache.free_blocks == 2
    assert cache.grow(1, 4)
    with pytest.raises(ValueError, match="owner 1 is in the cache already"):
        cache.admit(1, prefix=[], blocks=1)


def test_blocks_that_lose_their_place_are_copied_back_from_the_host():
    cache = cache_of(3, [A, B, C], num_host_blocks=4)
    cache.take_changes()
    fill(cache, 2, [D, b"e"])  # in place of the end of the first prefix
    assert cache.take_changes() == ({D: (2, 0), b"e": (2, 1)}, {B, C}, {B, C}, set(), set(), set())
    cache.release(2)
    assert cache.matched([A, B, C], 3) == Found(3, copied=2)
    assert fill(cache, 3, [A, B, C]) == Found(3, copied=2)
    cache.release(3)
    assert cache.take_changes() == ({B: (3, 1), C: (3, 2)}, {D, b"e"}, {D, b"e"}, set(), set(), set())


def test_host_drops_the_block_that_was_used_longest_ago():
    cache = cache_of(2, [A, B], [C, D], [b"e", b"f"], num_host_blocks=2)
    assert cache.matched([C, D], 2) == Found(2, copied=2)
    assert cache.matched([A, B], 2) == Found(0)


def test_blocks_that_leave_host_memory_are_read_from_the_disk():
    cache = cache_of(2, [A, B], [C, D], [b"e", b"f"], num_host_blocks=2, num_disk_blocks=2)
    changes = cache.take_changes()
    assert (changes.offloaded, changes.written) == ({C, D}, {A, B})
    assert cache.matched([A, B], 2) == Found(2, read=2)
    assert fill(cache, 3, [A, B]) == Found(2, read=2)
    cache.release(3)
    # e and f move to host memory, C and D from there to the disk, in place of A and B
    changes = cache.take_changes()
    assert (changes.written, changes.deleted) == ({C, D}, {A, B})


def test_disk_holds_blocks_without_host_memory():
    cache = cache_of(1, [A], [B], [C], num_disk_blocks=1)
    changes = cache.take_changes()
    assert (changes.offloaded, changes.dropped, changes.written) == (set(), set(), {B})
    assert cache.matched([B], 1) == Found(1, read=1)


class CacheMachine(RuleBasedStateMachine):
    """Owners come, grow, fill blocks and go, with prefixes drawn from a small tree so that they share."""

    BLOCKS = 12
    HOST_BLOCKS = 4
    DISK_BLOCKS = 3

    def __init__(self):
        super().__init__()
        self.cache = KVCache(self.BLOCKS, self.HOST_BLOCKS, self.DISK_BLOCKS)
        self.paths: dict[int, list[bytes]] = {}
        self.totals: dict[int, int] = {}
        self.contents: dict[int, bytes] = {}
        """What each block was last filled with, unless it was taken anew since."""
        self.next_owner = 0
        self.cache.take_changes()
        self.told: set[bytes] = set()
        self.told_of_host: set[bytes] = set()
        self.told_of_disk: set[bytes] = set()

    @rule()
    def take_changes(self):
        before = self.told
        if (changes := self.cache.take_changes()) is not None:
            assert changes.stored.keys().isdisjoint(before)
            assert changes.evicted <= before
            self.told = (before - changes.evicted) | changes.stored.keys()
            assert changes.offloaded.isdisjoint(self.told_of_host)
            assert changes.dropped <= self.told_of_host
            self.told_of_host = (self.told_of_host - changes.dropped) | changes.offloaded
            assert len(self.told_of_host) <= self.HOST_BLOCKS
            assert changes.written.isdisjoint(self.told_of_disk)
            assert changes.deleted <= self.told_of_disk
            self.told_of_disk = (self.told_of_disk - changes.deleted) | changes.written
            assert len(self.told_of_disk) <= self.DISK_BLOCKS
        assert self.told == set(self.cache.hashes)

    @rule(path=st.text(alphabet="xy", min_size=1, max_size=6), first=st.integers(1, 6))
    def admit(self, path, first):
        hashes = [path[: length + 1].encode() for length in range(len(path))]
        first = min(first, len(path))
        owner = self.next_owner
        free_before = self.cache.free_blocks
        self.take_changes()
        in_host, on_disk = self.told_of_host, self.told_of_disk
        found = self.cache.admit(owner, prefix=hashes[:first], blocks=first)
        if found is None:
            assert self.cache.free_blocks == free_before
            assert first > free_before
            return
        self.next_owner += 1
        self.paths[owner] = hashes
        self.totals[owner] = len(path)
        blocks = self.cache.blocks_of(owner)
        assert len(blocks) == first
        hits = found.blocks - found.copied - found.read
        assert [self.contents[block] for block in blocks[:hits]] == hashes[:hits]
        assert len(in_host.intersection(hashes[hits : found.blocks])) == found.copied
        assert (in_host | on_disk).issuperset(hashes[hits : found.blocks])
        self.take(blocks[hits:])
        self.contents.update(zip(blocks[hits : found.blocks], hashes[hits : found.blocks], strict=True))

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def grow_to_the_end_and_fill(self, data):
        owner = data.draw(st.sampled_from(sorted(self.paths)))
        before = self.cache.blocks_of(owner)
        if not self.cache.grow(owner, self.totals[owner]):
            assert self.totals[owner] - len(before) > self.cache.free_blocks
            assert self.cache.blocks_of(owner) == before
            return
        blocks = self.cache.blocks_of(owner)
        assert len(blocks) == self.totals[owner]
        assert blocks[: len(before)] == before
        self.take(blocks[len(before) :])
        self.cache.commit(owner, 0, self.paths[owner])
        self.contents.update(zip(blocks, self.paths[owner], strict=True))

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def release(self, data):
        owner = data.draw(st.sampled_from(sorted(self.paths)))
        self.cache.release(owner)
        del self.paths[owner], self.totals[owner]

    def take(self, blocks):
        for block in blocks:
            self.contents.pop(block, None)

    @invariant()
    def blocks_in_use_are_those_that_owners_hold(self):
        held = [self.cache.blocks_of(owner) for owner in self.paths]
        assert all(len(set(blocks)) == len(blocks) for blocks in held)
        assert self.BLOCKS - self.cache.free_blocks == len({block for blocks in held for block in blocks})

    @invariant()
    def block_is_shared_only_by_owners_of_one_prefix(self):
        prefixes: dict[int, bytes] = {}
        for owner, path in self.paths.items():
            for block, block_hash in zip(self.cache.blocks_of(owner), path, strict=False):
                assert prefixes.setdefault(block, block_hash) == block_hash

    def teardown(self):
        for owner in self.paths:
            self.cache.release(owner)
        assert self.cache.usage == 0.0
        assert self.cache.admit(self.next_owner, prefix=[], blocks=self.BLOCKS) == Found(0)


TestCacheMachine = CacheMachine.TestCase
