# SPDX-License-Identifier: Apache-2.0
"""Memory of the index, by the blocks that chains share."""

import tracemalloc
from array import array
from functools import partial
from random import Random

import pytest

from epp.plugins.prefix_cache.index import BYTES_PER_ENTRY, PrefixIndex

BLOCKS = 6_000
SLOTS = 15


def apart(length, times=1):
    """Yield chains without common blocks, each this number of times for one slot."""
    number = Random(1)
    for _ in range(BLOCKS // length):
        chain = [number.getrandbits(64) for _ in range(length)]
        slot = number.randrange(SLOTS)
        yield from [(slot, chain)] * times


def conversations(length):
    """Each turn repeats all turns before, and ends in a block that the next one does not have."""
    number = Random(1)
    for _ in range(BLOCKS // (10 * length + 10)):
        slot, chain = number.randrange(SLOTS), []
        for _ in range(10):
            chain = [*chain, *(number.getrandbits(64) for _ in range(length))]
            yield slot, [*chain, number.getrandbits(64)]


RECORDS = {
    "one": (partial(apart, 1), BYTES_PER_ENTRY),
    "one twice": (partial(apart, 1, times=2), BYTES_PER_ENTRY),
    "two": (partial(apart, 2), 180),
    "hundred": (partial(apart, 100), 20),
    "short turns": (partial(conversations, 1), 240),
    "turns": (partial(conversations, 8), 80),
}
"""Records, and the most bytes that each of their blocks may take."""


@pytest.mark.parametrize(("records", "most"), RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("limit", [10**6, BLOCKS // SLOTS // 2], ids=["growing", "evicting"])
def test_a_block_takes_no_more_than_is_promised(records, most, limit):
    tracemalloc.start()
    try:
        index = PrefixIndex()
        before, _ = tracemalloc.get_traced_memory()
        for slot, chain in records():
            index.record(slot, array("Q", chain), limit)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    blocks = sum(map(index.entries, range(SLOTS)))
    assert blocks >= BLOCKS // 3
    assert (after - before) / blocks <= most
