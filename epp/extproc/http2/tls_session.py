# SPDX-License-Identifier: Apache-2.0
"""TLS between a transport and a protocol, a few records at a time.

Event loops decrypt all received data in one iteration. A record that renews the keys of TLS 1.3 has 27 bytes and costs
more work than other records: a read full of them would take a second.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from epp.extproc.http2.fair_scheduler import FairScheduler, PacedProtocol
from epp.extproc.http2.limits import Budget, Limits, RateLimitedLog
from epp.extproc.http2.service import peer_of

_HEAD_BYTES: Final = 5
_READ_BYTES: Final = 65_536
FEW_RECORDS: Final = 16
"""Minimum number of records decrypted in each iteration of the loop."""


class TlsRecords:
    """Finds the ends of TLS records by their unencrypted headers."""

    __slots__ = ("_head", "_left", "ended")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # missing bytes of the current record
        self.ended = 0
        """Number of records that ended in the last `take`."""

    def take(self, data: bytes, at: int, most: int) -> int:
        """Advance from index `at` in `data` past at most `most` records; return the new index."""
        end, self.ended = len(data), 0
        while at < end and self.ended < most:
            if not self._left:
                head = self._head + data[at : at + _HEAD_BYTES - len(self._head)]
                at += len(head) - len(self._head)
                if len(head) < _HEAD_BYTES:
                    self._head = head
                    return at
                self._head = b""
                self._left = head[3] << 8 | head[4]
            step = min(self._left, end - at)
            self._left -= step
            at += step
            if not self._left:
                self.ended += 1
        return at


class TlsSession(PacedProtocol):
    """Completes the handshake, then connects an upper protocol through a `TlsTransport`."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        limits: Limits,
        *,
        warnings: RateLimitedLog,
        scheduler: FairScheduler,
    ) -> None:
        super().__init__(asyncio.get_running_loop(), scheduler)
        self._protocol = protocol
        self._warnings = warnings
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = TlsRecords()
        self._empty = Budget(limits.empty_records, "TLS records without data")
        self._upper: asyncio.Protocol | None = None
        self._is_ending = False
        self.settled: asyncio.Future[None] = self._loop.create_future()
        """Done after the handshake, or after the end of the connection before it."""
        self._handshake_timeout = self._loop.call_later(limits.handshake_seconds, self.abort)

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.is_closing:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Close after the input is handled: TLS has no half-open connections."""
        if self.is_closing or not self._later:
            self._forward_eof()
            return False
        self._is_ending = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._later = b""
        self.is_closing = True
        self._handshake_timeout.cancel()
        self._settle()
        upper, self._upper = self._upper, None
        if upper is not None:
            upper.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        if self._upper is not None:
            self._upper.resume_writing()

    # called by the transport above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self.abort()
        else:
            self._send()

    def pause(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send the TLS close alert; close after everything is written and the client had time to read it."""
        if self.is_closing:
            return
        self.is_closing = True
        self._later = b""
        with suppress(ssl.SSLError):  # no close alert from the client yet
            self._tls.unwrap()
        self._send()
        raw = self._transport
        if raw is None or raw.is_closing():
            return
        if self._is_ending:  # the client has closed its side
            raw.close()
        else:
            self._linger(raw)

    def abort(self) -> None:
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _take(self, data: bytes) -> None:
        at = 0
        ends: float | None = None
        while at < len(data) and not self.is_closing:
            if at:
                now = self._loop.time()
                if ends is None:
                    ends = self._scheduler.ends(now)
                if self._is_paused or now >= ends:
                    self._later = data[at:]
                    self._continue_later()
                    return
            stop = self._records.take(data, at, FEW_RECORDS)
            self._incoming.write(data[at:stop])
            self._decrypt()
            at = stop
        if self._is_ending:
            self._forward_eof()
            self.close()

    def _decrypt(self) -> None:
        try:
            content, has_ended = self._decrypted()
        except ssl.SSLError:  # caused by the client
            self._send()  # the alert
            self.is_closing = True
            if self._transport is not None:
                self._transport.close()
            return
        self._send()
        upper = self._upper
        if upper is not None and content:
            upper.data_received(content)
        elif upper is not None:
            self._count_empty()
        if has_ended:
            self._forward_eof()
            self.close()

    def _decrypted(self) -> tuple[bytes, bool]:
        """Return the decrypted data, and whether the client sent its close alert."""
        pieces: list[bytes] = []
        try:
            if self._upper is None:
                self._shake_hands()
            while piece := self._tls.read(_READ_BYTES):
                pieces.append(piece)
                if not self._incoming.pending and not self._tls.pending():
                    break
            else:
                return b"".join(pieces), True
        except ssl.SSLWantReadError:
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), False

    def _shake_hands(self) -> None:
        """Continue the handshake; raises ssl.SSLWantReadError before it is complete."""
        self._tls.do_handshake()
        self._handshake_timeout.cancel()
        self._send()
        self._settle()
        if self._transport is not None:
            self._upper = self._protocol()
            self._upper.connection_made(TlsTransport(self, self._transport, self._tls))

    def _count_empty(self) -> None:
        now = self._loop.time()
        if all(self._empty.allows(now) for _ in range(self._records.ended)):
            return
        peer = "" if self._transport is None else peer_of(self._transport)
        problem = "too many TLS records without data, such as new keys"
        self._warnings.warn("gRPC connection ended", now, problem=problem, peer=peer)
        self.abort()

    def _send(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())

    def _forward_eof(self) -> None:
        if self._upper is not None and not self.is_closing:
            self._upper.eof_received()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class TlsTransport(asyncio.Transport):
    """The transport of the upper protocol; unwritten bytes are in the transport below."""

    def __init__(self, session: TlsSession, raw: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__({"ssl_object": tls})
        self._session = session
        self._raw = raw
        self.write = session.write  # type: ignore[method-assign]  # one call less for each write

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the `ssl_object`, or the information of the transport below."""
        own = super().get_extra_info(name)
        return self._raw.get_extra_info(name, default) if own is None else own

    def is_closing(self) -> bool:
        return self._session.is_closing or self._raw.is_closing()

    def close(self) -> None:
        self._session.close()

    def abort(self) -> None:
        self._session.abort()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half-open connections."""
        return False

    def pause_reading(self) -> None:
        self._session.pause()

    def resume_reading(self) -> None:
        self._session.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the transport below, in encrypted bytes."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()
