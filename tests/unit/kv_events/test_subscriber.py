# SPDX-License-Identifier: Apache-2.0
"""Subscriptions over ZeroMQ: what arrives, and when the contents of a cache become unknown."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from epp.pool.kv_events.events import BlockRemoved, BlockStored
from epp.pool.kv_events.subscriber import MOST_MESSAGE_BYTES, Received, Subscriber
from tests.support.kv_publisher import removed, stored
from tests.support.waiting import until


class Inbox:
    """What a subscriber handed over."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.subscriber = Subscriber("kv@", self.take)

    async def take(self, batch) -> None:
        self.received += batch

    async def of(self, count: int) -> list[Received]:
        await until(lambda: len(self.received) >= count, f"{count} messages have arrived")
        return self.received

    @property
    def complete(self) -> list[bool]:
        return [each.is_complete for each in self.received]

    @property
    def counts(self) -> dict[str, int]:
        return {result: count for result, count in self.subscriber.counts.by_result() if count}


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    found = Inbox()
    yield found
    await found.subscriber.close()


async def subscribed(inbox: Inbox, publisher, engine: int = 1):
    inbox.subscriber.connect(engine, publisher.address)
    await publisher.subscribed(lambda ready: until(ready, "the picker has subscribed"))
    return publisher


async def test_events_of_engines_arrive_in_order_with_the_model_of_the_topic(inbox, publisher):
    one, two = publisher(model="llama/8b"), publisher(model="x@y")
    await subscribed(inbox, one, 1)
    await subscribed(inbox, two, 2)
    for number in range(100):
        one.send(stored([number], [1, 2], size=2), removed([number]))
    two.send(stored([1], [1, 2], size=2))
    received = await inbox.of(101)
    of_one = [each for each in received if each.engine == 1]
    assert [each.events[0].block_hashes for each in of_one] == [[number] for number in range(100)]
    assert all(isinstance(each.events[1], BlockRemoved) and each.model == "llama/8b" for each in of_one)
    (of_two,) = [each for each in received if each.engine == 2]
    assert (of_two.model, of_two.is_complete) == ("", True)  # two more @ than a topic has
    assert inbox.counts == {"received": 101}


async def test_gap_makes_the_cache_unknown_and_is_counted(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1))
    one.send(stored([2], [2], size=1), skip=3)
    one.send(stored([3], [3], size=1))
    await inbox.of(3)
    assert inbox.complete == [True, False, True]
    assert inbox.received[1].events  # what is said after the gap holds
    assert inbox.counts == {"received": 3, "after a gap": 1}


async def test_first_message_may_have_any_number(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1), skip=1000)
    await inbox.of(1)
    assert inbox.complete == [True]


async def test_repeated_message_is_ignored(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1))
    one.sequence -= 1
    one.send(stored([1], [1], size=1))
    one.send(stored([2], [2], size=1))
    received = await inbox.of(2)
    assert [each.events[0].block_hashes for each in received] == [[1], [2]]
    assert all(inbox.complete)


async def test_sequence_that_begins_anew_is_a_restart(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1), skip=50)
    one.sequence = 0
    one.send(stored([2], [2], size=1))
    await inbox.of(2)
    assert inbox.complete == [True, False]
    assert inbox.counts["after a restart"] == 1


async def test_engine_that_ends_is_unknown_at_once_and_heard_again_when_it_is_back(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1))
    await inbox.of(1)
    one.close()
    received = await inbox.of(2)
    assert (received[1].events, received[1].is_complete) == ((), False)
    again = publisher(one.address)
    await again.subscribed(lambda ready: until(ready, "the picker has subscribed again"))
    again.send(stored([2], [2], size=1))
    await inbox.of(3)
    assert inbox.received[2].is_complete


@pytest.mark.parametrize(
    "parts",
    [
        [b"kv@e@m"],
        [b"kv@e@m", b"\0" * 8],
        [b"kv@e@m", b"\0" * 7, b"\x92\x01\x90"],
        [b"kv@e@m", b"\0" * 8, b"not msgpack"],
        [b"kv@e@m", b"\0" * 8, b"\x92\x01\x90", b"more"],
    ],
)
async def test_malformed_message_makes_the_cache_unknown_and_the_next_one_is_read(inbox, publisher, parts):
    one = await subscribed(inbox, publisher())
    one.send_parts(parts)
    one.sequence = 1
    one.send(stored([2], [2], size=1))
    received = await inbox.of(2)
    assert (received[0].events, received[0].is_complete) == ((), False)
    assert isinstance(received[1].events[0], BlockStored)
    assert inbox.counts["malformed"] == 1


async def test_other_topics_are_not_received(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send_parts([b"load@e@m", b"\0" * 8, b"x"])
    one.send(stored([1], [1], size=1))
    await inbox.of(1)
    assert inbox.counts == {"received": 1}


async def test_connection_of_an_engine_that_sends_a_huge_message_is_closed(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send_parts([one.topic, b"\0" * 8, b"\0" * (MOST_MESSAGE_BYTES + 1)])
    (lost,) = await inbox.of(1)
    assert (lost.events, lost.is_complete) == ((), False)
    assert inbox.counts == {"connection lost": 1}


async def test_slow_event_loop_gets_larger_batches(publisher):
    batches: list[int] = []

    async def slowly(batch) -> None:
        batches.append(len(batch))
        await asyncio.sleep(0.2)

    subscriber = Subscriber("kv@", slowly)
    one = publisher()
    subscriber.connect(1, one.address)
    await one.subscribed(lambda ready: until(ready, "the picker has subscribed"))
    for number in range(60):
        one.send(stored([number], [1], size=1))
    await until(lambda: sum(batches) == 60, "all have arrived")
    assert len(batches) <= 20
    await subscriber.close()


async def test_engine_that_is_disconnected_is_not_heard(inbox, publisher):
    one, two = publisher(), publisher()
    await subscribed(inbox, one, 1)
    await subscribed(inbox, two, 2)
    inbox.subscriber.disconnect(1)
    await one.subscribed(lambda ready: until(ready, "the picker has unsubscribed"))
    one.send(stored([1], [1], size=1))
    two.send(stored([2], [2], size=1))
    await inbox.of(1)
    assert [each.engine for each in inbox.received] == [2]


async def test_address_that_is_none_disturbs_no_other(inbox, publisher):
    inbox.subscriber.connect(7, "tcp://:::::")
    one = await subscribed(inbox, publisher())
    one.send(stored([1], [1], size=1))
    await inbox.of(1)


async def test_two_hundred_engines_come_and_go(inbox, publisher):
    found = [publisher() for _ in range(200)]
    for number, each in enumerate(found):
        inbox.subscriber.connect(number, each.address)
    for each in found:
        await each.subscribed(lambda ready: until(ready, "the picker has subscribed"))
    for each in found:
        each.send(stored([1], [1], size=1))
    await inbox.of(200)
    assert {each.engine for each in inbox.received} == set(range(200))
    for number in range(0, 200, 2):
        inbox.subscriber.disconnect(number)
        found[number].close()
    for each in found[1::2]:
        each.send(stored([2], [1], size=1))
    await until(lambda: sum(bool(each.events) for each in inbox.received) == 300, "the others are heard")
