# SPDX-License-Identifier: Apache-2.0
"""An HTTP server in its own thread and event loop, with limits on connections and time."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Thread
from typing import TypeAlias

import structlog
from aiohttp import web

from epp.descriptors import NO_DESCRIPTOR
from epp.listening import listener

_BACKLOG = 1024
_CLOSE_SECONDS = 1.0
_ACCEPT_RETRY_SECONDS = 0.5
_PIECE_BYTES = 64 * 1024

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits that keep one client from blocking the others."""

    connections: int = 32
    """Open connections. One more closes another: of the host with most, idle before busy ones, the oldest."""
    request_seconds: float = 10.0
    """Time for a request head, from the start of the connection or the end of the previous response."""
    body_seconds: float = 1.0
    """Time for a request body, which is ignored."""
    response_seconds: float = 30.0
    """Time for the client to read a response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; its body is omitted for HEAD."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[Answer]]


class HttpThread:
    """Listens from its construction, which raises OSError, until `close`."""

    def __init__(self, host: str, port: int, handler: Handler, limits: HttpLimits) -> None:
        self._handler = handler
        self._limits = limits
        self._listener = listener(host, port, backlog=_BACKLOG)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name="operator page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection; blocks until the thread has ended."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._listener:
            runner.run(self._serve())

    async def _serve(self) -> None:
        connections = _Connections(self._handler, self._limits)
        accepting = asyncio.create_task(connections.accept(self._listener))
        await self._stop.wait()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        await connections.end()


@dataclass(slots=True)
class _Connection:
    transport: asyncio.Transport
    host: str
    since: float
    """Time of the last change: opened, or last request begun or ended; seconds of the monotonic clock."""
    busy: bool = False


class _Connections(web.Server):
    """Open connections, kept within limits."""

    def __init__(self, handler: Handler, limits: HttpLimits) -> None:
        super().__init__(
            self._handle,
            handler_cancellation=True,
            keepalive_timeout=limits.request_seconds,
            lingering_time=limits.body_seconds,
            access_log=None,
            logger=logging.Logger("http", logging.CRITICAL + 1),  # noqa: LOG001  silent: clients' errors are not logged
        )
        self._handler = handler
        self._limits = limits
        self._open: dict[web.RequestHandler, _Connection] = {}

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, one at a time so that their number is exact."""
        loop = asyncio.get_running_loop()
        out_of_descriptors = False
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
                out_of_descriptors = False
                if len(self._open) >= self._limits.connections:
                    self._close_one()
                await loop.connect_accepted_socket(self, client)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    if not out_of_descriptors:
                        _log.warning("operator page out of file descriptors", error=str(error))
                    out_of_descriptors = True
                    self._close_one()
                    await asyncio.sleep(_ACCEPT_RETRY_SECONDS)

    async def end(self) -> None:
        """Wait up to a second for responses to end, then close all connections."""
        await self.shutdown(_CLOSE_SECONDS)
        for connection in self._open.values():
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Register a connection."""
        super().connection_made(handler, transport)
        transport.set_write_buffer_limits(high=0)  # `drain` then waits until the kernel has the whole response
        peer = transport.get_extra_info("peername")
        self._open[handler] = _Connection(transport, peer[0] if peer else "", time.monotonic())

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Remove a connection."""
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._open.get(request.protocol)
        if connection is None:
            raise ConnectionResetError
        connection.busy, connection.since = True, time.monotonic()
        try:
            answer = await self._handler(request)
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            response.content_length = len(answer.body)
            async with asyncio.timeout(self._limits.response_seconds):
                await _send(response, request, answer.body)
        except TimeoutError:
            connection.transport.abort()  # `close` would wait until the client has read it
            raise
        finally:
            connection.busy, connection.since = False, time.monotonic()
        return response

    def _close_one(self) -> None:
        counts = Counter(connection.host for connection in self._open.values())

        def order(handler: web.RequestHandler) -> tuple[int, bool, float]:
            connection = self._open[handler]
            return -counts[connection.host], connection.busy, connection.since

        if self._open:
            self._open.pop(min(self._open, key=order)).transport.abort()


async def _send(response: web.StreamResponse, request: web.BaseRequest, body: bytes) -> None:
    await response.prepare(request)
    if request.method != "HEAD":
        view = memoryview(body)
        for start in range(0, len(body), _PIECE_BYTES):
            await response.write(view[start : start + _PIECE_BYTES])
    await response.write_eof()
    await request.writer.drain()
