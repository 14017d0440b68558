# SPDX-License-Identifier: Apache-2.0
"""Flow control windows of a connection and its streams, for what is sent and for what is received."""

from collections import OrderedDict
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
from epp.extproc.http2.service import HEADERS_BLOCK, ErrorCode, GoawayError, ResetError, RpcError, Status
from epp.extproc.http2.streams import PREFIX, PREFIX_BYTES, Stream

_EMPTY_TABLE: Final = b"\x20"
"""HPACK: sets the size of the encoder's dynamic table to 0."""


class Windows:
    """Appends frames to `out`; bytes beyond the peer's windows wait in the outboxes of the streams.

    Receive windows are returned half a window at a time, except for bytes in the inbox of a blocked stream.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most_sent = limits.max_sent_message_bytes
        self.out: list[bytes | memoryview] = []
        self.send_window = self.initial_window = DEFAULT_WINDOW
        self.max_frame = MIN_MAX_FRAME
        # Streams that wait for the connection's window, in order; a plain dict finds its first key slowly.
        self._short: OrderedDict[Stream, None] = OrderedDict()
        self._table_update = b""
        self.receive_window = limits.connection_window
        """Remaining bytes that the peer may send on all streams."""
        self.receive_low = limits.connection_window // 2
        """Level below which the window is increased again."""
        self.stream_low = limits.stream_window // 2
        self._held = 0  # bytes in the inboxes of blocked streams

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send a gRPC message, with the response headers before the first one; raises RpcError if it is too large."""
        out = self.out
        length = len(message)
        if length > self._most_sent:
            problem = f"an answer of {length} bytes: at most {self._most_sent} may be sent"
            raise RpcError(Status.RESOURCE_EXHAUSTED, problem)
        if not stream.headers_sent:
            stream.headers_sent = True
            self.send_headers(stream.id, HEADERS_BLOCK)
        size = length + PREFIX_BYTES
        if size <= self.max_frame and size <= self.send_window and size <= stream.send_window and not stream.outbox:
            self.send_window -= size
            stream.send_window -= size
            out.append(MESSAGE_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id, 0, length))
            out.append(message)
        else:
            first = self.max_frame - PREFIX_BYTES  # avoids a copy of the rest of a large message
            stream.unsent += size
            stream.outbox.append(memoryview(PREFIX.pack(0, length) + message[:first]))
            if length > first:
                stream.outbox.append(memoryview(message)[first:])
            self.push(stream)

    def push(self, stream: Stream) -> None:
        """Send the part of the outbox that fits in the windows."""
        outbox = stream.outbox
        while outbox:
            chunk = outbox[0]
            size = min(len(chunk), self.max_frame, self.send_window, stream.send_window)
            if size <= 0:
                break
            self.send_window -= size
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

    def send_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        self.out.append(frame(HEADERS, flags | END_HEADERS, stream_id, self._table_update + block))
        self._table_update = b""

    def drop_table(self) -> None:
        """Send a table size of 0 with the next header block: we do not use the dynamic table."""
        self._table_update = _EMPTY_TABLE

    def forget(self, stream: Stream) -> None:
        stream.outbox.clear()
        stream.unsent = 0
        self._short.pop(stream, None)

    def update_connection(self, increment: int) -> list[Stream]:
        """Widen the window of the connection; return the streams that sent more of their outbox."""
        if increment == 0:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if self.send_window + increment > MAX_WINDOW:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        self.send_window += increment
        pushed = []
        while self._short and self.send_window > 0:
            stream = next(iter(self._short))
            self.push(stream)  # removes the stream from `_short` or uses up the window
            pushed.append(stream)
        return pushed

    def update_stream(self, stream: Stream, increment: int) -> None:
        if increment == 0:
            raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream.send_window + increment > MAX_WINDOW:
            raise ResetError(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "the window of a stream is too large")
        stream.send_window += increment
        self.push(stream)

    def set_initial_window(self, size: int, streams: list[Stream]) -> list[Stream]:
        """Change the windows of all streams; return the streams with data in their outbox."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS make the window of a stream too large")
        pushed = [stream for stream in streams if stream.outbox] if change > 0 else []
        for stream in pushed:
            self.push(stream)
        return pushed

    def consumed(self, stream: Stream) -> None:
        """Return the consumed bytes of an open stream to its window."""
        held = stream.inbox.size if stream.blocked else 0
        self._held += held - stream.held
        stream.held = held
        most = self._limits.stream_window
        if stream.receive_window + held < self.stream_low and not stream.remote_ended:
            self.out.append(window_update_frame(stream.id, most - held - stream.receive_window))
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
        if 2 * self.receive_window <= room and self.receive_window < room:
            self.out.append(window_update_frame(0, room - self.receive_window))
            self.receive_window = room
