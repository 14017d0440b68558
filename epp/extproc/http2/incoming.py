# SPDX-License-Identifier: Apache-2.0
"""Handling of the peer's frames: each one is checked against the state of its stream."""

from typing import ClassVar, Final, NamedTuple

from epp.extproc.http2 import frames
from epp.extproc.http2.calls import Calls
from epp.extproc.http2.frames import LARGEST_FRAME, Setting, frame, unpadded
from epp.extproc.http2.limits import Budget, BufferedBytes, Limits
from epp.extproc.http2.service import ErrorCode, GoawayError, ResetError
from epp.extproc.http2.streams import Head, HeadReader, Inbox, MalformedError, Stream
from epp.extproc.http2.windows import Windows

_WORD_BYTES: Final = 4
_PRIORITY_BYTES: Final = 5
_PING_BYTES: Final = 8
_SMALL_UPDATE: Final = 1024
_ID_MASK: Final = 0x7FFF_FFFF
_DRAIN: Final = b"epp-last"


class _Block(NamedTuple):
    """A header block, in the payloads of its frames."""

    stream_id: int
    pieces: list[bytes]
    end_stream: bool
    fault: ResetError | None
    """The error of its stream, to be raised after the block is decoded."""


class Incoming:
    """Handles frames; `frame` raises GoawayError or ResetError for a violation."""

    def __init__(self, calls: Calls, windows: Windows, limits: Limits, held: BufferedBytes) -> None:
        self._held = held
        self._windows = windows
        self._calls = calls
        self._limits = limits
        self._block: _Block | None = None
        self._heads = HeadReader(limits.max_header_list_bytes, limits.metadata_names)
        self._empty_frames = Budget(limits.empty_frames, "empty DATA frames")
        self._priorities = Budget(limits.priorities, "PRIORITY and unknown frames")
        self._resets = Budget(limits.resets, "streams that are reset before an answer")
        self._small_updates = Budget(limits.small_updates, "small WINDOW_UPDATE frames")
        self._pings = Budget(limits.pings, "PING frames")
        self._settings = Budget(limits.settings, "SETTINGS frames")
        self._windows_at_ping = (0, 0)  # data changes them
        self.settings_seen = False
        self.acknowledged = False
        """Whether the peer acknowledged our SETTINGS."""
        self.going_away = False
        """Whether GOAWAY was sent to the peer; streams that are already on the way are served."""
        self.refusing_above: int | None = None
        """Number of the last stream that is served; None for no limit."""
        self.peer_going_away = False

    @property
    def takes_data(self) -> bool:
        """Whether a DATA frame is allowed next: after SETTINGS, outside of a header block."""
        return self.settings_seen and self._block is None

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview, now: float) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "another frame within a header block")
        if not self.settings_seen and (kind != frames.SETTINGS or flags & frames.ACK):
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "another frame before SETTINGS")
        if kind == frames.DATA:
            self._on_data(flags, stream_id, payload, now)
            return
        rule = self._RULES.get(kind)
        if rule is None:  # a frame of an extension
            self._priorities.spend(now)
            return
        name, of_stream, size, act = rule
        if of_stream is not None and of_stream is not bool(stream_id):
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, f"{name} {'outside of' if of_stream else 'on'} a stream")
        if size is not None and len(payload) != size:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, f"{name} of a wrong length")
        act(self, flags, stream_id, bytes(payload), now)

    def go_away(self) -> None:
        """Send GOAWAY, and a PING whose answer follows the last stream of the peer."""
        if not self.going_away:
            self.going_away = True
            self._windows.out.append(frames.goaway_frame(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._windows.out.append(frame(frames.PING, 0, 0, _DRAIN))

    def last_call(self) -> None:
        """Send the number of the last stream that is served."""
        if self.refusing_above is None:
            self.going_away = True
            self.refusing_above = self._calls.last_id
            self._windows.out.append(frames.goaway_frame(self._calls.last_id, ErrorCode.NO_ERROR))

    def _on_settings(self, flags: int, _stream_id: int, payload: bytes, now: float) -> None:
        if flags & frames.ACK:
            if payload:
                raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with a payload")
            self.acknowledged = True
            return
        if len(payload) % frames.SETTING.size:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        self._settings.spend(now)
        self.settings_seen = True
        values: dict[int, int] = {}
        for key, value in frames.SETTING.iter_unpack(payload):
            _check_setting(key, value)
            values[key] = value  # the last of several values counts
        windows = self._windows
        windows.out.append(frame(frames.SETTINGS, frames.ACK, 0))
        if Setting.HEADER_TABLE_SIZE in values:
            windows.drop_table()
        windows.max_frame = min(values.get(Setting.MAX_FRAME_SIZE, windows.max_frame), LARGEST_FRAME)
        size = values.get(Setting.INITIAL_WINDOW_SIZE)
        if size is not None:
            for stream in windows.set_initial_window(size, list(self._calls.open.values())):
                self._calls.proceed(stream)

    def _on_ping(self, flags: int, _stream_id: int, payload: bytes, now: float) -> None:
        windows = self._windows
        if not flags & frames.ACK:
            left = windows.send_window, windows.receive_window
            if left == self._windows_at_ping:
                self._pings.spend(now)
            self._windows_at_ping = left
            windows.out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN and self.going_away:
            self.last_call()

    def _on_goaway(self, _flags: int, _stream_id: int, payload: bytes, _now: float) -> None:
        if len(payload) < 2 * _WORD_BYTES:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self.peer_going_away = True

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes, _now: float) -> None:
        raise GoawayError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_data(self, flags: int, stream_id: int, payload: bytes | memoryview, now: float) -> None:
        if not stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "DATA outside of a stream")
        length = len(payload)
        self._windows.receive_window -= length
        if self._windows.receive_window < 0:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        stream = self._calls.open.get(stream_id)
        if stream is None:
            self._windows.give_back()
            if not self._is_under_way(stream_id, "DATA"):
                raise ResetError(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
            self._calls.strays.spend(now)
            return
        if stream.remote_ended:
            raise ResetError(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end of a request")
        if length > stream.receive_window:
            raise ResetError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
        stream.receive_window -= length
        content = unpadded(payload) if flags & frames.PADDED else payload
        ended = bool(flags & frames.END_STREAM)
        if not content and not ended:
            self._empty_frames.spend(now)
        _check_length(stream, len(content), ended=ended)
        stream.received_at = now
        if content and stream.call is not None and self._calls.has_room(stream, len(content)):
            stream.inbox.feed(bytes(content) if stream.blocked else content)  # a view would keep the whole read alive
        if ended:
            self._calls.request_ended(stream)
        else:
            self._calls.pump(stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if not stream_id & 1:  # 0, or a stream of the server
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        fault = None
        if flags & frames.PADDED:
            payload = bytes(unpadded(payload))
        if flags & frames.PRIORITISED:
            if len(payload) < _PRIORITY_BYTES:
                raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            fault = _priority_fault(stream_id, payload)
            payload = payload[_PRIORITY_BYTES:]
        self._block = _Block(stream_id, [], bool(flags & frames.END_STREAM), fault)
        self._on_continuation(flags, stream_id, payload, now)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        block, limits = self._block, self._limits
        if block is None or block.stream_id != stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        block.pieces.append(payload)
        if len(block.pieces) > limits.max_continuations or sum(map(len, block.pieces)) > limits.max_header_block_bytes:
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(block, b"".join(block.pieces), now)

    def _on_block(self, block: _Block, content: bytes, now: float) -> None:
        calls, stream_id = self._calls, block.stream_id
        is_new = stream_id > calls.last_id
        head, malformed = None, ""
        try:  # even a block without effect may change the table
            if is_new:
                head = self._heads.request(content)
            else:
                self._heads.trailers(content)
        except MalformedError as error:
            malformed = str(error)
        if is_new:
            self._open(block, head, malformed, now)
        elif stream_id in calls.open:
            self._on_trailers(calls.open[stream_id], block, malformed)
        elif self._is_under_way(stream_id, "HEADERS"):
            calls.strays.spend(now)
        elif calls.closed_by_us(stream_id) is None:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "a new stream with a number below others")
        else:
            raise GoawayError(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that has ended")

    def _on_trailers(self, stream: Stream, block: _Block, malformed: str) -> None:
        if stream.remote_ended:
            raise ResetError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of a request")
        if malformed or block.fault is not None or not block.end_stream:
            raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, malformed or "trailers that do not end the stream")
        _check_length(stream, 0, ended=True)
        self._calls.request_ended(stream)

    def _open(self, block: _Block, head: Head | None, malformed: str, now: float) -> None:
        limits, calls = self._limits, self._calls
        calls.last_id = block.stream_id
        if self.refusing_above is not None:
            raise ResetError(block.stream_id, ErrorCode.REFUSED_STREAM, "a new stream after GOAWAY")
        if block.fault is not None:
            raise block.fault
        if head is None:
            raise ResetError(block.stream_id, ErrorCode.PROTOCOL_ERROR, malformed)
        if len(calls.open) >= limits.max_streams:
            raise ResetError(block.stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        stream = Stream(
            block.stream_id,
            Inbox(limits.max_message_bytes, head.encoding),
            self._held.account(),
            receive_window=limits.stream_window,
            send_window=self._windows.initial_window,
            received_at=now,
        )
        stream.length_left = head.content_length
        stream.remote_ended = block.end_stream
        calls.begin(stream, head)
        if block.end_stream and stream.id in calls.open:
            _check_length(stream, 0, ended=True)
            calls.request_ended(stream)

    def _on_rst_stream(self, _flags: int, stream_id: int, _payload: bytes, now: float) -> None:
        stream = self._calls.open.get(stream_id)
        if stream is not None:
            self._calls.drop(stream)
            if not stream.headers_sent:
                self._resets.spend(now)
        else:
            self._is_under_way(stream_id, "RST_STREAM")
            self._calls.strays.spend(now)

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        increment = frames.word(payload) & _ID_MASK
        if increment < _SMALL_UPDATE:
            self._small_updates.spend(now)
        if not stream_id:
            for stream in self._windows.update_connection(increment):
                self._calls.proceed(stream)
            return
        known = self._calls.open.get(stream_id)
        if known is None:  # sent before the peer knew that the stream was closed
            self._is_under_way(stream_id, "WINDOW_UPDATE")
            self._calls.strays.spend(now)
            return
        was_blocked = bool(known.outbox)
        self._windows.update_stream(known, increment)
        if was_blocked:
            self._calls.proceed(known)

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._priorities.spend(now)
        if len(payload) != _PRIORITY_BYTES:
            raise ResetError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
        fault = _priority_fault(stream_id, payload)
        if fault is not None:
            raise fault

    def _is_under_way(self, stream_id: int, kind: str) -> bool:
        """Return whether we ended a stream that is not open; raises GoawayError for one that was never opened."""
        if stream_id > self._calls.last_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, f"{kind} on a stream that was never opened")
        return self._calls.closed_by_us(stream_id) is True

    _RULES: ClassVar = {
        frames.HEADERS: ("HEADERS", None, None, _on_headers),
        frames.PRIORITY: ("PRIORITY", True, None, _on_priority),
        frames.RST_STREAM: ("RST_STREAM", True, _WORD_BYTES, _on_rst_stream),
        frames.SETTINGS: ("SETTINGS", False, None, _on_settings),
        frames.PUSH_PROMISE: ("PUSH_PROMISE", None, None, _on_push_promise),
        frames.PING: ("PING", False, _PING_BYTES, _on_ping),
        frames.GOAWAY: ("GOAWAY", False, None, _on_goaway),
        frames.WINDOW_UPDATE: ("WINDOW_UPDATE", None, _WORD_BYTES, _on_window_update),
        frames.CONTINUATION: ("CONTINUATION", None, None, _on_continuation),
    }
    """Name, whether it needs a stream, length of the payload (None for any), and handler of each kind of frame.

    The handlers are not bound methods: without reference cycles, a lost connection is freed immediately.
    """


def _check_setting(key: int, value: int) -> None:
    match key:
        case Setting.ENABLE_PUSH if value > 1:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        case Setting.INITIAL_WINDOW_SIZE if value > frames.MAX_WINDOW:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        case Setting.MAX_FRAME_SIZE if not frames.MIN_MAX_FRAME <= value <= frames.MAX_MAX_FRAME:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")


def _check_length(stream: Stream, length: int, *, ended: bool) -> None:
    if stream.length_left is None:
        return
    stream.length_left -= length
    if stream.length_left < 0 or (ended and stream.length_left):
        raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, "the length of a request is not its content-length")


def _priority_fault(stream_id: int, payload: bytes) -> ResetError | None:
    """Return the error in the priority at the start of a payload, or None; priorities are otherwise ignored."""
    if frames.word(payload) & _ID_MASK == stream_id:
        return ResetError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
    return None
