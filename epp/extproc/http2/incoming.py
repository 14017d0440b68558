# SPDX-License-Identifier: Apache-2.0
"""Handling of the peer's frames: each one is checked against the state of its stream."""

from typing import ClassVar

from epp.extproc.http2 import frames
from epp.extproc.http2.calls import Calls
from epp.extproc.http2.capacity import BufferedBytes
from epp.extproc.http2.control import Control
from epp.extproc.http2.frames import Block, BlockAssembler, priority_fault, unpadded
from epp.extproc.http2.heads import Head, HeadReader, MalformedError
from epp.extproc.http2.limits import Budget, Limits
from epp.extproc.http2.status import ErrorCode, GoawayError, ResetError
from epp.extproc.http2.streams import Fate, Inbox, Stream, StreamTable
from epp.extproc.http2.windows import Receiving, Sending

_WORD_BYTES = 4
_PRIORITY_BYTES = 5
_SMALL_UPDATE = 1024
_ID_MASK = 0x7FFF_FFFF


class Incoming:
    """Handles frames; `frame` raises GoawayError or ResetError for a violation."""

    def __init__(
        self,
        table: StreamTable,
        *,
        sending: Sending,
        receiving: Receiving,
        calls: Calls,
        control: Control,
        limits: Limits,
        held: BufferedBytes,
    ) -> None:
        self._held = held
        self._table = table
        self._sending = sending
        self._receiving = receiving
        self._calls = calls
        self._control = control
        self._limits = limits
        self._blocks = BlockAssembler(limits)
        self._heads = HeadReader(limits.max_header_list_bytes, limits.metadata_names)
        self._empty_frames = Budget(limits.empty_frames, "empty DATA frames")
        self._priorities = Budget(limits.priorities, "PRIORITY and unknown frames")
        self._resets = Budget(limits.resets, "streams that are reset before an answer")
        self._small_updates = Budget(limits.small_updates, "small WINDOW_UPDATE frames")

    @property
    def takes_data(self) -> bool:
        """Whether a DATA frame is allowed next: after SETTINGS, outside of a header block."""
        return self._control.settings_seen and self._blocks.awaited is None

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview, now: float) -> None:
        """Handle one frame."""
        if self._blocks.awaited is not None and kind != frames.CONTINUATION:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "another frame within a header block")
        if not self._control.settings_seen and (kind != frames.SETTINGS or flags & frames.ACK):
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "another frame before SETTINGS")
        if kind == frames.DATA:
            self._on_data(flags, stream_id, payload, now)
            return
        act = self._ACTIONS.get(kind)
        if act is None:  # of an extension
            self._priorities.spend(now)
        else:
            act(self, flags, stream_id, bytes(payload), now)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        block = self._blocks.resume(flags, stream_id, payload)
        if block is not None:
            self._on_block(block, now)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        for stream in self._control.on_settings(flags, stream_id, payload, now):
            self._calls.proceed(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._control.on_ping(flags, stream_id, payload, now)

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes, _now: float) -> None:
        self._control.on_goaway(stream_id, payload)

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes, _now: float) -> None:
        raise GoawayError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_data(self, flags: int, stream_id: int, payload: bytes | memoryview, now: float) -> None:
        if not stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "DATA outside of a stream")
        length = len(payload)
        self._receiving.window -= length
        if self._receiving.window < 0:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        stream = self._table.open.get(stream_id)
        if stream is None:
            self._receiving.give_back()
            self._stray(stream_id, "DATA", now)
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
        self._count(stream, len(content), ended=ended)
        stream.heard_at = now
        if content and stream.call is not None and self._calls.has_room(stream, len(content)):
            stream.inbox.feed(bytes(content) if stream.blocked else content)  # a view would keep the whole read alive
        if ended:
            self._calls.request_ended(stream)
        else:
            self._calls.pump(stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if not stream_id & 1:  # 0, or a number of servers
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._on_block(block, now)

    def _on_block(self, block: Block, now: float) -> None:
        stream = self._table.open.get(block.stream_id)
        fate = Fate.ENDED if stream is not None else self._table.fate(block.stream_id)
        try:
            if stream is not None or fate is not Fate.IDLE:
                self._heads.trailers(block.content)
                head = None
            else:
                head = self._heads.request(block.content)
            malformed = None
        except MalformedError as error:
            head, malformed = None, str(error)
        if stream is not None:
            self._on_trailers(stream, block, malformed)
        elif fate is Fate.IDLE:
            self._open(block, head, malformed, now)
        elif fate is Fate.ENDED:
            raise GoawayError(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that has ended")
        elif fate is Fate.FORGOTTEN:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "a new stream with a number below others")
        else:
            self._stray(block.stream_id, "HEADERS", now)

    def _on_trailers(self, stream: Stream, block: Block, malformed: str | None) -> None:
        if stream.remote_ended:
            raise ResetError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of a request")
        if malformed is not None or block.fault is not None or not block.end_stream:
            raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, malformed or "trailers that do not end the stream")
        self._count(stream, 0, ended=True)
        self._calls.request_ended(stream)

    def _open(self, block: Block, head: Head | None, malformed: str | None, now: float) -> None:
        control, limits = self._control, self._limits
        self._table.last_id = block.stream_id
        if control.refusing_above is not None:
            raise ResetError(block.stream_id, ErrorCode.REFUSED_STREAM, "a new stream after GOAWAY")
        if block.fault is not None:
            raise block.fault
        if head is None:
            raise ResetError(block.stream_id, ErrorCode.PROTOCOL_ERROR, malformed or "")
        if len(self._table.open) >= limits.max_streams:
            raise ResetError(block.stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        stream = Stream(
            block.stream_id,
            Inbox(limits.max_message_bytes, head.encoding),
            self._held.account(),
            receive_window=limits.stream_window,
            send_window=self._sending.initial_window,
            heard_at=now,
        )
        stream.length_left = head.content_length
        stream.remote_ended = block.end_stream
        self._table.add(stream)
        self._calls.open(stream, head)
        if block.end_stream and stream.id in self._table.open:
            self._count(stream, 0, ended=True)
            self._calls.request_ended(stream)

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if not stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM outside of a stream")
        if len(payload) != _WORD_BYTES:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self._calls.drop(stream, Fate.RESET)
            if not stream.headers_sent:
                self._resets.spend(now)
        elif self._table.fate(stream_id) is Fate.IDLE:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was never opened")
        else:
            self._table.strays.spend(now)

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if len(payload) != _WORD_BYTES:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        increment = frames.word(payload) & _ID_MASK
        if increment < _SMALL_UPDATE:
            self._small_updates.spend(now)
        if not stream_id:
            for stream in self._sending.connection_update(increment):
                self._calls.proceed(stream)
            return
        known = self._table.open.get(stream_id)
        if known is not None:
            if self._sending.stream_update(known, increment):
                self._calls.proceed(known)
        elif self._table.fate(stream_id) is Fate.IDLE:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was never opened")
        else:  # on its way as the stream was closed
            self._table.strays.spend(now)

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if not stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "PRIORITY outside of a stream")
        self._priorities.spend(now)
        if len(payload) != _PRIORITY_BYTES:
            raise ResetError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
        fault = priority_fault(stream_id, payload)
        if fault is not None:
            raise fault

    def _stray(self, stream_id: int, kind: str, now: float) -> None:
        """Handle a frame on a stream that is not open."""
        fate = self._table.fate(stream_id)
        if fate is Fate.IDLE:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, f"{kind} on a stream that was never opened")
        if fate is not Fate.ABANDONED:
            raise ResetError(stream_id, ErrorCode.STREAM_CLOSED, f"{kind} on a closed stream")
        self._table.strays.spend(now)

    @staticmethod
    def _count(stream: Stream, length: int, *, ended: bool) -> None:
        """Check the bytes of a request against its content-length."""
        if stream.length_left is None:
            return
        stream.length_left -= length
        if stream.length_left < 0 or (ended and stream.length_left):
            raise ResetError(stream.id, ErrorCode.PROTOCOL_ERROR, "a request that is not as long as content-length")

    _ACTIONS: ClassVar = {
        frames.HEADERS: _on_headers,
        frames.PRIORITY: _on_priority,
        frames.RST_STREAM: _on_rst_stream,
        frames.SETTINGS: _on_settings,
        frames.PUSH_PROMISE: _on_push_promise,
        frames.PING: _on_ping,
        frames.GOAWAY: _on_goaway,
        frames.WINDOW_UPDATE: _on_window_update,
        frames.CONTINUATION: _on_continuation,
    }
    """Functions, not bound methods: without reference cycles, a lost connection is freed at once."""
