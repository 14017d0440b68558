# SPDX-License-Identifier: Apache-2.0
"""Flow control: outgoing frames within the peer's windows, and the receive windows of our own."""

from collections import OrderedDict
from struct import Struct
from typing import Final

from epp.extproc.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    HEAD,
    HEADERS,
    MAX_WINDOW,
    MESSAGE_HEAD,
    MIN_MAX_FRAME,
    frame,
    window_update_frame,
)
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.status import HEADERS_BLOCK, ErrorCode, GoawayError, ResetError, RpcError, Status
from epp.extproc.http2.streams import PREFIX_BYTES, Stream

_PREFIX: Final = Struct(">BL")
LARGEST_FRAME: Final = 65_536
"""Largest outgoing frame; a peer may allow 16 MiB, which is too much for one write."""
_EMPTY_TABLE: Final = b"\x20"
"""HPACK: sets the size of the encoder's dynamic table to 0."""


class Sending:
    """Appends frames to `out`; bytes beyond the windows wait in the outboxes of the streams."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self.out: list[bytes | memoryview] = []
        """Bytes to write, in order."""
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame = MIN_MAX_FRAME
        # Streams that wait for the connection's window, in order; in a plain dict the first may be slow to find.
        self._short: OrderedDict[Stream, None] = OrderedDict()
        self._table_update = b""

    def message(self, stream: Stream, message: bytes) -> None:
        """Send a gRPC message, with the response headers before the first one; raises RpcError if it is too large."""
        out = self.out
        length = len(message)
        if length > self._max_message_bytes:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED, f"an answer of {length} bytes: at most {self._max_message_bytes} may be sent"
            )
        if not stream.headers_sent:
            stream.headers_sent = True
            out.append(self.headers(stream.id, HEADERS_BLOCK))
        size = length + PREFIX_BYTES
        if size <= self.max_frame and size <= self.window and size <= stream.send_window and not stream.outbox:
            self.window -= size
            stream.send_window -= size
            out.append(MESSAGE_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id, 0, length))
            out.append(message)
        else:
            first = self.max_frame - PREFIX_BYTES  # avoids a copy of the rest of a large message
            stream.unsent += length + PREFIX_BYTES
            stream.outbox.append(memoryview(_PREFIX.pack(0, length) + message[:first]))
            if length > first:
                stream.outbox.append(memoryview(message)[first:])
            self.push(stream)

    def data(self, stream: Stream, content: bytes) -> None:
        """Send bytes within the windows."""
        stream.unsent += len(content)
        stream.outbox.append(memoryview(content))
        self.push(stream)

    def push(self, stream: Stream) -> None:
        """Send the part of the outbox that fits in the windows."""
        outbox = stream.outbox
        while outbox:
            chunk = outbox[0]
            size = min(len(chunk), self.max_frame, self.window, stream.send_window)
            if size <= 0:
                break
            self.window -= size
            stream.send_window -= size
            stream.unsent -= size
            self.out.append(HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id))
            self.out.append(chunk[:size])
            if size == len(chunk):
                del outbox[0]
            else:
                outbox[0] = chunk[size:]
        if outbox and stream.send_window > 0:
            self._short[stream] = None
        else:
            self._short.pop(stream, None)
        stream.count()

    def headers(self, stream_id: int, block: bytes, flags: int = 0) -> bytes:
        """Return a HEADERS frame."""
        if self._table_update:
            block, self._table_update = self._table_update + block, b""
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)

    def forget(self, stream: Stream) -> None:
        """Drop the outbox of a closed stream."""
        stream.outbox.clear()
        stream.unsent = 0
        self._short.pop(stream, None)

    def connection_update(self, increment: int) -> list[Stream]:
        """Widen the window of the connection; return the streams whose outbox is empty now."""
        if increment == 0:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if self.window + increment > MAX_WINDOW:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        self.window += increment
        emptied = []
        while self._short and self.window > 0:
            stream = next(iter(self._short))
            self.push(stream)  # removes the stream from `_short` or uses up the window
            if not stream.outbox:
                emptied.append(stream)
        return emptied

    def stream_update(self, stream: Stream, increment: int) -> bool:
        """Widen the window of a stream; return whether its outbox became empty."""
        if increment == 0:
            raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream.send_window + increment > MAX_WINDOW:
            raise ResetError(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "the window of a stream is too large")
        stream.send_window += increment
        if not stream.outbox:
            return False
        self.push(stream)
        return not stream.outbox

    def set_initial_window(self, size: int, streams: list[Stream]) -> list[Stream]:
        """Change the window of all streams; return those whose outbox is empty now."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS make the window of a stream too large")
        emptied = []
        for stream in streams if change > 0 else ():
            if stream.outbox:
                self.push(stream)
                if not stream.outbox:
                    emptied.append(stream)
        return emptied

    def drop_table(self) -> None:
        """Send a table size of 0 with the next header block: we do not use the dynamic table."""
        self._table_update = _EMPTY_TABLE


class Receiving:
    """Receive windows of the connection and its streams, returned half a window at a time.

    Bytes in the inbox of a blocked stream are not returned.
    """

    def __init__(self, sending: Sending, limits: Limits) -> None:
        self._sending = sending
        self._limits = limits
        self.low = limits.connection_window // 2
        """Level below which the window is widened again."""
        self.stream_low = limits.stream_window // 2
        self.window = limits.connection_window
        """Remaining bytes that the peer may send on all streams."""
        self._held = 0

    def account(self, stream: Stream) -> None:
        """Return the consumed bytes of an open stream to its window."""
        held = stream.inbox.size if stream.blocked else 0
        self._held += held - stream.held
        stream.held = held
        most = self._limits.stream_window
        if stream.receive_window + held < self.stream_low and not stream.remote_ended:
            self._sending.out.append(window_update_frame(stream.id, most - held - stream.receive_window))
            stream.receive_window = most - held
        self.give_back()

    def release(self, stream: Stream) -> None:
        """Count all bytes of a closed stream as consumed."""
        self._held -= stream.held
        stream.held = 0
        self.give_back()

    def give_back(self) -> None:
        """Widen the connection's window if half of the available part has been consumed."""
        room = self._limits.connection_window - self._held
        if 2 * self.window <= room and self.window < room:
            self._sending.out.append(window_update_frame(0, room - self.window))
            self.window = room
