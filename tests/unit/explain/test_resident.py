# SPDX-License-Identifier: Apache-2.0
"""Memory that calls leave behind."""

import mmap

from epp.explain.shadows import MOST_GROWTH, MOST_GROWTH_OF_RUN, Growth, resident_bytes

MIB = 2**20


def test_size_of_this_process_grows_with_what_is_held():
    with mmap.mmap(-1, 64 * MIB) as held:  # pages of the kernel: the allocator may have 64 MiB to give away
        before = resident_bytes()
        held[:: mmap.PAGESIZE] = b"x" * (64 * MIB // mmap.PAGESIZE)
        assert resident_bytes() - before > 48 * MIB


def test_call_that_takes_much_at_once_breaks_the_bound():
    growth = Growth()
    assert not growth.breach(100 * MIB, 100 * MIB + MOST_GROWTH_OF_RUN)
    assert growth.breach(100 * MIB, 101 * MIB + MOST_GROWTH_OF_RUN) == "took 65 MiB of memory for one request"


def test_calls_that_take_a_little_again_and_again_break_the_bound():
    growth, size, breach, calls = Growth(), 100 * MIB, "", 0
    while not breach:
        breach = growth.breach(size, size + 10 * MIB)
        size += 10 * MIB
        calls += 1
    assert calls == MOST_GROWTH // (10 * MIB) + 1
    assert "did not release it" in breach


def test_memory_that_is_given_back_or_grows_between_calls_does_not_add_up():
    growth = Growth()
    assert not any(growth.breach(100 * MIB, 130 * MIB) for _ in range(1000))
    assert not any(growth.breach(size * MIB, size * MIB) for size in range(100, 10_000, 50))
