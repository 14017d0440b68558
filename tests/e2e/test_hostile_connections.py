# SPDX-License-Identifier: Apache-2.0
"""Clients that attack the HTTP/2 server: its memory stays bounded, and whoever else is connected is served."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from hpack import Encoder

from epp.extproc.wire import METHOD, SERVICE
from tests.support.attacked_picker import Watched, under_attack
from tests.support.exchanges import BODY, request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_bytes import Error, Setting
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.serving import first_message
from tests.support.transports import over_asyncio

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    over_asyncio,
]

PATH = f"/{SERVICE}/{METHOD}"
FIRST = h2.grpc_message(first_message().SerializeToString())
WHOLE = h2.grpc_message(request_body(BODY, end=True).SerializeToString())


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


async def test_flood_of_tiny_window_updates(picker):
    async with connected(picker.port) as connection:
        call, opened = connection.peer.call(PATH)
        await connection.send(opened)
        reading = asyncio.create_task(connection.until_closed())
        await flood(connection, h2.window_update(0, 1) + h2.window_update(call.number, 1), 300_000)
        connection.abort()  # allowed to have survived: an update costs the server next to nothing
        with contextlib.suppress(AssertionError):
            await reading


async def test_header_list_of_ten_megabytes(picker):
    async with connected(picker.port) as connection:
        fields = h2.grpc_fields(PATH, [(f"x-{number}", "v" * 4_000) for number in range(2_500)])
        block = h2.encoded(Encoder(), fields, huffman=False)
        await connection.send(h2.cut_headers(1, block, [16_384] * (len(block) // 16_384)))
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


@pytest.mark.parametrize("size", [2**20, 2**31 - 1])
async def test_header_table_that_the_client_wants_huge(picker, size):
    async with connected(picker.port, {Setting.HEADER_TABLE_SIZE: size}) as connection:
        for number in range(200):
            fields = h2.grpc_fields(PATH, [(f"x-{number}-{field}", "v" * 100) for field in range(20)])
            _, opened = connection.peer.open(fields, FIRST, WHOLE, end=True)
            await connection.send(opened)
        await connection.until(lambda: all(call.closed for call in connection.peer.calls.values()), "all are answered")


async def test_header_values_that_are_no_utf_8(picker):
    async with connected(picker.port) as connection:
        peer = connection.peer
        fields = h2.grpc_fields(PATH, [("x-bytes", b"\xff\xfe\x80"), ("x-latin", "é".encode("latin-1"))])
        call, opened = peer.open(fields, FIRST, WHOLE, end=True)
        other, asked = peer.call(PATH, FIRST, WHOLE, end=True)
        await connection.send(opened, asked)
        await connection.until(lambda: call.closed and other.closed, "both are answered")
        assert other.status == 0
        assert len(other.messages) == 2


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


async def test_windows_that_are_never_opened(picker):
    """Each stream may take its windows' worth of requests; the answers to them stay with the server."""
    async with connected(picker.port, {Setting.INITIAL_WINDOW_SIZE: 0}) as connection:
        peer = connection.peer
        calls = []
        for _ in range(300):
            call, opened = peer.call(PATH, FIRST, WHOLE)
            calls.append(call)
            await connection.send(opened)
        await connection.until(lambda: all(call.headers for call in calls), "all have headers, which no window holds")
        assert not any(call.data for call in calls)


async def test_half_open_connections(picker):
    async with AsyncExitStack() as stack:
        for number in range(1_000):
            begun = connected(picker.port, greet=False)
            connection = await stack.enter_async_context(begun)
            await connection.send(h2.PREFACE[: number % len(h2.PREFACE)])
        await picker.still_serves()
