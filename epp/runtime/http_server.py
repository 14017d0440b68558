# SPDX-License-Identifier: Apache-2.0
"""An aiohttp application in a thread with its own event loop, with limits on connections and time."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from threading import Thread
from typing import Any, Final, TypeAlias

import structlog
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from epp.runtime.addresses import listener
from epp.runtime.http_connections import ConnectionCounts, Contexts, Cut, OpenConnections
from epp.runtime.supervisor import NO_DESCRIPTOR, within_limit

_BACKLOG: Final = 1024
_CLOSE_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
"""Time until the next try without a free descriptor."""
_FULL_SECONDS: Final = 0.001
"""Pause after each connection while the limit is reached, so that a flood takes little of the processor."""
_DESCRIPTOR_SHARE: Final = 8
_MOST_THREADS: Final = 3
"""Threads for slow responses: the metrics page, the health and a placement can be rendered concurrently."""
_MOST_FIELDS: Final = 100
_FIELD_BYTES: Final = 8190
_PIECE_BYTES: Final = 64 * 1024

_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_NO_LOG: Final = logging.getLogger("epp.http_server")
"""A disabled logger: aiohttp would log a line for each request."""
_NO_LOG.disabled = True

_log = structlog.get_logger()
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Factory: TypeAlias = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits that keep one client from blocking the others."""

    connections: int = 1024
    """Most open connections, at most an eighth of the descriptors; one more closes the oldest of the busiest host."""
    request_seconds: float = 10.0
    """Time for the head of a request, from the start of the connection or the end of the previous response."""
    body_seconds: float = 5.0
    """Time for the body of a request."""
    response_seconds: float = 30.0
    """Time for the client to read a response."""


class HttpServer:
    """Listens from its construction until `close`; the constructor raises OSError."""

    def __init__(
        self,
        host: str,
        port: int,
        app: web.Application,
        limits: HttpLimits,
        *,
        name: str,
        counts: ConnectionCounts | None = None,
        tls: Contexts | None = None,
    ) -> None:
        """Listen and serve the application. `name` is for log lines; without `tls`, connections are plaintext."""
        app.middlewares.insert(0, _mark_busy)
        self._app = app
        self.limits = replace(limits, connections=within_limit(limits.connections, _DESCRIPTOR_SHARE))
        self._name = name
        self.counts = counts or ConnectionCounts()
        self.connections = OpenConnections()
        self._tls = tls
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Unfinished TLS handshakes, the oldest first."""
        self._out_of_descriptors = False
        self._listener = listener(host, port, backlog=_BACKLOG)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection; block until the thread has ended."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._listener:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix=self._name))
        runner = web.AppRunner(self._app, handler_cancellation=True, shutdown_timeout=_CLOSE_SECONDS)
        await runner.setup()
        server = runner.server
        assert server is not None  # noqa: S101  it is set up
        await self._accept(lambda: _Connection(server, self))
        await runner.cleanup()
        for left in self.connections.all:  # connections that did not end in time
            left.abort()
        await asyncio.sleep(0)  # lets the transports close their sockets

    async def _accept(self, protocol: Factory) -> None:
        """Accept connections until `close`, one at a time, so that the limit on their number is exact.

        On return, each accepted connection has its protocol.
        """
        stopping = self._loop.create_task(self._stop.wait())
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                await _readable(self._listener, stopping)
            except OSError as error:  # usually because the client has left
                out_of_descriptors = error.errno in NO_DESCRIPTOR
                if out_of_descriptors:
                    self._make_room(Cut.NO_DESCRIPTOR)
                    if not self._out_of_descriptors:
                        _log.warning(f"{self._name} out of file descriptors", error=str(error))
                    self._out_of_descriptors = True
                await asyncio.wait({stopping}, timeout=_RETRY_SECONDS if out_of_descriptors else _FULL_SECONDS)
            else:
                await self._admit(client, protocol)
        await stopping
        for handshake in self._handshakes:
            handshake.cancel()

    async def _admit(self, client: socket.socket, protocol: Factory) -> None:
        self._out_of_descriptors = False
        is_full = self.connections.count >= self.limits.connections
        if is_full:
            self._make_room(Cut.MADE_ROOM)
        client.setblocking(False)  # noqa: FBT003  the socket API
        if self._tls is not None:
            self._begin_handshake(client, protocol, self._tls)
            return
        try:
            await self._loop.connect_accepted_socket(protocol, client)
        except OSError:  # the client has left
            client.close()
        if is_full:
            await asyncio.sleep(_FULL_SECONDS)

    def _begin_handshake(self, client: socket.socket, protocol: Factory, tls: Contexts) -> None:
        """Start a TLS handshake; cancel the oldest one if there are too many."""
        if len(self._handshakes) >= self.limits.connections:
            next(iter(self._handshakes)).cancel()
            self.counts.cut(Cut.MADE_ROOM)
        task = self._loop.create_task(self._shake_hands(client, protocol, tls))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, client: socket.socket, protocol: Factory, tls: Contexts) -> None:
        try:
            context = await tls()
        except BaseException:
            client.close()
            raise
        seconds = self.limits.request_seconds
        try:
            await self._loop.connect_accepted_socket(protocol, client, ssl=context, ssl_handshake_timeout=seconds)
        except OSError:  # not TLS, no valid client certificate, or the client has left
            self.counts.cut(Cut.TLS)

    def _make_room(self, cause: Cut) -> None:
        if self.connections.close_one():
            self.counts.cut(cause)


async def _readable(listener: socket.socket, stopping: asyncio.Future[Any]) -> None:
    """Wait until a connection can be accepted or the server closes."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Any] = loop.create_future()
    loop.add_reader(listener, lambda: None if ready.done() else ready.set_result(None))
    try:
        await asyncio.wait({ready, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        with contextlib.suppress(ValueError):  # the listener is closed
            loop.remove_reader(listener)


class _Connection(web.RequestHandler):
    """One connection, with time limits for receiving a request and for sending a response."""

    __slots__ = ("_awaited", "_connections", "_counts", "_socket", "_timer", "busy", "host", "limits", "since")

    def __init__(self, server: web.Server, owner: HttpServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=_NO_LOG,
            max_headers=_MOST_FIELDS,
            max_line_size=_FIELD_BYTES,
            max_field_size=_FIELD_BYTES,
            lingering_time=min(1.0, owner.limits.body_seconds),
            auto_decompress=False,
        )
        self._connections = owner.connections
        self.limits = owner.limits
        self._counts = owner.counts
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._awaited = True
        """Whether the head of a request is incomplete; False between two requests."""
        self.host = ""
        self.busy = False
        self.since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a TCP connection
        transport.set_write_buffer_limits(high=0)  # a write then ends when the kernel has all bytes
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else ""
        self._socket = transport
        self._connections.add(self)
        self._counts.opened()
        self._limit(self.limits.request_seconds)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._awaited = True
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._limit(None)
        self._connections.discard(self)
        self._counts.closed()
        super().connection_lost(exc)

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def end(self, cause: Cut) -> None:
        """Close the connection immediately, and count the cause."""
        self._counts.cut(cause)
        self.abort()

    def begin(self) -> None:
        """Record that a request is being handled."""
        self._limit(None)
        self._change(busy=True)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response within its time limit, then wait for the next request."""
        self._limit(self.limits.response_seconds)
        sent = await super().finish_response(request, resp, start_time)
        self._change(busy=False)
        self._limit(self.limits.request_seconds)
        return sent

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002  required by the base class
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Respond to invalid HTTP. Handlers respond to their own failures."""
        if status == HTTPStatus.BAD_REQUEST:
            self._counts.cut(Cut.BAD_REQUEST)
        refusal = response(b"bad request\n", _TEXT, HTTPStatus(status))
        refusal.force_close()
        return refusal

    def _change(self, *, busy: bool) -> None:
        self._awaited = False
        if self.transport is None:  # the connection is gone
            return
        self._connections.discard(self)
        self.busy, self.since = busy, time.monotonic()
        self._connections.add(self)

    def _limit(self, seconds: float | None) -> None:
        """Close the connection after this time; None for no limit."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self.busy:
            self.end(Cut.RESPONSE_TIMEOUT)
        elif self._awaited:
            self.end(Cut.REQUEST_TIMEOUT)
        else:
            self.abort()


@web.middleware
async def _mark_busy(request: web.Request, handler: Handler) -> web.StreamResponse:
    _connection_of(request).begin()
    return await handler(request)


class _Pieces(Payload):
    """A body shared by connections: a slow client has one piece in its buffer, not a copy of the whole body."""

    _value: bytes

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body in pieces, at the speed of the client."""
        view = memoryview(self._value)
        for start in range(0, len(view), _PIECE_BYTES):
            await writer.write(view[start : start + _PIECE_BYTES])
            await writer.drain()


def response(body: bytes, headers: Mapping[str, str], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    content = _Pieces(body) if len(body) > _PIECE_BYTES else body
    return web.Response(status=status, body=content, headers={"Server": "epp", **headers})


async def read_body(request: web.Request, most_bytes: int) -> bytes:
    """Return the body of a request.

    Raises web.HTTPRequestEntityTooLarge for a larger body. If the body does not arrive in time, closes the connection
    and raises ConnectionError.
    """
    if (request.content_length or 0) > most_bytes:
        raise web.HTTPRequestEntityTooLarge(most_bytes, request.content_length or 0)
    connection = _connection_of(request)
    try:
        async with asyncio.timeout(connection.limits.body_seconds):
            return await request.clone(client_max_size=most_bytes).read()
    except TimeoutError:
        connection.end(Cut.REQUEST_TIMEOUT)
        raise ConnectionResetError("the body did not arrive in time") from None


def _connection_of(request: web.Request) -> _Connection:
    connection = request.protocol
    assert isinstance(connection, _Connection)  # noqa: S101  the server creates no others
    return connection
