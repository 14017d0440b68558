# SPDX-License-Identifier: Apache-2.0
"""A TLS proxy for a simulated model server, and a model server without a metrics page."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.support import certificates


@dataclass
class Certificate:
    """A certificate that is its own authority, on disk."""

    authority: Path
    context: ssl.SSLContext


def certificate_for(host: str, directory: Path) -> Certificate:
    directory.mkdir()
    certificates.write(directory, *certificates.new_pair(host))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return Certificate(directory / "tls.crt", context)


@dataclass
class TlsFront:
    """TLS in front of a server that speaks plaintext."""

    port: int
    names: list[str | None] = field(default_factory=list)
    """The host names that clients asked for in their handshakes."""
    received: bytearray = field(default_factory=bytearray)
    """What they sent then."""


@contextlib.asynccontextmanager
async def tls_in_front_of(address: str, certificate: Certificate) -> AsyncIterator[TlsFront]:
    host, _, port = address.rpartition(":")
    front = TlsFront(0)
    certificate.context.sni_callback = lambda _socket, name, _context: front.names.append(name)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pump(reader, back, front.received), _pump(there, writer, bytearray()))

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=certificate.context) as listening:
        front.port = listening.sockets[0].getsockname()[1]
        yield front


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: bytearray) -> None:
    try:
        while piece := await reader.read(65536):
            copy += piece
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class BareServer:
    """A model server without a metrics page, which may be stopped and started again on its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _complete(self, _request: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response({"choices": [{"text": "bare"}]}, headers={"x-sim-server": "bare"})
