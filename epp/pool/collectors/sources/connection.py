# SPDX-License-Identifier: Apache-2.0
"""Persistent HTTP/1.1 connections for polls: one GET request at a time."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from epp.pool.collectors.sources.answers import AnswerReader, Arriving, Gathering, UnreadableAnswerError, WholePage


class ReadingCost:
    """Adds up the time between `begin` and `end`; `take` returns the sum and starts again."""

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
        """Seconds since the clock was started, which goes on."""
        return time.thread_time() - self._began if self._began else 0.0

    def take(self) -> float:
        """Return the seconds since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent


class Expiring(Protocol):
    """Something that waits for an answer."""

    def expire(self) -> None:
        """Give up: the answer did not come in time."""


class Deadlines:
    """One time limit for everything that waits: what began first ends first."""

    __slots__ = ("_due", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, waiting: Expiring) -> None:
        """Start the time limit of one."""
        loop = asyncio.get_running_loop()
        self._due[waiting] = due = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._expire)

    def end(self, waiting: Expiring) -> None:
        """End it: the answer is there, or nothing waits for it any more."""
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


_BUFFER_BYTES = 64 * 1024
"""Most that is read at once: a page of 51 KB with its head. More of it has to wait for a later turn of the event loop,
which would read 32 times that in one."""


class ConnectError(Exception):
    """There is no connection to the server."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class DisconnectedError(Exception):
    """The server closed the connection without an answer."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__("the connection was closed without an answer" if error is None else str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    reason: str
    encoding: str
    body: bytes


Outcome: TypeAlias = Answer | DisconnectedError | UnreadableAnswerError


@dataclass(frozen=True, slots=True)
class Target:
    """Where a page is, and the bytes that ask for it."""

    address: str
    """An IP address."""
    port: int
    request: bytes
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """What a certificate is checked against."""


class Shared:
    """What the connections of one source have in common: the buffer they read into, and what reading cost.

    One buffer is enough: an event loop with readiness events asks for it, fills it and hands it over in one call.
    """

    __slots__ = ("_arriving", "_arriving_limit", "buffer", "cost", "limit", "view")

    def __init__(self, *, limit: int, cost: ReadingCost, arriving: Arriving, arriving_limit: int) -> None:
        """Prepare; `limit` is of the bytes of one page, `arriving_limit` of those of all that are on their way."""
        self._arriving = arriving
        self._arriving_limit = arriving_limit
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.limit = limit
        self.cost = cost

    def whole_page(self) -> WholePage:
        """Return what keeps the pages of one connection."""
        return WholePage(self._arriving, self._arriving_limit)


class Connection(asyncio.BufferedProtocol):
    """Asks for pages, one at a time."""

    __slots__ = ("_done", "_reader", "_shared", "_transport", "begun", "on_idle_end", "seconds")

    def __init__(self, shared: Shared, gathering: Gathering | None = None) -> None:
        self._shared = shared
        self._reader: AnswerReader | None = AnswerReader(shared.limit, gathering or shared.whole_page())
        self.begun = False
        """Whether something of the last answer came."""
        self.seconds = 0.0
        """CPU time for the last answer, but for its last piece."""
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[Outcome], None] | None = None
        self.on_idle_end: Callable[[], None] | None = None
        """Called once if the server closes the connection while no answer is due: it may have died."""

    @property
    def open(self) -> bool:
        """Whether it can be asked: it is connected, and no answer is due."""
        return self._transport is not None and self._done is None

    def ask(self, request: bytes, done: Callable[[Outcome], None]) -> None:
        """Send a request, and call `done` once with its outcome, never before this returns."""
        if self._transport is None or self._reader is None:
            raise RuntimeError("the connection is not open")
        self._done = done
        self.begun, self.seconds = False, 0.0
        self._reader.next()
        self._transport.write(request)

    def close(self) -> None:
        """Close it at once; an answer that is due is not reported."""
        self._done = self.on_idle_end = None
        transport, self._transport = self._transport, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.drop()
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let requests be written at once, not at the end of the turn: their cost is counted."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  as asyncio calls it
        """Return the common buffer."""
        self._shared.cost.begin()
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read what came."""
        reader, done = self._reader, self._done
        if reader is None or done is None:  # nothing was asked for
            self.close()
            return
        self.begun = True
        try:
            reader.feed(self._shared.view[:nbytes])
        except UnreadableAnswerError as error:
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
        """Report an answer that is due as complete, or as lost."""
        reader, done, on_idle_end = self._reader, self._done, self.on_idle_end
        self._reader = None  # what came is still to be read
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
        except UnreadableAnswerError as error:
            reader.drop()
            done(error)
        else:
            done(_answer_of(reader))

    def _pause(self, *, whole: bool) -> None:
        """Let others have their turn before more is read, where more is there."""
        self.seconds += self._shared.cost.lap
        if whole and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _answered(self, reader: AnswerReader, done: Callable[[Outcome], None]) -> None:
        answer = _answer_of(reader)
        self._done = None
        if not reader.keeps_connection or reader.excess:
            self.close()
        done(answer)


async def connect(
    target: Target, make_socket: Callable[[int], socket.socket], shared: Shared, gathering: Gathering | None = None
) -> Connection:
    """Return a connection; raises ConnectError, or ssl.SSLError where TLS fails.

    `make_socket` returns a socket of an address family; pages go to `gathering`, if there is one.
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
            lambda: Connection(shared, gathering),
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


def _answer_of(reader: AnswerReader) -> Answer:
    return Answer(reader.status, reader.reason, reader.encoding, reader.body())
