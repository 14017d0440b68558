# SPDX-License-Identifier: Apache-2.0
"""Thousands of streams that send a byte now and then: others are served, and memory has a bound.

`under_attack` checks that; a stream took less than 2 KiB.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from tests.support.attacked_picker import Watched, under_attack
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_peer import Call
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.serving import PATH, PLAIN, REQUEST
from tests.support.transports import over_asyncio

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), over_asyncio]

STREAMS = 5_000
ROUNDS = 20
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


class SlowWriter:
    """A stream of which one byte more is sent each time; it ends short of its last."""

    def __init__(self, connection: RawConnection, call: Call, begun: int) -> None:
        self.call = call
        self._connection = connection
        self._sent = begun

    def next_byte(self) -> bytes:
        self._sent += 1
        return self._connection.peer.send(self.call, REQUEST[self._sent - 1 : self._sent])

    def rest(self) -> bytes:
        return self._connection.peer.send(self.call, REQUEST[self._sent :], end=True)


async def slow_writers(connection: RawConnection, count: int) -> list[SlowWriter]:
    """Open streams that have sent each another part of a request: none, or up to all but the last few bytes."""
    writers, frames = [], []
    for number in range(count):
        begun = number % (len(REQUEST) - 2 * ROUNDS)
        call, opened = connection.peer.call(PATH, *([REQUEST[:begun]] if begun else []))
        writers.append(SlowWriter(connection, call, begun))
        frames.append(opened)
    await connection.send(*frames)
    return writers


@contextlib.asynccontextmanager
async def reading(connections: Sequence[RawConnection]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(connection.until_closed()) for connection in connections]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def write_slowly(picker: Watched, writers: dict[RawConnection, list[SlowWriter]]) -> None:
    """Send a byte on each stream that is open, many times; the picker answers others meanwhile."""
    for number in range(ROUNDS):
        for connection, streams in writers.items():
            await connection.send(*(stream.next_byte() for stream in streams if not stream.call.closed))
        if number % 5 == 0:
            await picker.still_serves()


async def test_slow_writers_are_answered_when_they_are_done():
    async with under_attack() as picker, connected(picker.port) as connection:
        await connection.send(connection.peer.grant(h2.MOST_WINDOW - h2.DEFAULT_WINDOW))
        streams = await slow_writers(connection, STREAMS)
        await write_slowly(picker, {connection: streams})
        await connection.send(*(stream.rest() for stream in streams))
        calls = [stream.call for stream in streams]
        await connection.until(lambda: all(call.closed for call in calls), "all have ended")
        assert {(call.status, len(call.messages)) for call in calls} == {(0, 2)}


async def test_slow_writers_that_stop_are_ended_after_the_body_timeout():
    async with under_attack(PLAIN, "--body-timeout=3s") as picker, connected(picker.port) as connection:
        await connection.send(connection.peer.grant(h2.MOST_WINDOW - h2.DEFAULT_WINDOW))
        writers = await slow_writers(connection, STREAMS)
        async with reading([connection]):
            await write_slowly(picker, {connection: writers})
        calls = [writer.call for writer in writers]
        await connection.until(lambda: all(call.closed for call in calls), "all have ended")
        # A request whose headers are complete is refused with 408; otherwise only the call has a status.
        assert {(call.status, len(call.messages)) for call in calls} == {(DEADLINE_EXCEEDED, 0), (0, 1)}
        (after,) = await slow_writers(connection, 1)
        await connection.send(after.rest())
        await connection.until(lambda: after.call.closed, "the connection goes on")
        assert after.call.status == 0
