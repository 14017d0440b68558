# SPDX-License-Identifier: Apache-2.0
"""Entries for other pickers."""

import msgspec
import pytest

from epp.framework.sharing import MOST_PAYLOAD_BYTES, Outbox


class Note(msgspec.Struct, array_like=True):
    text: str


def opened() -> Outbox[Note]:
    outbox = Outbox(Note)
    outbox.is_open = True
    return outbox


def payloads_of(outbox: Outbox[Note]) -> list[bytes]:
    found = []
    while (payload := outbox.take()) is not None:
        found.append(payload)
    return found


def test_entries_are_read_in_their_order():
    outbox = opened()
    outbox.add(Note("a"))
    outbox.add(Note("b"))
    (payload,) = payloads_of(outbox)
    assert Outbox(Note).read(payload) == [Note("a"), Note("b")]


def test_entries_are_not_kept_before_there_are_other_pickers():
    outbox = Outbox(Note)
    outbox.add(Note("a"))
    outbox.is_open = True
    assert outbox.take() is None


def test_payloads_are_bounded_and_the_oldest_entries_beyond_a_mebibyte_are_dropped():
    outbox = opened()
    for number in range(2000):
        outbox.add(Note(f"{number:01000}"))
    payloads = payloads_of(outbox)
    assert max(map(len, payloads)) <= MOST_PAYLOAD_BYTES
    numbers = [int(note.text) for payload in payloads for note in outbox.read(payload)]
    assert numbers == list(range(2000 - 1024 * 1024 // 1004, 2000))  # 4 bytes of framing each


def test_payload_of_other_entries_is_invalid():
    with pytest.raises(ValueError, match="Expected `str`"):
        opened().read(msgspec.msgpack.encode([[1]]))
