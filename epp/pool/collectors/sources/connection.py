# SPDX-License-Identifier: Apache-2.0
"""Persistent HTTP/1.1 connections for polls: one GET request at a time."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from epp.framework.endpoint import PagePlace
from epp.pool.collectors.sources.response_parser import (
    BUFFER_BYTES,
    InvalidResponseError,
    PageBuffer,
    Reading,
    ResponseParser,
    WholePage,
)

_MIN_RTT_AT = 148
_UNKNOWN_RTT = 2**32 - 1


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


class Connection(asyncio.BufferedProtocol):
    """A persistent connection to a server, with one request at a time."""

    __slots__ = ("_done", "_reader", "_reading", "_transport", "begun", "on_idle_end", "round_trip", "seconds")

    def __init__(self, reading: Reading, limit: int, page_buffer: PageBuffer | None = None) -> None:
        """Limit the bytes of a page; `page_buffer` collects pages, if given."""
        self._reading = reading
        self._reader: ResponseParser | None = ResponseParser(limit, page_buffer or WholePage(reading))
        self.begun = False
        """Whether a part of the last response was received."""
        self.seconds = 0.0
        """CPU time of the last response, without its last piece."""
        self.round_trip: float | None = None
        """Seconds of the round trip that connecting took; None once that was reported."""
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[Outcome], None] | None = None
        self.on_idle_end: Callable[[], None] | None = None
        """Called once if the server closes the connection while no response is outstanding: it may have failed."""

    @property
    def open(self) -> bool:
        """Whether it is connected and no response is outstanding."""
        return self._transport is not None and self._done is None

    def send(self, request: bytes, done: Callable[[Outcome], None]) -> None:
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
        self._reading.begin()
        return self._reading.buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader, done = self._reader, self._done
        if reader is None or done is None:  # an unrequested response
            self.close()
            return
        self.begun = True
        try:
            reader.feed(self._reading.view[:nbytes])
        except InvalidResponseError as error:
            self.seconds += self._reading.lap
            self.close()
            done(error)
        else:
            if reader.done:
                answer = _response_of(reader)
                self._done = None
                if not reader.keeps_connection or reader.excess:
                    self.close()
                done(answer)
            else:
                self.seconds += self._reading.lap
                if nbytes == BUFFER_BYTES and self._transport is not None:  # other tasks run before more is read
                    self._transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._resume)
        self._reading.end()

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

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()


async def connect(
    place: PagePlace, tls: ssl.SSLContext | None, connecting: socket.socket, connection: Connection
) -> None:
    """Open a connection on the given socket; raises ConnectError, or ssl.SSLError if TLS fails."""
    loop = asyncio.get_running_loop()
    try:
        connecting.setblocking(False)  # noqa: FBT003  as sockets have it
        began = loop.time()
        await loop.sock_connect(connecting, (place.address, place.port))
        connection.round_trip = _round_trip(connecting, loop.time() - began)
        await loop.create_connection(
            lambda: connection,
            sock=connecting,
            ssl=tls,
            server_hostname=None if tls is None else place.host.rstrip(".") or place.address,
        )
    except BaseException as error:
        connecting.close()
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            raise ConnectError(error) from error
        raise


def _round_trip(connected: socket.socket, elapsed: float) -> float:
    """Return the seconds of a round trip as measured by the kernel, or else the time that connecting took.

    A busy event loop does not affect the kernel's number, `tcpi_min_rtt` of Linux' `struct tcp_info`, in microseconds.
    """
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
        (least,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
    except (AttributeError, OSError, struct.error):  # another operating system
        return elapsed
    return least / 1e6 if 0 < least < _UNKNOWN_RTT else elapsed


def _response_of(reader: ResponseParser) -> PageResponse:
    return PageResponse(reader.status, reader.reason, reader.encoding, reader.body())
