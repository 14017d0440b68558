# SPDX-License-Identifier: Apache-2.0
"""Processes of one picker, which tell each other what they do through the main process."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from epp.framework import ManualClock
from epp.plugins.prefix_cache.producer import ApproxPrefixCacheProducer
from epp.sharing.local import Publisher, Reader, Relay
from epp.sharing.rings import Rings, shared_memory
from tests.support.waiting import until
from tests.unit.sharing.pickers import ENDPOINTS, Picker

A, B, C, D = ENDPOINTS


class Process(Picker):
    """A worker that takes the messages of the relay."""

    rings: Rings

    def take(self, kind: str, content: object) -> None:
        if kind == "salt":
            self.exchange.use_salt(content)
        else:
            self.exchange.connection(is_lost=content)

    def join(self, relay: Relay, memory: int, number: int) -> None:
        relay.join(self.exchange.picker, self.take)
        self.rings = Rings(memory, number)
        self.read()

    def publish(self) -> None:
        for batch in self.exchange.collect_all():
            self.rings.write(batch, self.clock.now())

    def read(self) -> None:
        for timed in self.rings.read():
            self.exchange.apply(timed.data, self.clock.now() - timed.at)


class Main(Process):
    """The main process of three workers."""

    def __init__(self, clock: ManualClock, memory: int, stream: object = None) -> None:
        super().__init__(clock, defers=True)
        self.rings = Rings(memory, 0)
        self.relay = Relay(self.exchange, clock, self.rings, stream)

    def read(self) -> None:
        for timed in self.rings.read():
            self.relay.from_member(timed)


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_memory(4)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def main(clock, memory):
    return Main(clock, memory)


@pytest.fixture
def relay(main):
    return main.relay


@pytest.fixture
def workers(clock, relay, memory):
    both = Process(clock), Process(clock, ENDPOINTS[::-1])
    for number, each in enumerate(both, 1):
        each.join(relay, memory, number)
    return both


def test_each_process_knows_the_requests_of_all_that_live(main, relay, workers):
    one, other = workers
    one.send(A, 10)
    other.send(B, 5)
    for each in workers:
        each.publish()
    for each in (main, *workers):
        each.read()
    assert one.in_flight == other.in_flight == main.in_flight == {"e0": (1, 10), "e1": (1, 5)}
    one.send(C, 10)
    one.publish()
    relay.leave(one.exchange.picker)
    other.read()
    assert other.in_flight == main.in_flight == {"e1": (1, 5)}


def test_a_process_that_joins_later_knows_where_prompts_went(relay, workers, clock, memory):
    one, _ = workers
    one.place(C, [11, 12, 13])
    one.publish()
    clock.advance(60)
    late = Process(clock)
    late.join(relay, memory, 3)
    assert late.matched(C, [11, 12, 13]) == 3


async def test_main_process_knows_where_prompts_went_once_it_simulates_a_request(main, relay, workers, clock):
    one, other = workers
    one.place(C, [11, 12, 13])
    other.send(A, 10)
    for each in workers:
        each.publish()
    main.read()
    assert (main.matched(C, [11, 12, 13]), main.in_flight) == (0, {"e0": (1, 10)})
    await relay.complete()
    assert (main.matched(C, [11, 12, 13]), main.in_flight) == (3, {"e0": (1, 10)})
    other.place(D, [21, 22])
    other.publish()
    elsewhere = Picker(clock)
    elsewhere.place(B, [31, 32])
    relay.from_others(elsewhere.exchange.collect(), 0.0)
    for _ in range(2):
        await relay.complete()
        assert [main.matched(D, [21, 22]), main.matched(C, [11, 12, 13]), main.matched(B, [31, 32])] == [2, 3, 2]
        main.prefixes = ApproxPrefixCacheProducer(clock=clock)  # of a new configuration


def test_all_processes_have_the_salt_of_the_main_process_and_know_whether_other_pickers_are_reached(
    main, relay, workers, clock, memory
):
    main.exchange.use_salt(99)
    main.exchange.connection(is_lost=True)
    clock.advance(1)
    for batch in main.exchange.collect_all():
        relay.from_main(batch)
    late = Process(clock)
    late.join(relay, memory, 3)
    assert [(each.exchange.salt, each.exchange.is_lost) for each in (*workers, late)] == [(99, True)] * 3


class Stream:
    """What the relay uses of the stream of the shared state."""

    def __init__(self) -> None:
        self.wakes = asyncio.Event()


def test_batches_of_all_processes_are_written_to_the_shared_state_and_come_back_once(clock, memory):
    stream = Stream()
    main = Main(clock, memory, stream)
    one, other = Process(clock), Process(clock)
    for number, each in enumerate((one, other), 1):
        each.join(main.relay, memory, number)
    one.send(A, 10)
    one.publish()
    main.read()
    written = stream.collect()
    assert len(written) == 1
    assert stream.wakes.is_set()
    assert not stream.collect()
    other.read()
    applied = other.exchange.counts["applied"]
    stream.apply(written[0], 0.02)
    other.read()
    assert other.exchange.counts["applied"] == applied

    elsewhere = Picker(clock)
    elsewhere.send(B, 7)
    stream.apply(elsewhere.exchange.collect(), 0.02)
    one.read()
    assert one.in_flight == {"e0": (1, 10), "e1": (1, 7)}
    assert one.exchange.last_age == pytest.approx(0.02)


def test_requests_are_routed_by_what_others_just_wrote_but_do_not_wait_for_much_of_it(workers, clock):
    one, other = workers
    reader = Reader(other.rings, lambda timed: other.exchange.apply(timed.data, 0.0), clock)
    for _ in range(6):
        one.send(A, 10)
        one.publish()
    reader.poll()
    assert other.in_flight == {"e0": (4, 40)}
    reader.poll()
    assert other.in_flight == {"e0": (6, 60)}


async def test_reader_applies_what_is_there_before_it_has_caught_up_and_what_comes_later(workers, clock):
    one, other = workers
    one.send(A, 10)
    one.publish()
    reader = Reader(other.rings, lambda timed: other.exchange.apply(timed.data, 0.0), clock)
    running = asyncio.create_task(reader.run())
    async with asyncio.timeout(5):
        await reader.caught_up.wait()
        assert other.in_flight == {"e0": (1, 10)}
        one.send(B, 5)
        one.publish()
        await until(lambda: len(other.in_flight) == 2, "the second batch is applied")
    running.cancel()


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
