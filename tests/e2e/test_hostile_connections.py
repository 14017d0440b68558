# SPDX-License-Identifier: Apache-2.0
"""Clients that attack the HTTP/2 server: its memory stays bounded, and whoever else is connected is served."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from hpack import Encoder

from tests.support.attacked_picker import Watched, under_attack
from tests.support.exchanges import request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_bytes import Error, Setting
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.serving import PATH, first_message
from tests.support.transports import over_asyncio

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    over_asyncio,
]

FIRST = h2.grpc_message(first_message().SerializeToString())


@pytest_asyncio.fixture(loop_scope="module")
async def picker() -> AsyncIterator[Watched]:
    async with under_attack() as watched:
        yield watched


async def assert_turned_away(picker: Watched, connection: RawConnection) -> None:
    """Read to the end: the server has closed, and said why, be it that a flood on its way made the client miss it."""
    await connection.until_closed()
    goaway = connection.peer.goaway
    assert goaway is None or goaway[1] == Error.ENHANCE_YOUR_CALM, goaway
    await picker.served.command.says('"code":"ENHANCE_YOUR_CALM"')


async def flood(connection: RawConnection, piece: bytes, times: int) -> None:
    """Send the same many times, while nothing is read."""
    block = piece * 1000
    for _ in range(times // 1000):
        if not await connection.offer(block, seconds=10):
            return


FLOODS = (
    h2.settings([(Setting.HEADER_TABLE_SIZE, 4096)]),
    h2.settings(),
    h2.ping(b"12345678"),
    h2.priority(1, 0),
    h2.priority(999, 0),  # of an idle stream
    h2.data(1),
    h2.data(1, pad=0),
)


async def test_flood_of_frames_that_need_answers_or_work(picker):
    for piece in FLOODS:
        async with connected(picker.port) as connection:
            call, opened = connection.peer.call(PATH)
            await connection.send(opened)
            assert call.number == 1
            connection.peer.unacknowledged.extend({} for _ in range(300_000))  # what is sent is not counted
            await flood(connection, piece, 300_000)
            await assert_turned_away(picker, connection)


async def test_one_field_of_the_table_named_a_hundred_thousand_times(picker):
    """A header block of 100 KB that means 400 MB."""
    async with connected(picker.port) as connection:
        encoder = Encoder()
        _, opened = connection.peer.call(PATH)
        await connection.send(opened)
        bomb = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"v" * 4_000  # a literal with indexing: the newest of the table
        block = h2.encoded(encoder, h2.grpc_fields(PATH)) + bomb + b"\xbe" * 100_000
        await connection.send(h2.cut_headers(3, block, [16_384] * (len(block) // 16_384)))
        await assert_turned_away(picker, connection)


@pytest.mark.slow
async def test_client_that_never_reads_its_answers(picker):
    """Its windows are wide open, so that only the socket holds the server back; it asks for 400 MB."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "user": "u" * 1_000_000}).encode()
    message = h2.grpc_message(request_body(body, end=True).SerializeToString())
    async with connected(picker.port, {Setting.INITIAL_WINDOW_SIZE: h2.MOST_WINDOW}) as connection:
        peer = connection.peer
        await connection.send(peer.grant(h2.MOST_WINDOW - h2.DEFAULT_WINDOW))
        for _ in range(400):
            call, opened = peer.call(PATH, FIRST)
            frames = [h2.data(call.number, message[at : at + 16_000]) for at in range(0, len(message), 16_000)]
            if not await connection.offer(opened + b"".join(frames), seconds=5):
                break  # the server reads no more
        else:
            pytest.fail("all was read, though no answer was")


async def test_half_open_connections(picker):
    async with AsyncExitStack() as stack:
        for number in range(1_000):
            begun = connected(picker.port, greet=False)
            connection = await stack.enter_async_context(begun)
            await connection.send(h2.PREFACE[: number % len(h2.PREFACE)])
        await picker.still_serves()
