# SPDX-License-Identifier: Apache-2.0
"""Subscriptions over ZeroMQ: what arrives, and when the contents of a cache become unknown."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from epp.pool.kv_events import sockets, subscriber
from epp.pool.kv_events.events import BlockRemoved, BlockStored
from epp.pool.kv_events.order import EngineCounts, EventCounts, Received
from epp.pool.kv_events.sockets import MOST_MESSAGE_BYTES
from epp.pool.kv_events.subscriber import MOST_WAITING_MESSAGES, Addresses, Subscriber
from tests.support.kv_publisher import removed, stored
from tests.support.waiting import until


def is_whole(change: Received) -> bool:
    """Return whether all messages before it were received."""
    return change.is_known and not change.has_gap


class Inbox:
    """What a subscriber handed over."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.batches: list[int] = []
        self.pause: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        """Other work of the event loop after each batch."""
        self.engine, self.events = EngineCounts(), EventCounts()
        self.subscriber = Subscriber("kv@", self.take, self.events)

    async def take(self, batch) -> None:
        self.batches.append(len(batch))
        self.received += batch
        await self.pause()

    async def of(self, count: int) -> list[Received]:
        await until(lambda: len(self.received) >= count, f"{count} messages have arrived")
        return self.received

    @property
    def stored(self) -> list[int]:
        """Return the blocks that are known to be held; none while messages are missing."""
        held: dict[int, set[int]] = {}
        for each in self.received:
            known = held.setdefault(each.engine, set())
            if not is_whole(each):
                known.clear()
            for event in each.events:
                change = known.update if isinstance(event, BlockStored) else known.difference_update
                change(event.block_hashes)
        current = {each.engine: each.is_current for each in self.received}
        return sorted(block for engine, known in held.items() if current[engine] for block in known)

    @property
    def counts(self) -> dict[str, int]:
        found = {"messages": self.engine.messages, **self.events.resets, **self.events.replays}
        return {name: count for name, count in found.items() if count}

    def connect(self, publisher, engine: int = 1) -> None:
        self.subscriber.connect(engine, Addresses(publisher.address, publisher.replay_address), self.engine)


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    found = Inbox()
    yield found
    await found.subscriber.close()


async def subscribed(inbox: Inbox, publisher, engine: int = 1):
    inbox.connect(publisher, engine)
    await publisher.subscribed()
    return publisher


def block(number: int) -> dict:
    """Return an event about a block of one token."""
    return stored([number], [number], size=1)


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
    assert (of_two.model, of_two.is_known) == ("", True)  # two more @ than a topic has
    assert inbox.counts == {"messages": 101}


@pytest.mark.parametrize(
    ("numbers", "expected", "counted"),
    [
        pytest.param([0, 4, 5], [(True, 1), (False, 1), (True, 1)], {"gap": 1}, id="gap, after which all holds"),
        pytest.param([1000], [(True, 1)], {}, id="any first number"),
        pytest.param([50, 0], [(True, 1), (False, 0)], {"restart": 1}, id="restart"),
    ],
)
async def test_numbers_of_messages_show_what_is_missing(inbox, publisher, numbers, expected, counted):
    one = await subscribed(inbox, publisher())
    for one.sequence in numbers:
        one.send(block(1))
    received = await inbox.of(len(numbers))
    assert [(is_whole(each), len(each.events)) for each in received] == expected
    assert inbox.counts == {"messages": len(numbers), **counted}


async def test_repeated_message_is_ignored(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(block(1))
    one.send_parts(one.history[-1])
    one.send(block(2))
    received = await inbox.of(2)
    assert [each.events[0].block_hashes for each in received] == [[1], [2]]
    assert all(map(is_whole, received))


async def test_gap_is_repaired_by_a_replay_that_begins_with_the_last_message(inbox, publisher):
    one = await subscribed(inbox, publisher().repeat())
    await until(lambda: one.asked == [0], "all is asked for at first")
    one.send(block(1))
    await inbox.of(2)
    one.lose(block(2))
    one.send(removed([1]))
    one.send(block(3))
    await until(lambda: inbox.stored == [2, 3], "the contents are those of the engine")
    assert one.asked == [0, 0]
    assert inbox.counts["complete"] == 2
    assert "gap" not in inbox.counts


async def test_subscriber_that_joins_asks_for_all_that_the_engine_remembers_and_again_from_a_hole(inbox, publisher):
    one = publisher().repeat()
    for number in range(20):
        one.lose(block(number))
    del one.history[:10]
    hole = one.history.pop(3)
    await subscribed(inbox, one)
    await until(lambda: len(one.asked) > 1, "the rest is asked for")
    one.history.insert(3, hole)
    await until(lambda: inbox.stored == list(range(10, 20)), "the blocks of the remembered messages are known")
    assert (one.asked[0], set(one.asked[1:])) == (0, {12})


async def test_engine_without_answers_is_asked_three_times_and_heard_without(inbox, publisher, monkeypatch):
    monkeypatch.setattr(sockets, "_SILENCE_SECONDS", 0.1)
    one = publisher().repeat()
    one.silent_replays = 1000
    one.sequence = 7
    await subscribed(inbox, one)
    await until(lambda: inbox.engine.errors, "the replay has failed")
    one.send(stored([7], [7], size=1))
    await until(lambda: inbox.stored == [7], "live messages count")
    one.lose(removed([7]))
    one.send(stored([9], [9], size=1))
    await until(lambda: inbox.stored == [9], "a gap empties the cache")
    assert one.asked == [0, 0, 0]
    assert inbox.engine.errors == {"replay-no-progress": 1}


async def test_many_engines_are_replayed_some_at_a_time(inbox, publisher):
    found = [publisher().repeat() for _ in range(20)]
    for number, each in enumerate(found):
        each.lose(block(number))
        await subscribed(inbox, each, number)
    await until(lambda: inbox.stored == list(range(20)), "all are known")


async def test_engine_that_ends_is_unknown_at_once_and_heard_again_when_it_is_back(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send(block(1))
    await inbox.of(1)
    one.close()
    received = await inbox.of(2)
    assert (received[1].events, received[1].is_known) == ((), False)
    again = publisher(one.address)
    await again.subscribed()
    again.send(block(2))
    await inbox.of(3)
    assert inbox.received[2].is_known


@pytest.mark.parametrize(
    "parts",
    [
        [b"kv@e@m"],
        [b"kv@e@m", b"\0" * 8],
        [b"kv@e@m", b"\0" * 7, b"\x92\x01\x90"],
        [b"kv@e@m", b"\0" * 8, b"not msgpack"],
        [b"kv@e@m", b"\0" * 8, b"\x92\x01\x90", b"more"],
        [b"kv@e@" + b"m" * 2048, b"\0" * 8, b"\x92\x01\x90"],
    ],
)
async def test_malformed_message_makes_the_cache_unknown_and_the_next_one_is_read(inbox, publisher, parts):
    one = await subscribed(inbox, publisher())
    one.send_parts(parts)
    one.sequence = 1
    one.send(block(2))
    received = await inbox.of(2)
    assert (received[0].events, received[0].is_known) == ((), False)
    assert isinstance(received[1].events[0], BlockStored)
    assert inbox.counts["malformed"] == 1


async def test_other_topics_are_not_received(inbox, publisher):
    one = await subscribed(inbox, publisher())
    one.send_parts([b"load@e@m", b"\0" * 8, b"x"])
    one.send(block(1))
    await inbox.of(1)
    assert inbox.counts == {"messages": 1}


async def test_connection_of_an_engine_that_sends_a_huge_message_is_closed_and_opened_again(
    inbox, publisher, monkeypatch
):
    monkeypatch.setattr(subscriber, "_REDIAL_SECONDS", 1.0)
    one = await subscribed(inbox, publisher())
    one.send_parts([one.topic, b"\0" * 8, b"\0" * (MOST_MESSAGE_BYTES + 1)])
    (lost,) = await inbox.of(1)
    assert (lost.events, lost.is_known) == ((), False)
    assert inbox.counts == {"disconnection": 1}
    for change in ("unsubscribed", "subscribed"):
        await one.subscribed(f"the picker has {change}")
    one.send(block(1))
    assert [event.block_hashes for event in (await inbox.of(2))[1].events] == [[1]]


async def test_slow_event_loop_gets_larger_batches(inbox, publisher):
    inbox.pause = lambda: asyncio.sleep(0.2)
    one = await subscribed(inbox, publisher())
    for number in range(60):
        one.send(block(number))
    await inbox.of(60)
    assert len(inbox.batches) <= 20


async def test_flood_that_an_event_loop_does_not_keep_up_with_shows_as_a_gap(inbox, publisher):
    may_go_on = asyncio.Event()
    inbox.pause = may_go_on.wait
    one = await subscribed(inbox, publisher())
    large = stored([1], [2**31] * 4_000, size=4_000)
    one.send(large)
    await until(lambda: inbox.received, "the event loop is busy")
    for _ in range(2_000):
        one.send(large)
    may_go_on.set()

    def is_over() -> bool:
        one.send(removed([1]))
        return not all(map(is_whole, inbox.received))

    await until(is_over, "messages were dropped", seconds=90)  # those before them are decoded first
    assert max(inbox.batches) <= MOST_WAITING_MESSAGES
    assert inbox.counts["gap"]


async def test_flood_of_malformed_messages_disturbs_no_other_engine(inbox, publisher):
    bad, good = publisher(), publisher()
    await subscribed(inbox, bad, 1)
    await subscribed(inbox, good, 2)
    for number in range(3_000):
        bad.send_parts([b"kv@e@m", number.to_bytes(8, "big"), b"\xc1" * 1_000])
        bad.send_parts([b"other", b"x"])
    for number in range(50):
        good.send(block(number))
    await until(lambda: inbox.stored == list(range(50)), "the other engine is heard")
    assert not [each for each in inbox.received if each.engine == 2 and not is_whole(each)]


async def test_engine_that_is_disconnected_is_not_heard_and_an_address_that_is_none_disturbs_no_other(inbox, publisher):
    inbox.subscriber.connect(7, Addresses("tcp://:::::"), EngineCounts())
    one, two = publisher(), publisher()
    await subscribed(inbox, one, 1)
    await subscribed(inbox, two, 2)
    inbox.subscriber.disconnect(1)
    await one.subscribed("the picker has unsubscribed")
    one.send(block(1))
    two.send(block(2))
    await inbox.of(1)
    assert [each.engine for each in inbox.received] == [2]


async def test_two_hundred_engines_come_and_go(inbox, publisher):
    found = [publisher() for _ in range(200)]
    for number, each in enumerate(found):
        inbox.connect(each, number)
    for each in found:
        await each.subscribed()
    for each in found:
        each.send(block(1))
    await inbox.of(200)
    assert {each.engine for each in inbox.received} == set(range(200))
    for number in range(0, 200, 2):
        inbox.subscriber.disconnect(number)
        found[number].close()
    for each in found[1::2]:
        each.send(stored([2], [1], size=1))
    await until(lambda: sum(bool(each.events) for each in inbox.received) == 300, "the others are heard")
