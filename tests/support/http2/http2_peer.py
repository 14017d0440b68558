# SPDX-License-Identifier: Apache-2.0
"""The client's end of an HTTP/2 connection, without I/O: it builds what it sends, and holds the server to the RFC.

Every frame of the server is checked as it comes: that its stream is open, that both windows have room for it, that it
is no longer than was allowed, that header blocks are whole. What is wrong is an AssertionError.
"""

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

from tests.support.http2.http2_bytes import (
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    MOST_WINDOW,
    PREFACE,
    Error,
    Fields,
    Flag,
    Frame,
    Kind,
    Setting,
    data,
    encoded,
    grpc_fields,
    grpc_messages,
    headers,
    ping,
    read_frames,
    rst_stream,
    settings,
    settings_ack,
    window_update,
)


@dataclass(slots=True)
class Call:
    """One stream as the client sees it."""

    number: int
    send_window: int
    """What may still be sent on it."""
    receive_window: int
    """What the server may still send on it."""
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None
    """The code with which the server reset it."""
    cancelled: bool = False
    finished: bool = False
    """Whether this end has sent its last."""

    @property
    def closed(self) -> bool:
        """Whether the server sends no more on it."""
        return self.ended or self.reset is not None

    @property
    def messages(self) -> list[bytes]:
        return grpc_messages(bytes(self.data))

    @property
    def status(self) -> int | None:
        """The gRPC status; None before the end, and after a reset."""
        said = self.trailers.get("grpc-status") or (self.headers.get("grpc-status") if self.ended else None)
        return None if said is None else int(said)


class Peer:
    """`greeting`, then what the methods return, is to be sent; `receive` takes what the server sends."""

    def __init__(self, chosen: Mapping[int, int] | None = None) -> None:
        self.calls: dict[int, Call] = {}
        self.goaway: tuple[int, int, bytes] | None = None
        """Last stream, code and text of the newest GOAWAY."""
        self.pongs: list[bytes] = []
        self.server_settings: dict[int, int] = {}
        self.frames: list[Frame] = []
        """All frames of the server, in order."""
        self.send_window = DEFAULT_WINDOW
        self.receive_window = DEFAULT_WINDOW
        self.unacknowledged: deque[dict[int, int]] = deque()
        self.due = bytearray()
        """What the rules make this end send: acknowledgements."""
        self._chosen = dict(chosen or {})
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._buffer = bytearray()
        self._initial_receive = DEFAULT_WINDOW
        self._initial_send = DEFAULT_WINDOW
        self._most_frame = DEFAULT_FRAME
        self._block: tuple[int, bool, bytearray] | None = None
        self._next_stream = 1

    def greeting(self) -> bytes:
        return PREFACE + self.change(self._chosen)

    def change(self, chosen: Mapping[int, int]) -> bytes:
        """Settings, which count once the server has acknowledged them."""
        self.unacknowledged.append(dict(chosen))
        return settings(chosen.items())

    # what is sent

    def call(self, path: str, *messages: bytes, end: bool = False) -> tuple[Call, bytes]:
        """Open a stream; `messages` are already framed for gRPC."""
        return self.open(grpc_fields(path), *messages, end=end)

    def open(self, fields: Fields, *pieces: bytes, end: bool = False) -> tuple[Call, bytes]:
        call = Call(self._next_stream, self._initial_send, self._initial_receive)
        self.calls[call.number] = call
        self._next_stream += 2
        call.finished = end and not pieces
        made = headers(call.number, encoded(self._encoder, fields), end=call.finished)
        for number, piece in enumerate(pieces, start=1):
            made += self.send(call, piece, end=end and number == len(pieces))
        return call, made

    def send(self, call: Call, payload: bytes, *, end: bool = False, pad: int | None = None) -> bytes:
        """One DATA frame; both windows must have room for it."""
        size = len(payload) + (0 if pad is None else pad + 1)
        self.send_window -= size
        call.send_window -= size
        assert self.send_window >= 0 or size == 0, "the test sends more than it may"
        call.finished = end
        return data(call.number, payload, end=end, pad=pad)

    def room(self, call: Call) -> int:
        """What may be sent on this stream now, in one frame."""
        most = self.server_settings.get(Setting.MAX_FRAME_SIZE, DEFAULT_FRAME)
        return max(0, min(self.send_window, call.send_window, most))

    def cancel(self, call: Call, code: int = Error.CANCEL) -> bytes:
        call.cancelled = True
        return rst_stream(call.number, code)

    def grant(self, increment: int, call: Call | None = None) -> bytes:
        """Let the server send so much more, on one stream or on the connection."""
        if call is None:
            self.receive_window += increment
            return window_update(0, increment)
        call.receive_window += increment
        return window_update(call.number, increment)

    # what is received

    def receive(self, received: bytes) -> None:
        self._buffer += received
        for frame in read_frames(self._buffer):
            self.frames.append(frame)
            self._check(frame)

    @property
    def in_the_middle_of_a_frame(self) -> bool:
        return bool(self._buffer)

    def _check(self, frame: Frame) -> None:
        assert len(frame.payload) <= self._most_frame, f"{len(frame.payload)} bytes in a frame"
        assert self._block is None or (frame.kind, frame.stream) == (Kind.CONTINUATION, self._block[0]), (
            "a header block is interrupted"
        )
        on_connection = frame.kind in {Kind.SETTINGS, Kind.PING, Kind.GOAWAY}
        assert frame.kind == Kind.WINDOW_UPDATE or on_connection == (frame.stream == 0), frame
        if not self.server_settings and frame.kind != Kind.SETTINGS:
            raise AssertionError(f"the first frame is not SETTINGS but {frame}")
        match frame.kind:
            case Kind.DATA:
                self._on_data(frame)
            case Kind.HEADERS:
                self._on_headers(frame)
            case Kind.CONTINUATION:
                self._on_continuation(frame)
            case Kind.RST_STREAM:
                self._on_rst_stream(frame)
            case Kind.SETTINGS:
                self._on_settings(frame)
            case Kind.PING:
                self._on_ping(frame)
            case Kind.GOAWAY:
                self._on_goaway(frame)
            case Kind.WINDOW_UPDATE:
                self._on_window_update(frame)
            case _:
                raise AssertionError(f"not for a server to send: {frame}")

    def _on_data(self, frame: Frame) -> None:
        call = self._open_call(frame)
        self.receive_window -= len(frame.payload)
        assert self.receive_window >= 0, "more than the window of the connection"
        payload = frame.payload
        if frame.flags & Flag.PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        call.receive_window -= len(frame.payload)
        assert call.receive_window >= 0 or not frame.payload, "more than the window of the stream"
        assert call.headers, "data before headers"
        call.data += payload
        call.ended = bool(frame.flags & Flag.END_STREAM)

    def _on_headers(self, frame: Frame) -> None:
        self._open_call(frame)
        assert not frame.flags & (Flag.PADDED | Flag.PRIORITY)
        self._block = (frame.stream, bool(frame.flags & Flag.END_STREAM), bytearray())
        self._on_continuation(frame)

    def _on_continuation(self, frame: Frame) -> None:
        assert self._block is not None, "CONTINUATION of nothing"
        number, end, block = self._block
        block += frame.payload
        if frame.flags & Flag.END_HEADERS:
            self._block = None
            call = self.calls[number]
            fields = [(_text(name), _text(value)) for name, value in self._decoder.decode(bytes(block))]
            assert all(name == name.lower() for name, _ in fields), fields
            assert not call.headers or end, "trailers that are not the end"
            (call.trailers if call.headers else call.headers).update(fields)
            call.ended = end

    def _on_rst_stream(self, frame: Frame) -> None:
        call = self._known_call(frame)
        (code,) = struct.unpack(">I", frame.payload)
        # RFC 9113, section 5.1: frames long after a reset may be errors; servers remember some streams, not all.
        assert call.reset is None or code == Error.STREAM_CLOSED, "reset twice"
        call.reset = code if call.reset is None else call.reset

    def _on_settings(self, frame: Frame) -> None:
        if frame.flags & Flag.ACK:
            assert not frame.payload
            assert self.unacknowledged, "settings acknowledged that were not sent"
            self._apply(self.unacknowledged.popleft())
            return
        assert len(frame.payload) % 6 == 0
        changed = dict(struct.iter_unpack(">HI", frame.payload))
        initial = changed.get(Setting.INITIAL_WINDOW_SIZE, self._initial_send)
        for call in self.calls.values():
            call.send_window += initial - self._initial_send
        self._initial_send = initial
        self.server_settings |= {Setting.ENABLE_PUSH: 0} | changed
        self.due += settings_ack()

    def _apply(self, chosen: Mapping[int, int]) -> None:
        """Count settings from here on: the server had taken them before it sent what follows."""
        initial = chosen.get(Setting.INITIAL_WINDOW_SIZE, self._initial_receive)
        for call in self.calls.values():
            call.receive_window += initial - self._initial_receive
        self._initial_receive = initial
        self._most_frame = chosen.get(Setting.MAX_FRAME_SIZE, self._most_frame)
        if (size := chosen.get(Setting.HEADER_TABLE_SIZE)) is not None:
            self._decoder.max_allowed_table_size = size

    def _on_ping(self, frame: Frame) -> None:
        assert len(frame.payload) == 8
        if frame.flags & Flag.ACK:
            self.pongs.append(frame.payload)
        else:
            self.due += ping(frame.payload, ack=True)

    def _on_goaway(self, frame: Frame) -> None:
        last, code = struct.unpack_from(">II", frame.payload)
        assert self.goaway is None or last <= self.goaway[0], "GOAWAY takes back what it refused"
        self.goaway = last, code, frame.payload[8:]

    def _on_window_update(self, frame: Frame) -> None:
        (increment,) = struct.unpack(">I", frame.payload)
        assert increment > 0
        if frame.stream == 0:
            self.send_window += increment
            assert self.send_window <= MOST_WINDOW
        else:
            call = self._known_call(frame)
            call.send_window += increment
            assert call.send_window <= MOST_WINDOW

    def _known_call(self, frame: Frame) -> Call:
        assert frame.stream in self.calls, f"a stream that was never opened: {frame}"
        return self.calls[frame.stream]

    def _open_call(self, frame: Frame) -> Call:
        call = self._known_call(frame)
        assert not call.closed, f"after the end of the stream: {frame}"
        return call


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
