# SPDX-License-Identifier: Apache-2.0
"""Clients that attack the HTTP/2 server: its memory stays bounded, and whoever else is connected is served."""

import asyncio
import contextlib
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import http2_bytes as h2
import pytest
import pytest_asyncio
from bench import BODY, request_body
from hpack import Encoder
from http2_bytes import Error, Setting
from http2_peer import Call
from raw_connection import RawConnection, connected
from serving import PLAIN, Served, destination_of, first_message, serving
from transports import over_asyncio
from waiting import until
from world import FAST

from epp.extproc.wire import METHOD, SERVICE
from epp.sim import running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    over_asyncio,
]

PATH = f"/{SERVICE}/{METHOD}"
FIRST = h2.grpc_message(first_message().SerializeToString())
WHOLE = h2.grpc_message(request_body(BODY, end=True).SerializeToString())
MIB_KIB = 1024
FEW_MIB = 48
"""What an attacked picker may grow by, in MiB: far more than one connection may hold, far less than is sent at it."""
GIVEN_UP = {Error.ENHANCE_YOUR_CALM, Error.PROTOCOL_ERROR}


class Watched:
    """A picker, its memory, and a client of its own connection that is served all the time."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.answered = 0
        self._at_rest = self._kib("VmRSS")

    @property
    def port(self) -> int:
        return self.served.grpc_port

    async def be_a_bystander(self) -> None:
        async with self.served.channel() as channel:
            while True:
                await destination_of(channel)
                self.answered += 1

    async def still_serves(self) -> None:
        """Wait for answers on the old connection, and have one on a new one."""
        before = self.answered
        await until(lambda: self.answered > before + 5, "others are served", seconds=60)
        async with self.served.channel() as channel:
            await destination_of(channel)

    @property
    def grown_mib(self) -> float:
        """By how much the memory at its highest was above the one at the start."""
        return (self._kib("VmHWM") - self._at_rest) / MIB_KIB

    def _kib(self, name: str) -> int:
        lines = Path(f"/proc/{self.served.command.pid}/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith(f"{name}:")]
        return int(line.split()[1])


@pytest_asyncio.fixture(loop_scope="module")
async def picker() -> AsyncIterator[Watched]:
    async with running(FAST) as sim, serving(sim, PLAIN) as served:
        watched = Watched(served)
        bystander = asyncio.create_task(watched.be_a_bystander())
        try:
            yield watched
            await watched.still_serves()
            assert watched.grown_mib < FEW_MIB
            assert not bystander.done(), bystander
            assert served.command.running
            assert not any("Traceback" in line for line in served.command.err)
        finally:
            bystander.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await bystander


async def assert_turned_away(connection: RawConnection) -> None:
    """Read to the end: the server has said why it closes, and then closed."""
    await connection.until_closed()
    goaway = connection.peer.goaway
    assert goaway is not None
    assert goaway[1] in GIVEN_UP, goaway


async def flood(connection: RawConnection, piece: bytes, times: int) -> None:
    """Send the same many times, while nothing is read."""
    block = piece * 1000
    for _ in range(times // 1000):
        if not await connection.offer(block, seconds=10):
            return


async def test_fifty_thousand_rapid_resets(picker):
    async with connected(picker.port) as connection:
        peer = connection.peer
        reading = asyncio.create_task(connection.until_closed())
        for _ in range(500):
            pieces = []
            for _ in range(100):
                call, opened = peer.call(PATH, FIRST) if False else _opened(connection)
                pieces += [opened, peer.cancel(call)]
            await connection.send(*pieces)
            if connection.at_end:
                break
        await reading
        assert peer.goaway is not None
        assert peer.goaway[1] == Error.ENHANCE_YOUR_CALM


def _opened(connection: RawConnection) -> tuple[Call, bytes]:
    call, opened = connection.peer.call(PATH)
    return call, opened
