# SPDX-License-Identifier: Apache-2.0
"""A gRPC server: listeners with and without TLS, adopted connections, and all open connections."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator

import structlog

from epp.extproc.http2.fair_scheduler import FairScheduler, Pace
from epp.extproc.http2.limits import BufferedBytes, Capacity, Limits, RateLimitedLog
from epp.extproc.http2.protocol import GrpcProtocol
from epp.extproc.http2.service import Methods
from epp.extproc.http2.tls_session import TlsSession
from epp.runtime.http_connections import Contexts

_log = structlog.get_logger()

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 1.0
_BRIEF_SECONDS = 0.01
_BACKLOG = 1024
_MOST_CONNECTIONS = 4096
_MOST_HELD_BYTES = 64 * 1024 * 1024


async def accepted(sock: socket.socket) -> AsyncIterator[socket.socket]:
    """Listen on a bound socket and yield each connection; pauses while there are no free descriptors."""
    loop = asyncio.get_running_loop()
    sock.listen(_BACKLOG)
    sock.setblocking(False)  # noqa: FBT003
    while True:
        try:
            connection, _ = await loop.sock_accept(sock)
        except OSError as error:
            exhausted = error.errno in _EXHAUSTED
            if exhausted:
                _log.warning("no connection accepted", problem=error.strerror)
            await asyncio.sleep(_PAUSE_SECONDS if exhausted else _BRIEF_SECONDS)
            continue
        yield connection


class GrpcServer:
    """A gRPC server: `start` it on a bound socket or for adopted connections; `stop` gives open calls time to end."""

    def __init__(
        self,
        methods: Methods,
        limits: Limits,
        tls: Contexts | None = None,
        *,
        connections: Capacity | None = None,
        held: BufferedBytes | None = None,
    ) -> None:
        """Prepare; `connections` limits their number, `held` their buffered bytes."""
        self._room = connections or Capacity("connections", _MOST_CONNECTIONS)
        self.held = held or BufferedBytes("bytes", _MOST_HELD_BYTES)
        """Buffered bytes of all connections."""
        self._methods = methods
        self._limits = limits
        self._tls = tls
        self._listener: asyncio.AbstractServer | None = None
        self._sock: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self.connections: dict[GrpcProtocol, None] = {}
        """Open connections; with TLS, those after the handshake."""
        self.warnings = RateLimitedLog()
        self.pace = Pace()
        """Spreads the ends of calls over iterations of the event loop."""
        self.scheduler = FairScheduler()
        """Shares each iteration of the event loop among busy connections."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def handshakes(self) -> int:
        return len(self._handshakes)

    async def start(self, sock: socket.socket | None) -> None:
        """Accept connections on a bound socket; without a socket, serve adopted connections only."""
        loop = asyncio.get_running_loop()
        self._sock = sock
        if sock is None:
            return
        if self._tls is not None:
            self._accepting = loop.create_task(self._accept(sock, self._tls))
        elif sock.family == socket.AF_UNIX:
            self._listener = await loop.create_unix_server(self._protocol, sock=sock, backlog=_BACKLOG)
        else:
            self._listener = await loop.create_server(self._protocol, sock=sock, backlog=_BACKLOG)

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process accepted; does not wait for a TLS handshake."""
        if self._tls is not None:
            self._secure(connection, self._tls)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError:  # caused by the client
            connection.close()

    def _protocol(self) -> GrpcProtocol:
        return GrpcProtocol(self._methods, self._limits, self, asyncio.get_running_loop())

    async def _accept(self, sock: socket.socket, contexts: Contexts) -> None:
        async for connection in accepted(sock):
            self._secure(connection, contexts)

    def _secure(self, connection: socket.socket, contexts: Contexts) -> None:
        loop = asyncio.get_running_loop()
        most = self._limits.max_handshakes
        if len(self._handshakes) >= most:  # an honest client finishes quickly
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # now: its end may take several iterations of the loop
            oldest.cancel()
            problem = f"{most} are open: the oldest is dropped"
            self.warnings.warn("too many unfinished TLS handshakes", loop.time(), problem=problem)
        task = loop.create_task(self._shake_hands(connection, contexts))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, connection: socket.socket, contexts: Contexts) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                context = await contexts()
            session = TlsSession(
                context, self._protocol, self._limits, warnings=self.warnings, scheduler=self.scheduler
            )
            await asyncio.get_running_loop().connect_accepted_socket(lambda: session, connection)
        except (OSError, TimeoutError):  # caused by the client
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        try:
            await session.settled
        except asyncio.CancelledError:
            session.abort()
            raise

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting; end the calls that are open after the grace period."""
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._handshakes] if self._accepting is None else [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is None and self._sock is not None:
            self._sock.close()
        if grace_seconds > 0 and self.connections:
            for connection in list(self.connections):
                connection.go_away()
            await self._emptied(grace_seconds)
        for connection in list(self.connections):
            connection.cut()
        await self._emptied(1.0)
        for connection in list(self.connections):
            connection.abort()
        await self._emptied(1.0)

    def connection_opened(self, protocol: GrpcProtocol) -> bool:
        """Register a connection; return False if the limit is reached and all connections have streams."""
        if not self._room.take():
            idle = self._spare()
            if idle is None:
                return False
            self.connection_closed(idle)
            idle.make_room()
            self._room.used += 1
        self.connections[protocol] = None
        self._empty.clear()
        return True

    def _spare(self) -> GrpcProtocol | None:
        """Return the oldest connection that never had a stream, or else the oldest without open streams."""
        spare: GrpcProtocol | None = None
        for each in self.connections:
            if not each.open_streams:
                if not each.has_served:
                    return each
                spare = spare or each
        return spare

    def connection_closed(self, protocol: GrpcProtocol) -> None:
        """Forget a connection, if it is registered."""
        if protocol in self.connections:
            del self.connections[protocol]
            self._room.give_back()
        if not self.connections:
            self._empty.set()

    async def _emptied(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
