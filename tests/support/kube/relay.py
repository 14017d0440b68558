# SPDX-License-Identifier: Apache-2.0
"""A network between a picker and its API server, which can be cut and can swallow everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.support.kube.apiserver import HOST, Access


class Relay:
    """Passes bytes between clients and a port, unless told otherwise."""

    def __init__(self, server: Access) -> None:
        self.access = server
        self._server = server
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()

    async def join(self) -> None:
        """Listen: on the port of before, if there was one."""
        port = 0 if self.access is self._server else self.access.port
        self._listening = await asyncio.start_server(self._relay, HOST, port)
        self.access = replace(self._server, port=self._listening.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Refuse connections, and reset those that are open."""
        assert self._listening is not None
        self._listening.close()
        for writer in tuple(self._connections):
            writer.transport.abort()

    def swallow(self) -> None:
        """Let connections stay open, and deliver nothing of what is sent."""
        self._passing.clear()

    def deliver(self) -> None:
        """Deliver what was swallowed, and all that follows."""
        self._passing.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection(HOST, self._server.port)
            self._connections.add(back)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            self._connections.discard(back)
        writer.close()
        self._connections.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                await self._passing.wait()
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def relay_to(server: Access) -> AsyncIterator[Relay]:
    """Run a relay; `relay.access` is the API server as seen through it."""
    relay = Relay(server)
    await relay.join()
    try:
        yield relay
    finally:
        relay.deliver()
        relay.cut()
