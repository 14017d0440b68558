# SPDX-License-Identifier: Apache-2.0
"""Two ends of a channel."""

import asyncio
import socket
from contextlib import asynccontextmanager
from types import MappingProxyType

import pytest

from epp.sharing import channel
from epp.sharing.channel import Channel, ChannelClosedError


@asynccontextmanager
async def ends(here=None, there=None):
    """Both ends, with these handlers."""
    first, second = socket.socketpair()
    one, other = Channel(first, here or {}), Channel(second, there or {})
    await one.open()
    await other.open()
    running = [asyncio.create_task(each.run()) for each in (one, other)]
    try:
        async with asyncio.timeout(10):
            yield one, other
    finally:
        one.close()
        other.close()
        await asyncio.gather(*running)


async def test_messages_come_in_order():
    told = []
    done = asyncio.Event()
    async with ends(there={"count": told.append, "end": lambda _: done.set()}) as (one, _):
        for number in range(1000):
            one.send("count", number)
        one.send("end")
        await done.wait()
    assert told == list(range(1000))


async def test_calls_are_answered_in_both_directions():
    async def slowly(number):
        await asyncio.sleep(0)
        return number + 1

    async with ends({"echo": lambda content: content}, {"next": slowly}) as (one, other):
        answers = await asyncio.gather(*(one.call("next", number, most_seconds=5) for number in range(50)))
        assert answers == list(range(1, 51))
        record = await other.call("echo", MappingProxyType({"a": 1}), most_seconds=5)
        assert (type(record), record) == (MappingProxyType, {"a": 1})


async def test_a_handler_that_fails_fails_its_call_and_nothing_else():
    def fail(_):
        raise ValueError("no")

    async with ends(there={"fail": fail, "one": lambda _: 1}) as (one, _):
        one.send("fail")
        with pytest.raises(ChannelClosedError, match="ValueError: no"):
            await one.call("fail", most_seconds=5)
        assert await one.call("one", most_seconds=5) == 1


async def test_a_call_that_is_not_answered_ends():
    async with ends(there={"wait": lambda _: asyncio.sleep(60)}) as (one, _):
        with pytest.raises(ChannelClosedError, match="no answer"):
            await one.call("wait", most_seconds=0.01)


async def test_calls_end_with_the_other_process():
    async with ends(there={"wait": lambda _: asyncio.sleep(60)}) as (one, other):
        waiting = asyncio.create_task(one.call("wait", most_seconds=60))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(ChannelClosedError, match="ended"):
            await waiting
        with pytest.raises(ChannelClosedError, match="ended"):
            await one.call("wait", most_seconds=60)
        one.send("wait")  # dropped


async def test_a_process_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(channel, "_MOST_UNREAD_BYTES", 1024 * 1024)
    first, second = socket.socketpair()
    with second:
        Channel(second, {}).close()  # one that was not opened
        one = Channel(first, {})
        await one.open()
        running = asyncio.create_task(one.run())
        for _ in range(40):
            one.send("pool", bytes(100_000))
        async with asyncio.timeout(10):
            await running
        assert not one.is_open
