# SPDX-License-Identifier: Apache-2.0
"""Processes of one picker, which tell each other what they do through the main process."""

import asyncio

import pytest

from epp.framework import ManualClock
from epp.sharing.local import Publisher, Relay
from tests.unit.sharing.pickers import ENDPOINTS, Picker

A, B, C, D = ENDPOINTS


class Process(Picker):
    """A worker that handles the messages of the relay."""

    def take(self, kind: str, content: object) -> None:
        if kind == "salt":
            self.exchange.use_salt(content)
        elif kind == "lost":
            self.exchange.connection(is_lost=content)
        else:
            self.exchange.apply(*content)

    def join(self, relay: Relay) -> None:
        relay.join(self.exchange.picker, self.take)

    def publish(self, relay: Relay) -> None:
        for batch in self.exchange.collect_all():
            relay.from_member(self.exchange.picker, batch)


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def main(clock):
    return Process(clock)


@pytest.fixture
def relay(main, clock):
    return Relay(main.exchange, clock)


@pytest.fixture
def workers(clock, relay):
    both = Process(clock), Process(clock, ENDPOINTS[::-1])
    for each in both:
        each.join(relay)
    return both


def test_each_process_knows_the_requests_of_all(main, relay, workers):
    one, other = workers
    one.send(A, 10)
    other.send(B, 5)
    for each in workers:
        each.publish(relay)
    assert one.in_flight == other.in_flight == main.in_flight == {"e0": (1, 10), "e1": (1, 5)}


def test_a_process_that_dies_has_no_requests_in_flight(main, relay, workers):
    one, other = workers
    one.send(A, 10)
    one.publish(relay)
    relay.leave(one.exchange.picker)
    assert other.in_flight == main.in_flight == {}


def test_a_process_that_joins_later_knows_where_prompts_went(relay, workers, clock):
    one, _ = workers
    one.place(C, [11, 12, 13])
    one.publish(relay)
    clock.advance(60)
    late = Process(clock)
    late.join(relay)
    assert late.matched(C, [11, 12, 13]) == 3


def test_all_processes_hash_with_the_salt_of_the_main_process(main, relay, workers):
    main.exchange.use_salt(99)
    for batch in main.exchange.collect_all():
        relay.from_main(batch)
    assert {each.exchange.salt for each in workers} == {99}


def test_all_processes_know_whether_other_pickers_are_reached(main, relay, workers, clock):
    main.exchange.connection(is_lost=True)
    clock.advance(1)
    for batch in main.exchange.collect_all():
        relay.from_main(batch)
    late = Process(clock)
    late.join(relay)
    assert all(each.exchange.is_lost for each in (*workers, late))


def test_history_is_bounded(relay, workers, monkeypatch):
    monkeypatch.setattr("epp.sharing.local._MOST_HISTORY_BYTES", 1000)
    one, _ = workers
    for number in range(100):
        one.place(C, [number])
        one.publish(relay)
    assert sum(len(each.batch) for each in relay._kept) <= 1000


class Stream:
    """What the relay uses of the stream of the shared state."""

    def __init__(self) -> None:
        self.wakes = asyncio.Event()


def test_batches_of_all_processes_are_written_to_the_shared_state_and_come_back_once(main, clock):
    stream = Stream()
    relay = Relay(main.exchange, clock, stream)
    one, other = Process(clock), Process(clock)
    one.join(relay)
    other.join(relay)
    one.send(A, 10)
    one.publish(relay)
    written = stream.collect()
    assert len(written) == 1
    assert stream.wakes.is_set()
    assert not stream.collect()
    applied = other.exchange.counts["applied"]
    stream.apply(written[0], 0.02)
    assert other.exchange.counts["applied"] == applied

    elsewhere = Picker(clock)
    elsewhere.send(B, 7)
    stream.apply(elsewhere.exchange.collect(), 0.02)
    assert one.in_flight == {"e0": (1, 10), "e1": (1, 7)}


async def test_publisher_tells_of_a_request_at_once(clock):
    picker, sent = Picker(clock), asyncio.Queue()
    publisher = Publisher(picker.exchange, sent.put_nowait)
    picker.store.ledger.on_open = publisher.wakes.set
    running = asyncio.create_task(publisher.run())
    async with asyncio.timeout(5):
        await sent.get()  # that it is there
        picker.send(A, 1)
        await sent.get()
    running.cancel()
    assert picker.exchange.counts["published"] == 2
