# SPDX-License-Identifier: Apache-2.0
"""A connection on asyncio: one read, all its frames, all replies, one write."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from epp.extproc.http2.connection import Connection
from epp.extproc.http2.fair_scheduler import LINGER_SECONDS, MOST_ENDINGS, PacedProtocol
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import Methods, PendingAnswer, Timer, peer_of

if TYPE_CHECKING:
    from epp.extproc.http2.server import GrpcServer

FEW_PIECES = 16
MANY_BYTES = 524_288
"""Bytes written in one iteration of the loop: the system copies them, and loopback delivers them, synchronously."""


class GrpcProtocol(PacedProtocol):
    """The server's side of one transport."""

    def __init__(self, methods: Methods, limits: Limits, server: "GrpcServer", loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, server.scheduler)
        self._methods = methods
        self._limits = limits
        self._server = server
        self._time = loop.time
        self._connection: Connection | None = None
        self._held: set[asyncio.Task[None]] = set()
        self._checking: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._flushing = False
        self._is_ending = False
        self._read_at = 0.0
        self._turn_ends = 0.0  # 0 before a read needs it
        self._unwritten = server.held.account()
        self.opened_at = loop.time()
        self.is_leaving = False
        """Whether the client got a GOAWAY."""

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            problem = "TLS connection refused: the client must offer the protocol h2 (ALPN)"
            self._server.warnings.warn(problem, self._time(), peer=peer_of(transport))
            transport.close()
            self._loop.call_later(LINGER_SECONDS, cast("asyncio.Transport", transport).abort)
            return
        if not self._server.connection_opened(self):
            cast("asyncio.Transport", transport).abort()
            return
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self._connection = Connection(
            self._methods,
            self._limits,
            self,
            peer_of(transport),
            self._time(),
            warnings=self._server.warnings,
            held=self._server.held,
        )
        self._check()

    def eof_received(self) -> bool:
        """Close after the input is handled: HTTP/2 has no half-open connections."""
        transport = self._transport
        self._is_ending = bool(self._later and transport is not None and transport.get_extra_info("ssl_object") is None)
        return self._is_ending  # over TLS it closes in any case

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # calls do not depend on the reason
        for timer in (self._checking, self._stalled):
            if timer is not None:
                timer.cancel()
        self._checking = self._stalled = None
        self._transport = None
        self._later = b""
        self._unwritten.close()
        self._server.connection_closed(self)
        if self._connection is not None:
            self._server.pace.do(self._lose, MOST_ENDINGS)

    def pause_writing(self) -> None:
        """Pause reading while the client does not read."""
        self._is_paused = True
        if self._transport is not None:
            self._unwritten.on_evict = self.abort
            self._count_unwritten()
            if not self.is_closing:
                self._transport.pause_reading()
            self._expect_progress()

    def resume_writing(self) -> None:
        """Resume reading, unless the connection is closing: then the timeout of the client still applies."""
        self._is_paused = False
        self._count_unwritten()
        if self.is_closing:
            return
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self.resume()

    # called by the connection

    def hold(self, stream_id: int, waiting: PendingAnswer) -> Callable[[], object]:
        """Settle an answer in a task; many cancellations are spread over iterations."""
        task = self._loop.create_task(waiting.settle())
        self._held.add(task)
        task.add_done_callback(lambda done: self._settled(stream_id, done))
        return partial(self._server.pace.do, task.cancel)

    def after(self, seconds: float, act: Callable[[], None]) -> Timer:
        """Call `act` later; for 0 seconds, in an iteration of the loop without other ends of calls."""
        if not seconds:
            return self._loop.call_later(0, self._server.pace.do, partial(self._act, act), MOST_ENDINGS)
        return self._loop.call_later(seconds, self._act, act)

    def flush(self) -> None:
        """Write at the end of this iteration of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    # called by the server

    def go_away(self) -> None:
        """Send GOAWAY to the client; close after its last stream."""
        self.is_leaving = True
        if self._connection is not None:
            self._connection.go_away()
            self._write()

    @property
    def begun(self) -> int:
        """Calls so far, except health checks."""
        return 0 if self._connection is None else self._connection.calls.begun

    @property
    def open_streams(self) -> int:
        """Streams that are not closed in both directions."""
        return 0 if self._connection is None else self._connection.open_streams

    @property
    def has_served(self) -> bool:
        """Whether a stream was ever opened."""
        return self._connection is not None and self._connection.calls.last_id > 0

    def make_room(self) -> None:
        """Close immediately to make room for another connection."""
        if self._connection is not None:
            self._connection.lose()
        self.abort()

    def cut(self) -> None:
        """End all calls, then the connection."""
        if self._connection is not None:
            self._connection.cut()
            self._write()

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.lose()
            self._connection.out.clear()
        self._forget_if_settled()

    def _take(self, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        self._turn_ends, self._read_at = 0.0, self._time()
        self._later = connection.receive(data, self._read_at, self._is_turn_over)
        if connection.out or connection.closed:
            self._write()
        if self._later:
            self._continue_later()
        elif self._is_ending and self._transport is not None:
            self._transport.close()

    def _is_turn_over(self) -> bool:
        """Whether this iteration has no time left; computed on demand, as short reads do not need it."""
        if not self._turn_ends:
            self._turn_ends = self._scheduler.ends(self._read_at)
        return self._time() >= self._turn_ends

    def _write(self) -> None:
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        out = connection.out
        if self.is_closing:  # the last bytes are written: later input gets no answer
            out.clear()
        if out:
            transport.write(some_of(out))
            if self._is_paused:
                self._count_unwritten()
            if out:
                self.flush()
                return
        if connection.finished:
            connection.lose()
        if connection.closed and not self.is_closing:
            self.is_closing = True
            self._close(transport)

    def _count_unwritten(self) -> None:
        """Count the unwritten bytes of a client that does not read."""
        waiting = self._transport.get_write_buffer_size() if self._is_paused and self._transport is not None else 0
        self._unwritten.put(waiting - self._unwritten.size)

    def _close(self, transport: asyncio.Transport) -> None:
        """Close after everything is written and the client had time to read the reason."""
        self._expect_progress()
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
        else:
            self._linger(transport)

    def _flush(self) -> None:
        self._flushing = False
        self._write()

    def _act(self, act: Callable[[], None]) -> None:
        act()
        self._write()
        self._forget_if_settled()

    def _expect_progress(self) -> None:
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._limits.write_stall_seconds, self.abort)

    def _check(self) -> None:
        connection = self._connection
        if connection is None or self._transport is None:
            return
        seconds = connection.check(self._time())
        self._write()
        if not connection.closed:
            self._checking = self._loop.call_later(seconds, self._check)

    def _settled(self, stream_id: int, task: asyncio.Task[None]) -> None:
        self._held.discard(task)
        connection = self._connection
        if connection is None:
            return
        error = None if task.cancelled() else task.exception()
        connection.calls.settled(stream_id, error if isinstance(error, Exception) else None)
        self._write()
        self._forget_if_settled()

    def _forget_if_settled(self) -> None:
        """Break the reference cycle with a lost connection, so that its tables are freed immediately."""
        connection = self._connection
        if self._transport is None and not self._held and connection is not None and not connection.open_streams:
            self._connection = None


def some_of(out: list[bytes | memoryview]) -> bytes:
    """Take the bytes to write in this iteration; one piece has at most `LARGEST_FRAME` bytes."""
    if len(out) > FEW_PIECES:
        size = 0
        for count, piece in enumerate(out, 1):
            size += len(piece)
            if size >= MANY_BYTES:
                some = b"".join(out[:count])
                del out[:count]
                return some
    some = b"".join(out)
    out.clear()
    return some
