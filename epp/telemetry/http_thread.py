# SPDX-License-Identifier: Apache-2.0
"""An HTTP server in its own thread and event loop, with limits on connections and time."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Thread
from typing import TypeAlias

from epp.runtime.addresses import listener
from epp.runtime.process import share_of_limit
from epp.telemetry.connection_series import ConnectionCounts, Cut
from epp.telemetry.http_connections import Accepting, Contexts, OpenConnections
from epp.telemetry.http_request import (
    CONTINUE,
    BadHeadError,
    HttpRequest,
    UnreadableBodyError,
    read_head,
    write_head,
)

_BACKLOG = 1024
_CLOSE_SECONDS = 1.0
_MOST_THREADS = 3
"""For answers that take a while: the page, beside the state of health and a placement."""
_PIECE_BYTES = 64 * 1024
_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits that keep one client from blocking the others."""

    connections: int = 1024
    """Open connections, an eighth of the limit of file descriptors at most.

    One more closes another: of the host with most, idle before busy ones, the oldest.
    """
    request_seconds: float = 10.0
    """Time for a request head, from the start of the connection or the end of the previous response."""
    body_bytes: int = 0
    """Largest request body that is read, unless the handler says otherwise of a request; 0 to ignore all."""
    body_seconds: float = 1.0
    """Time for a request body; the connection is closed after it."""
    response_seconds: float = 30.0
    """Time for the client to read a response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; its body is omitted for HEAD."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Answer]]
BodyLimit: TypeAlias = Callable[[HttpRequest], int]
"""Returns the largest body that is read of a request whose head has come, or less than is read of any."""


class HttpThread:
    """Listens from its construction, which raises OSError, until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        limits: HttpLimits,
        *,
        name: str,
        counts: ConnectionCounts | None = None,
        body_limit: BodyLimit | None = None,
        tls: Contexts | None = None,
    ) -> None:
        """Listen; `name` is for log lines, and `body_limit` for requests that may have larger bodies than others.

        `tls` returns the context of each connection, None for plaintext.
        """
        self._handler = handler
        self._body_limit = body_limit
        self._limits = replace(limits, connections=share_of_limit(limits.connections))
        self._name = name
        self._counts = counts or ConnectionCounts()
        self._tls = tls
        self._listener = listener(host, port, backlog=_BACKLOG)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection; blocks until the thread has ended."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._listener:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix=self._name))
        connections: OpenConnections[_Connection] = OpenConnections()
        accepting = Accepting(
            connections,
            self._counts,
            most=self._limits.connections,
            name=self._name,
            tls=self._tls,
            handshake_seconds=self._limits.request_seconds,
        )

        def connection() -> _Connection:
            return _Connection(connections, self._handler, self._limits, self._counts, self._body_limit)

        await accepting.run(self._listener, connection, self._stop)
        connections.ending = True
        if busy := [each.task for each in connections.all if each.busy and each.task is not None]:
            await asyncio.wait(busy, timeout=_CLOSE_SECONDS)
        for open_connection in connections.all:
            open_connection.abort()
        await asyncio.sleep(0)  # lets the transports close their sockets


class _Connection(asyncio.StreamReaderProtocol):
    """One connection: answers one request after the other until it ends, or its time is up."""

    def __init__(
        self,
        connections: "OpenConnections[_Connection]",
        handler: Handler,
        limits: HttpLimits,
        counts: ConnectionCounts,
        body_limit: BodyLimit | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=_HEAD_BYTES, loop=loop)
        super().__init__(self._reader, loop=loop)
        self._connections = connections
        self._handler = handler
        self._limits = limits
        self._counts = counts
        self._body_limit = body_limit
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.host = ""
        self.since = time.monotonic()
        """Time of the last change: opened, or last request begun or ended; seconds of the monotonic clock."""
        self.busy = False
        self._awaited = True
        """Whether a request is under way, or the first one is due."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a TCP connection
        transport.set_write_buffer_limits(high=0)  # `drain` then waits until the kernel has the whole response
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else ""
        self.transport = transport
        self._connections.add(self)
        self._counts.opened()
        loop = asyncio.get_running_loop()
        writer = asyncio.StreamWriter(transport, self, self._reader, loop)
        self.task = loop.create_task(self._serve(writer))

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._awaited = True
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection: nobody waits for an answer any more."""
        super().connection_lost(exc)
        self._connections.discard(self)
        self._counts.closed()
        if self.task is not None:
            self.task.cancel()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    async def _serve(self, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._connections.ending and await self._answer_next(writer):
                pass
        except TimeoutError:
            if self.busy:
                self._counts.cut(Cut.RESPONSE_TIMEOUT)
            elif self._awaited:  # as opposed to one that is kept for the next request
                self._counts.cut(Cut.REQUEST_TIMEOUT)
        except (OSError, EOFError):  # the client left
            pass
        finally:
            self.abort()

    async def _answer_next(self, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether another one may follow."""
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                head = await self._reader.readuntil(b"\r\n\r\n")
            request = replace(read_head(head), peer=self.host)
        except (BadHeadError, asyncio.LimitOverrunError):
            self._counts.cut(Cut.BAD_REQUEST)
            refusal = Answer(HTTPStatus.BAD_REQUEST, b"bad request\n", {"Content-Type": "text/plain; charset=utf-8"})
            await self._send(writer, None, refusal, keep_alive=False)
            await self._linger(writer)
            return False
        if self._limits.body_bytes and request.has_body:
            request = await self._with_body(request, writer)
        self._turn(busy=True)
        answer = await self._handler(request)
        keep_alive = request.keep_alive and not request.has_body
        await self._send(writer, request, answer, keep_alive=keep_alive)
        self._turn(busy=False)
        if not keep_alive:
            await self._linger(writer)
        return keep_alive

    def _turn(self, *, busy: bool) -> None:
        self._awaited = False
        self._connections.discard(self)
        self.busy, self.since = busy, time.monotonic()
        self._connections.add(self)

    async def _with_body(self, request: HttpRequest, writer: asyncio.StreamWriter) -> HttpRequest:
        """Return the request with its body, or with the status that says why it is not read."""
        most = self._limits.body_bytes
        if self._body_limit is not None:
            most = max(most, self._body_limit(request))
        try:
            length = request.body_bytes(most)
        except UnreadableBodyError as error:
            return replace(request, unread=error.status)
        if request.headers.get("expect", "").lower() == "100-continue":
            writer.write(CONTINUE)
        async with asyncio.timeout(self._limits.body_seconds):
            return replace(request, body=await self._reader.readexactly(length))

    async def _send(
        self, writer: asyncio.StreamWriter, request: HttpRequest | None, answer: Answer, *, keep_alive: bool
    ) -> None:
        async with asyncio.timeout(self._limits.response_seconds):
            minor = 1 if request is None else request.minor_version
            head = write_head(minor, answer.status, answer.headers, len(answer.body), keep_alive=keep_alive)
            writer.write(head)
            view = memoryview(b"" if request is not None and request.method == "HEAD" else answer.body)
            for start in range(0, len(view), _PIECE_BYTES):
                writer.write(view[start : start + _PIECE_BYTES])
                await writer.drain()
            await writer.drain()

    async def _linger(self, writer: asyncio.StreamWriter) -> None:
        """Read on before the connection closes: the client would lose the answer if it had sent what was not read."""
        with contextlib.suppress(OSError):
            if writer.can_write_eof():  # TLS has no such end
                writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_seconds):
                while await self._reader.read(_PIECE_BYTES):
                    pass
