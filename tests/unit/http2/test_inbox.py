# SPDX-License-Identifier: Apache-2.0
"""gRPC messages in bytes that are cut anywhere, and the memory of waiting bytes."""

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2.streams import Inbox
from tests.support.http2.frame_client import message


@given(
    st.lists(st.one_of(st.binary(max_size=20), st.integers(500, 9000).map(bytes)), max_size=8),
    st.lists(st.one_of(st.integers(1, 30), st.integers(400, 6000)), min_size=1, max_size=9),
)
def test_messages_come_out_as_they_went_in(contents, sizes):
    wire = b"".join(map(message, contents))
    inbox, found, at, turn = Inbox(10_000, ""), [], 0, 0
    while at < len(wire):
        size = sizes[turn % len(sizes)]
        inbox.feed(wire[at : at + size])
        at, turn = at + size, turn + 1
        while turn % 3 == 0 and (content := inbox.next()) is not None:
            found.append(content)
    while (content := inbox.next()) is not None:
        found.append(content)
    assert found == contents
    assert all(type(content) is bytes for content in found)
    assert not inbox.in_message


def test_waiting_bytes_take_little_more_memory_than_they_are():
    tracemalloc.start()
    try:
        for size in (1, 3, 511, 512, 5000):
            inbox = Inbox(10**6, "")
            inbox.feed(message(bytes(10**6))[:5])
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(100_000 // size):
                inbox.feed(bytes(size))
            assert inbox.next() is None
            assert tracemalloc.get_traced_memory()[0] - before < 150_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 100, 4095])
def test_small_pieces_of_a_long_message_are_few_objects(size):
    inbox = Inbox(10**6, "")
    wire = message(bytes(10**6))
    for at in range(0, len(wire), size):
        inbox.feed(wire[at : at + size])
    assert len(inbox._pieces) < 20  # noqa: SLF001
    assert inbox.next() == bytes(10**6)


def test_message_is_taken_off_its_pieces_in_one_go():
    """Piece by piece would take time with the square of their number: half a second for 20 MB."""
    removals = []

    class Counted(list):
        def __delitem__(self, at):
            removals.append(at)
            super().__delitem__(at)

    inbox = Inbox(10**6, "")
    inbox._pieces = Counted()  # noqa: SLF001
    wire = message(bytes(10**6))
    for at in range(0, len(wire), 5000):
        inbox.feed(wire[at : at + 5000])
    assert inbox.next() == bytes(10**6)
    assert len(removals) == 2  # for the prefix, and for the message


def test_idle_inbox_is_small():
    inbox = Inbox(10**6, "")
    assert sys.getsizeof(inbox) + sys.getsizeof(inbox._pieces) < 200  # noqa: SLF001
