# SPDX-License-Identifier: Apache-2.0
"""An HTTP/2 connection to a server under test that does what a test says and nothing else."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping

from tests.support.http2.http2_peer import Peer

PATIENCE_SECONDS = 60.0
"""More than anything takes; a failing test waits so long."""


class RawConnection:
    """Reads only when it is told to, and sends what it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        self.peer = peer
        self.at_end = False
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send, and wait until the kernel has most of it; a server that has closed is no error here."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(b"".join(pieces))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._writer.drain()

    async def offer(self, piece: bytes, seconds: float) -> bool:
        """Send; return whether the kernel took it in that time, and the server has not closed."""
        try:
            self._writer.write(piece)
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        except (TimeoutError, ConnectionError):
            return False
        return True

    async def read(self) -> None:
        """Take in what the server sends next, and acknowledge what needs it."""
        try:
            received = await self._reader.read(1 << 18)
        except ConnectionError:
            received = b""
        if not received:
            self.at_end = True
            return
        self.peer.receive(received)
        if self.peer.due:
            due = bytes(self.peer.due)
            self.peer.due.clear()
            await self.send(due)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Read until it holds; fails when the server closes before, or nothing more comes."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():
                    assert not self.at_end, f"closed before {what}; GOAWAY: {self.peer.goaway}"
                    await self.read()
        except TimeoutError as error:
            raise AssertionError(f"waited in vain until {what}") from error

    async def until_closed(self) -> None:
        """Read to the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.at_end:
                await self.read()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def connected(
    port: int, chosen: Mapping[int, int] | None = None, *, secure: ssl.SSLContext | None = None, greet: bool = True
) -> AsyncIterator[RawConnection]:
    """Connect, send the preface and the settings, and take the server's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=secure, limit=1 << 20)
    connection = RawConnection(reader, writer, Peer(chosen))
    try:
        if greet:
            await connection.send(connection.peer.greeting())
            await connection.until(
                lambda: connection.peer.server_settings and not connection.peer.unacknowledged,
                "the settings of both ends are known",
            )
        yield connection
    finally:
        connection.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
