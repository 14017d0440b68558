# SPDX-License-Identifier: Apache-2.0
"""Rings in shared memory: each process gets every batch of the others once, in order, unless it is overtaken."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.sharing.rings import Rings, shared_memory

BYTES = 256


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_memory(3, BYTES)
    yield descriptor
    os.close(descriptor)


def rings(memory: int, own: int) -> Rings:
    return Rings(memory, own, BYTES)


def batches(reader: Rings) -> list[bytes]:
    return [timed.data for timed in reader.read()]


def test_each_process_gets_the_batches_of_the_others_once(memory):
    main, one, other = (rings(memory, own) for own in range(3))
    one.write(b"first", 1.5)
    one.write(b"second", 2.5)
    main.write(b"of main", 3.5)
    assert [(timed.data, timed.at) for timed in other.read()] == [(b"first", 1.5), (b"second", 2.5), (b"of main", 3.5)]
    assert batches(one) == [b"of main"]
    assert batches(main) == [b"first", b"second"]
    assert not batches(other)


def test_process_that_replaces_another_one_writes_on_and_reads_what_is_left(memory):
    main, other = rings(memory, 0), rings(memory, 2)
    rings(memory, 1).write(b"before its end", 0.0)
    main.write(b"its end", 0.0)
    later = rings(memory, 1)
    later.write(b"of its successor", 0.0)
    assert batches(other) == [b"before its end", b"of its successor", b"its end"]
    assert batches(later) == [b"before its end", b"its end"]
    later.write(b"more", 0.0)
    assert not batches(later)


def test_end_that_the_main_process_tells_comes_after_all_batches_of_a_worker(memory):
    main, one, other = (rings(memory, own) for own in range(3))
    one.write(b"first", 0.0)
    reading = other.read()
    assert next(reading).data == b"first"
    one.write(b"last", 0.0)
    main.write(b"its end", 0.0)
    assert [timed.data for timed in reading] == []  # what came meanwhile is for the next time
    assert batches(other) == [b"last", b"its end"]


def test_reader_that_is_overtaken_goes_on_with_the_oldest_batch_that_is_left(memory):
    one, other = rings(memory, 1), rings(memory, 2)
    for number in range(100):
        one.write(b"%03d" % number * 10, 0.0)
    left = batches(other)
    assert left == [b"%03d" % number * 10 for number in range(100 - len(left), 100)]
    assert len(left) == BYTES // (30 + 20)
    one.write(b"next", 0.0)
    assert batches(other) == [b"next"]


def test_bytes_that_are_no_batch_are_not_read_until_they_are_overwritten(memory):
    one, other = rings(memory, 1), rings(memory, 2)
    one.write(b"a" * 40, 0.0)
    os.pwrite(memory, b"b", BYTES + 16 + 16 + 30)
    one.write(b"c" * 40, 0.0)
    assert not batches(other)
    for _ in range(5):
        one.write(b"d" * 40, 0.0)
    assert batches(other) == [b"d" * 40] * 4


def test_batch_that_does_not_fit_is_refused(memory):
    with pytest.raises(ValueError, match="a batch of 300 bytes does not fit in a ring of 256"):
        rings(memory, 0).write(b"x" * 300, 0.0)


def test_batches_outlive_their_process_while_another_one_has_the_memory(memory):
    one = rings(memory, 1)
    one.write(b"x", 0.0)
    one.close()
    assert batches(rings(memory, 0)) == [b"x"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 2), st.binary(max_size=100)),  # a process writes
            st.tuples(st.integers(0, 2), st.none()),  # a process reads
        ),
        max_size=60,
    )
)
def test_readers_get_whole_batches_in_order_whatever_happens(steps):
    descriptor = shared_memory(3, BYTES)
    try:
        processes = [rings(descriptor, own) for own in range(3)]
        written: list[list[bytes]] = [[], [], []]
        read: list[list[tuple[int, int]]] = [[], [], []]
        for number, (own, data) in enumerate(steps):
            if data is not None:
                batch = bytes((own, number)) + data
                processes[own].write(batch, 0.0)
                written[own].append(batch)
                continue
            for timed in processes[own].read():
                writer, sent = timed.data[0], timed.data[1]
                assert writer != own
                assert timed.data in written[writer]
                read[own].append((writer, sent))
        for found in read:
            for writer in range(3):
                numbers = [sent for each, sent in found if each == writer]
                assert numbers == sorted(set(numbers))
        left = [timed.data for timed in rings(descriptor, 0).read()]  # of one that joins
        for writer in (1, 2):
            found = [batch for batch in left if batch[0] == writer]
            assert found == written[writer][len(written[writer]) - len(found) :]
            assert bool(found) == bool(written[writer])
        for each in processes:
            each.close()
    finally:
        os.close(descriptor)
