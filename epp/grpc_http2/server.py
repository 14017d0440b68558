# SPDX-License-Identifier: Apache-2.0
"""Listens, and keeps the connections of one server."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

from epp.grpc_http2.complaints import Complaints
from epp.grpc_http2.limits import Limits
from epp.grpc_http2.protocol import GrpcProtocol
from epp.grpc_http2.service import Methods
from epp.grpc_http2.tls import TlsListener

_BACKLOG = 1024

Contexts = Callable[[], Awaitable[ssl.SSLContext]]
"""Returns the TLS context for one new connection."""


class GrpcServer:
    """`start` on a bound socket; `stop` with or without time for open calls."""

    def __init__(self, methods: Methods, limits: Limits, tls: Contexts | None = None) -> None:
        self._methods = methods
        self._limits = limits
        self._tls = tls
        self._listener: asyncio.AbstractServer | TlsListener | None = None
        self._connections: dict[GrpcProtocol, None] = {}
        self.complaints = Complaints()
        """Takes warnings about clients."""
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on this socket."""
        loop = asyncio.get_running_loop()
        limits = self._limits

        def protocol() -> asyncio.Protocol:
            return GrpcProtocol(self._methods, limits, self, loop)

        if self._tls is not None:
            sock.listen(_BACKLOG)
            self._listener = TlsListener(sock, self._tls, protocol, limits, self.complaints)
        elif sock.family == socket.AF_UNIX:
            self._listener = await loop.create_unix_server(protocol, sock=sock, backlog=_BACKLOG)
        else:
            self._listener = await loop.create_server(protocol, sock=sock, backlog=_BACKLOG)

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more; give open calls this time, then cut them."""
        if isinstance(self._listener, TlsListener):
            await self._listener.close()
        elif self._listener is not None:
            self._listener.close()
        if grace_seconds > 0 and self._connections:
            for connection in list(self._connections):
                connection.go_away()
            await self._emptied(grace_seconds)
        for connection in list(self._connections):
            connection.cut()
        await self._emptied(1.0)
        for connection in list(self._connections):
            connection.abort()
        await self._emptied(1.0)

    def connection_opened(self, protocol: GrpcProtocol) -> None:
        """Take note of a connection."""
        self._connections[protocol] = None
        self._empty.clear()

    def connection_closed(self, protocol: GrpcProtocol) -> None:
        """Forget a connection."""
        self._connections.pop(protocol, None)
        if not self._connections:
            self._empty.set()

    async def _emptied(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
