# SPDX-License-Identifier: Apache-2.0
"""Pickers that tell each other what they do know what one picker would."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, ManualClock
from epp.framework.datalayer import Report
from epp.framework.sharing import MOST_PAYLOAD_BYTES
from epp.framework.snapshot import INHERITED, RUNNING, WAITING
from epp.plugins.prefix_cache.producer import Placed
from epp.sharing.exchange import SILENCE_SECONDS, Batch
from tests.unit.sharing.pickers import ENDPOINTS, Picker

A, B, C, D = ENDPOINTS


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def two(clock):
    """Two pickers that have the same endpoints in other slots."""
    return Picker(clock), Picker(clock, ENDPOINTS[::-1])


def test_requests_of_another_picker_are_in_flight_here_and_are_not_told_on(two, clock):
    one, other = two
    one.send(A, 10)
    one.send(A, 20)
    other.send(B, 5)
    one.tell(other)
    assert other.in_flight == {"e0": (2, 30), "e1": (1, 5)}
    assert one.in_flight == {"e0": (2, 30)}
    third = Picker(clock)
    other.tell(third)
    assert third.in_flight == {"e1": (1, 5)}
    one.tickets[0].first_token()
    one.tickets[1].close()
    one.tell(other)
    assert other.in_flight == {"e0": (1, 0), "e1": (1, 5)}


def test_nothing_is_told_while_nothing_changes_but_that_it_is_there(two, clock):
    one, _ = two
    assert one.tell() is not None
    assert one.tell() is None
    one.send(A, 1)
    assert one.tell() is not None
    clock.advance(0.5)
    assert one.tell() is None
    clock.advance(0.5)
    assert one.tell() is not None


def test_lost_batch_heals_in_a_second(two, clock):
    one, other = two
    one.send(A, 10)
    one.send(B, 10)
    one.tell(other)
    one.tickets[0].close()
    one.tell()  # lost
    one.send(C, 1)
    one.tell(other)
    assert other.in_flight == {"e0": (1, 10), "e1": (1, 10), "e2": (1, 1)}
    assert other.exchange.counts["lost"] == 1
    clock.advance(1.0)
    one.tell(other)
    assert other.in_flight == {"e1": (1, 10), "e2": (1, 1)}


def test_batch_that_comes_again_or_too_late_changes_nothing(two):
    one, other = two
    one.send(A, 10)
    first = one.tell(other)
    one.tickets[0].close()
    second = one.tell(other)
    other.exchange.apply(first, 0.0)
    other.exchange.apply(second, 0.0)
    assert other.in_flight == {}
    assert other.exchange.counts["repeated"] == 2


def test_silent_picker_is_forgotten_and_counts_again_when_it_is_back(two, clock):
    one, other = two
    one.send(A, 10)
    one.tell(other)
    clock.advance(SILENCE_SECONDS + 0.1)
    other.exchange.sweep()
    assert (other.in_flight, other.exchange.peers) == ({}, 0)
    one.tell(other)
    assert other.in_flight == {"e0": (1, 10)}


def test_picker_that_ends_says_so(two):
    one, other = two
    one.send(A, 10)
    one.place(A, [1, 2])
    one.tell(other)
    one.place(B, [3])
    other.exchange.apply(one.exchange.collect(is_last=True), 0.0)
    assert (other.in_flight, other.exchange.peers) == ({}, 0)
    assert (other.matched(A, [1, 2]), other.matched(B, [3])) == (2, 1)


def test_placements_of_another_picker_are_matched_and_withdrawn(two):
    one, other = two
    one.place(A, [1, 2, 3])
    one.tell(other)
    assert (other.matched(A, [1, 2, 3]), other.matched(B, [1, 2, 3])) == (3, 0)
    one.prefixes._outbox.add(Placed.of(A, array("Q", [1, 2, 3]), is_withdrawn=True))
    one.tell(other)
    assert other.matched(A, [1, 2, 3]) == 0


def test_old_batches_teach_placements_but_no_requests(two):
    one, other = two
    one.send(A, 10)
    one.place(A, [1, 2, 3])
    other.exchange.apply(one.tell(), 60.0)
    assert (other.in_flight, other.matched(A, [1, 2, 9])) == ({}, 2)


def test_many_chains_are_told_in_parts_and_those_that_wait_are_bounded(two, clock):
    one, other = two
    chains = [[number * 7919 + 1] for number in range(3000)]
    for chain in chains:
        one.place(A, chain)
    batches = [one.tell(other) for _ in range(4)]
    assert [batch is None for batch in batches] == [False, False, False, True]
    assert all(other.matched(A, chain) == 1 for chain in chains[-1000:])  # the index keeps a thousand here
    for number in range(40):
        one.place(A, list(range(number * 5000 + 1, number * 5000 + 4001)))  # of 32,000 bytes each
    told = [batch for _ in range(50) if (batch := one.tell(other)) is not None]
    assert len(told) == 32  # of 40, the oldest are dropped
    assert other.matched(A, [39 * 5000 + 1]) == 1


def test_other_salt_drops_what_was_hashed_with_the_old_one(two):
    one, _ = two
    one.place(A, [1, 2, 3])
    one.exchange.use_salt(7)
    assert one.matched(A, [1, 2, 3]) == 3
    one.exchange.use_salt(8)
    assert one.matched(A, [1, 2, 3]) == 0


def test_endpoint_that_leaves_takes_the_work_there_along(two, clock):
    one, other = two
    one.send(A, 10)
    one.tell(other)
    other.store.update([], [A.id])
    assert other.in_flight == {}
    other.store.update([A])
    assert other.in_flight == {}
    clock.advance(1.0)
    one.tell(other)
    assert other.in_flight == {"e0": (1, 10)}
    one.store.update([Endpoint("e9", "10.0.0.9", 8000)], [A.id])
    clock.advance(1.0)
    one.tell(other)
    assert other.in_flight == {}


def test_requests_of_others_are_not_inherited(two):
    one, other = two
    one.send(A, 10)
    one.tell(other)
    other.store.report(A, Report({RUNNING: 3.0, WAITING: 0.0}))
    other.store.inherit(60.0)
    assert other.store.snapshot().column(INHERITED)[other.slot(A)] == 2  # of 3, one is of a picker that is here
    assert other.in_flight == {"e0": (3, 10)}


LARGE_POOL = tuple(Endpoint(f"e{number}", f"10.0.{number // 250}.{number % 250}", 8000) for number in range(1000))


@pytest.fixture
def two_large(clock) -> tuple[Picker, Picker]:
    """Two pickers of a large pool; the first has a request at each endpoint, and has told nothing yet."""
    one, other = Picker(clock, LARGE_POOL), Picker(clock, LARGE_POOL)
    for endpoint in LARGE_POOL:
        one.send(endpoint, 1)
    return one, other


def test_large_pool_is_told_in_parts(two_large):
    one, other = two_large
    batches = [one.tell(other) for _ in range(4)]
    assert len(other.in_flight) == 1000
    assert [batch is None for batch in batches] == [False, False, False, True]
    assert all(len(batch) <= MOST_PAYLOAD_BYTES for batch in batches[:3])


def test_large_pool_stays_known_while_it_is_told_again(two_large, clock):
    one, other = two_large
    known, told = [], 0
    for _ in range(100):
        clock.advance(0.1)
        told += len(one.tell(other) or b"")
        known.append(len(other.in_flight))
    assert known[:2] == [409, 818]
    assert set(known[2:]) == {1000}
    assert told < 100_000  # 20 bytes for each endpoint, and again for 204 of them each second


def test_large_pool_is_told_at_once_after_a_lost_connection(two_large, clock):
    one, other = two_large
    while one.tell(other) is not None:
        pass
    other.exchange.connection(is_lost=True)
    one.exchange.connection(is_lost=True)
    clock.advance(6.0)
    other.exchange.sweep()
    assert other.in_flight == {}
    one.exchange.connection(is_lost=False)
    for _ in range(3):
        one.tell(other)
    assert len(other.in_flight) == 1000


def test_no_endpoint_of_a_large_pool_waits_long_while_all_change(two_large, clock):
    one, other = two_large
    for _ in range(30):  # each batch has room for 409 of 1,000
        for endpoint in LARGE_POOL:
            one.send(endpoint, 1)
        clock.advance(0.1)
        one.tell(other)
    counts = [requests for requests, _ in other.in_flight.values()]
    assert len(counts) == 1000
    assert min(counts) >= 31 - 4


def test_endpoint_that_leaves_a_large_pool_at_one_picker_has_no_work_at_others(two_large):
    one, other = two_large
    while one.tell(other) is not None:
        pass
    one.store.replace(LARGE_POOL[1:])
    one.tell(other)
    assert set(other.in_flight) == {endpoint.name for endpoint in LARGE_POOL[1:]}


GARBAGE = [
    b"",
    b"\xc1" * 100,
    msgspec.msgpack.encode({"a": 1}),
    msgspec.msgpack.encode(Batch("99", "p", 1, {})),
    msgspec.msgpack.encode(Batch("1l", "p", 1, {"work": b"x" * (MOST_PAYLOAD_BYTES + 1)})),
    msgspec.msgpack.encode(Batch("1l", "p" * 1000, 1, {})),
]
GARBAGE_PARTS = {
    "work": [b"", b"\x00", msgspec.msgpack.encode([True, [["10.0.0.1:8000", -1, 0]]])],
    "chains/approx-prefix-cache-producer": [
        b"",
        msgspec.msgpack.encode(["10.0.0.1:8000", b"12345678", False]),
        msgspec.msgpack.encode([["10.0.0.1:8000", b"1234567", False]]),
        msgspec.msgpack.encode([["10.0.0.1:8000", b"", False]]),
        msgspec.msgpack.encode([["10.0.0.1:8000", "12345678"]]),
        msgspec.msgpack.encode([[8000, b"12345678", False]]),
    ],
}


@pytest.mark.parametrize("data", GARBAGE)
def test_invalid_batch_is_counted_and_not_used(clock, data):
    one = Picker(clock)
    one.exchange.apply(data, 0.0)
    assert one.exchange.counts["refused"] == 1
    assert (one.exchange.peers, one.in_flight) == (0, {})


@pytest.mark.parametrize(("name", "payload"), [(name, one) for name, some in GARBAGE_PARTS.items() for one in some])
def test_invalid_payload_is_counted_and_the_others_are_used(clock, name, payload):
    one, other = Picker(clock), Picker(clock)
    one.send(B, 1)
    one.place(B, [1])
    batch = msgspec.msgpack.decode(one.tell(), type=Batch)
    spoilt = msgspec.structs.replace(batch, parts={**batch.parts, name: payload})
    other.exchange.apply(msgspec.msgpack.encode(spoilt), 0.0)
    assert other.exchange.counts["refused"] == 1
    assert (other.in_flight == {"e1": (1, 1)}) is (name != "work")
    assert other.matched(B, [1]) == (name == "work")


@given(st.binary(max_size=200))
def test_no_bytes_raise(data):
    one = Picker(ManualClock(100.0))
    one.exchange.apply(data, 0.0)
    batch = msgspec.msgpack.encode(Batch("1l", "p", 1, dict.fromkeys(GARBAGE_PARTS, data)))
    one.exchange.apply(batch, 0.0)
