# SPDX-License-Identifier: Apache-2.0
"""Persistent HTTP/1.1 connections for polls: one GET request at a time."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from epp.pool.collectors.sources.response_parser import (
    IncompletePages,
    InvalidResponseError,
    PageBuffer,
    ResponseParser,
    WholePage,
)

_BUFFER_BYTES = 64 * 1024
"""Most bytes read in one event-loop iteration: a page of 51 KB with its head. asyncio would read 32 times as many."""


class ReadingCost:
    """CPU time of reading pages: the sum of the times between `begin` and `end`, which `take` returns and resets."""

    __slots__ = ("_began", "_spent")

    def __init__(self) -> None:
        self._began = 0.0
        self._spent = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.thread_time()

    def end(self) -> None:
        """Stop the clock."""
        if self._began:
            self._spent += time.thread_time() - self._began
            self._began = 0.0

    @property
    def lap(self) -> float:
        """Seconds since the clock was started, without stopping it."""
        return time.thread_time() - self._began if self._began else 0.0

    def take(self) -> float:
        """Return the seconds since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent


class Expiring(Protocol):
    """Something that waits for a response."""

    def expire(self) -> None:
        """End the wait: the response did not arrive in time."""


class Deadlines:
    """Time limits of outstanding responses, all equal, with one timer."""

    __slots__ = ("_due", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, waiting: Expiring) -> None:
        """Start a time limit."""
        loop = asyncio.get_running_loop()
        self._due[waiting] = due = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._expire)

    def end(self, waiting: Expiring) -> None:
        """Cancel a time limit."""
        self._due.pop(waiting, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._due:
            waiting, due = next(iter(self._due.items()))
            if due > now:
                self._timer = loop.call_at(due, self._expire)
                return
            del self._due[waiting]
            waiting.expire()


class ConnectError(Exception):
    """The connection to the server failed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class DisconnectedError(Exception):
    """The server closed the connection without a response."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__("the connection was closed without an answer" if error is None else str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class PageResponse:
    """A complete response."""

    status: int
    reason: str
    encoding: str
    body: bytes


Outcome: TypeAlias = PageResponse | DisconnectedError | InvalidResponseError


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a page, and the bytes of its request."""

    address: str
    """An IP address."""
    port: int
    request: bytes
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """The name that the certificate is verified against."""


class Shared:
    """State that the connections of one source share: the read buffer, limits and the cost of reading.

    One buffer is enough, since the event loop requests, fills and delivers it in one call.
    """

    __slots__ = ("_arriving_limit", "_incomplete_pages", "buffer", "cost", "limit", "view")

    def __init__(
        self, *, limit: int, cost: ReadingCost, incomplete_pages: IncompletePages, arriving_limit: int
    ) -> None:
        """Limit the bytes of one page, and with `arriving_limit` those of all incomplete pages."""
        self._incomplete_pages = incomplete_pages
        self._arriving_limit = arriving_limit
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.limit = limit
        self.cost = cost

    def whole_page(self) -> WholePage:
        """Return a buffer for the pages of one connection."""
        return WholePage(self._incomplete_pages, self._arriving_limit)


class Connection(asyncio.BufferedProtocol):
    """A persistent connection to a server, with one request at a time."""

    __slots__ = ("_done", "_reader", "_shared", "_transport", "begun", "on_idle_end", "seconds")

    def __init__(self, shared: Shared, page_buffer: PageBuffer | None = None) -> None:
        self._shared = shared
        self._reader: ResponseParser | None = ResponseParser(shared.limit, page_buffer or shared.whole_page())
        self.begun = False
        """Whether a part of the last response was received."""
        self.seconds = 0.0
        """CPU time of the last response, without its last piece."""
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[Outcome], None] | None = None
        self.on_idle_end: Callable[[], None] | None = None
        """Called once if the server closes the connection while no response is outstanding: it may have failed."""

    @property
    def open(self) -> bool:
        """Whether it is connected and no response is outstanding."""
        return self._transport is not None and self._done is None

    def ask(self, request: bytes, done: Callable[[Outcome], None]) -> None:
        """Send a request, and call `done` once with its outcome after this has returned."""
        if self._transport is None or self._reader is None:
            raise RuntimeError("the connection is not open")
        self._done = done
        self.begun, self.seconds = False, 0.0
        self._reader.next()
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection; an outstanding response is not reported."""
        self._done = self.on_idle_end = None
        transport, self._transport = self._transport, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.drop()
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write requests immediately, so that their cost is measured."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  as asyncio calls it
        """Return the shared buffer."""
        self._shared.cost.begin()
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes."""
        reader, done = self._reader, self._done
        if reader is None or done is None:  # an unrequested response
            self.close()
            return
        self.begun = True
        try:
            reader.feed(self._shared.view[:nbytes])
        except InvalidResponseError as error:
            self.seconds += self._shared.cost.lap
            self.close()
            done(error)
        else:
            if reader.done:
                self._answered(reader, done)
            else:
                self._pause(whole=nbytes == _BUFFER_BYTES)
        self._shared.cost.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report an outstanding response as complete or lost."""
        reader, done, on_idle_end = self._reader, self._done, self.on_idle_end
        self._reader = None  # the received bytes are still needed
        self.close()
        if done is None and on_idle_end is not None:
            on_idle_end()
        if reader is None or done is None:
            return
        if not reader.begun:
            done(DisconnectedError(exc))
            return
        try:
            reader.feed_end()
        except InvalidResponseError as error:
            reader.drop()
            done(error)
        else:
            done(_response_of(reader))

    def _pause(self, *, whole: bool) -> None:
        """Let the event loop run other tasks before more bytes are read."""
        self.seconds += self._shared.cost.lap
        if whole and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _answered(self, reader: ResponseParser, done: Callable[[Outcome], None]) -> None:
        answer = _response_of(reader)
        self._done = None
        if not reader.keeps_connection or reader.excess:
            self.close()
        done(answer)


async def connect(
    target: Target, make_socket: Callable[[int], socket.socket], shared: Shared, page_buffer: PageBuffer | None = None
) -> Connection:
    """Return a connection; raises ConnectError, or ssl.SSLError where TLS fails.

    `make_socket` returns a socket of an address family; `page_buffer` collects pages, if given.
    """
    loop = asyncio.get_running_loop()
    try:
        connecting = make_socket(socket.AF_INET6 if ":" in target.address else socket.AF_INET)
    except OSError as error:
        raise ConnectError(error) from error
    try:
        connecting.setblocking(False)  # noqa: FBT003  as sockets have it
        await loop.sock_connect(connecting, (target.address, target.port))
        _, connection = await loop.create_connection(
            lambda: Connection(shared, page_buffer),
            sock=connecting,
            ssl=target.tls,
            server_hostname=target.server_name if target.tls is not None else None,
        )
    except ssl.SSLError:
        connecting.close()
        raise
    except OSError as error:
        connecting.close()
        raise ConnectError(error) from error
    except BaseException:
        connecting.close()
        raise
    return connection


def _response_of(reader: ResponseParser) -> PageResponse:
    return PageResponse(reader.status, reader.reason, reader.encoding, reader.body())
