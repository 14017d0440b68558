# SPDX-License-Identifier: Apache-2.0
"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, bytes in `out`."""

from collections.abc import Callable, Iterable
from itertools import islice
from struct import Struct
from typing import Final

from epp.extproc.http2.calls import Calls
from epp.extproc.http2.fair_scheduler import MOST_ENDINGS
from epp.extproc.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    HEAD,
    HEAD_BYTES,
    MESSAGE_HEAD,
    MIN_MAX_FRAME,
    PING,
    PREFACE,
    Setting,
    frame,
    goaway_frame,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from epp.extproc.http2.incoming import Incoming
from epp.extproc.http2.limits import Budget, BufferedBytes, Limits, RateLimitedLog
from epp.extproc.http2.service import ErrorCode, GoawayError, Host, Methods, ResetError, Status
from epp.extproc.http2.streams import PREFIX_BYTES, Stream
from epp.extproc.http2.windows import Windows

_FAST_BYTES: Final = HEAD_BYTES + PREFIX_BYTES
_LENGTH: Final = Struct(">BH")
_VIEW_BYTES: Final = 8192
"""DATA of at least this size is copied only once, when its message is joined."""
_ID_MASK: Final = 0x7FFF_FFFF

_FEW_FRAMES: Final = 4
"""Minimum number of frames handled in each iteration of the loop."""
_KEEPALIVE: Final = b"epp-live"
_CHECKS: Final = 4
"""Checks for stalled streams within the timeout."""
_MOST_SECONDS: Final = 10.0
"""Most time between checks."""


def _never() -> bool:
    return False


class Connection:
    """An HTTP/2 connection: `receive` input, `check` deadlines, `lose` it at the end. It starts with our SETTINGS."""

    def __init__(
        self,
        methods: Methods,
        limits: Limits,
        host: Host,
        peer: str,
        now: float,
        *,
        warnings: RateLimitedLog,
        held: BufferedBytes,
    ) -> None:
        """`held` counts the buffered bytes of each stream."""
        self._warnings = warnings
        self._limits = limits
        self._host = host
        self._peer = peer
        self._now = self._started_at = self._idle_since = now
        self._windows = Windows(limits)
        self.calls = Calls(methods, self._windows, host, peer, limits)
        self._streams = self.calls.open
        self._incoming = Incoming(self.calls, self._windows, limits, held)
        self._faults = Budget(limits.strays, "streams that violate the protocol")
        self._preface = PREFACE
        self._rest = b""
        self._has_turn = True
        self._plain = False  # whether a DATA frame may come: after SETTINGS, outside of a header block
        self._last_id_seen = 0
        self._ping_due: float | None = None  # deadline for the answer to a keepalive PING
        self.out = self._windows.out
        """Bytes to write, in order; the writer clears the list."""
        self.closed = False
        """Whether the transport must be closed after everything is written."""
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        self.out.append(settings_frame(settings))
        self.out.append(window_update_frame(0, limits.connection_window - DEFAULT_WINDOW))

    @property
    def open_streams(self) -> int:
        """Streams that are not closed in both directions."""
        return len(self._streams)

    @property
    def finished(self) -> bool:
        """Whether one side sent GOAWAY and no stream is open."""
        incoming = self._incoming
        return (incoming.refusing_above is not None or incoming.peer_going_away) and not self._streams

    def receive(self, data: bytes, now: float, is_over: Callable[[], bool] = _never) -> bytes:
        """Handle bytes of the peer until `is_over`; return the rest, for a later iteration."""
        self._now = now
        later = b""
        if self.closed:
            return later
        try:
            if self._preface:
                data = self._check_preface(data)
            if self._rest:
                data = self._complete_first(data)
            self._has_turn = True
            done = self._frames(data, is_over)
            if not self._has_turn:
                later = data[done:]
            elif done < len(data):
                self._rest = data[done:]
        except GoawayError as fault:
            self.fail(fault.code, str(fault))
        if not self._streams and self.finished:
            self.lose()
            later = b""
        return later

    def go_away(self) -> None:
        """Send GOAWAY to the peer; the connection ends with the last stream."""
        self._incoming.go_away()

    def cut(self) -> None:
        """End all calls with UNAVAILABLE, then the connection."""
        if self.closed:
            return
        self._incoming.last_call()
        for stream in list(self._streams.values()):
            if stream.outbox:
                self.calls.reset(stream, ErrorCode.CANCEL)
            else:
                self.calls.finish(stream, Status.UNAVAILABLE, "the server shuts down")
        self.lose()

    def fail(self, code: ErrorCode, problem: str) -> None:
        if self.closed:
            return
        if code is not ErrorCode.NO_ERROR:
            self._warnings.warn("gRPC connection ended", self._now, code=code.name, problem=problem, peer=self._peer)
        self.lose()
        refusing_above = self._incoming.refusing_above  # must not increase once it is sent
        last_id = self.calls.last_id if refusing_above is None else refusing_above
        self.out.append(goaway_frame(last_id, code, problem))

    def lose(self) -> None:
        """Close all calls after the end of the connection; many calls are closed over several iterations."""
        self.closed = True
        self._rest = b""
        for stream in list(islice(self._streams.values(), MOST_ENDINGS)):
            self.calls.drop(stream)
        if self._streams:
            self._host.after(0, self.lose)

    def check(self, now: float) -> float:
        """End stalled calls, and enforce deadlines of the peer; return the seconds until the next check."""
        limits, received_at = self._limits, self._now
        has_more = self.calls.sweep(now)
        if self._streams or self.calls.last_id != self._last_id_seen:
            self._last_id_seen = self.calls.last_id
            self._idle_since = now
        if self._ping_due is not None and received_at >= self._ping_due - limits.keepalive_timeout_seconds:
            self._ping_due = None  # any frame is a sign of life
        if self._ping_due is None and now >= received_at + limits.keepalive_seconds:
            self.out.append(frame(PING, 0, 0, _KEEPALIVE))
            self._ping_due = now + limits.keepalive_timeout_seconds
        dues = [(self._idle_since + limits.idle_seconds, ErrorCode.NO_ERROR, "no streams for a long time")]
        if self._ping_due is not None:
            dues.append((self._ping_due, ErrorCode.NO_ERROR, "no answer to PING in time"))
        if not self._incoming.acknowledged:
            due = self._started_at + limits.settings_seconds
            dues.append((due, ErrorCode.SETTINGS_TIMEOUT, "no acknowledgement of SETTINGS in time"))
        if not self._incoming.settings_seen:
            due = self._started_at + limits.preface_seconds
            dues.append((due, ErrorCode.PROTOCOL_ERROR, "no preface and SETTINGS in time"))
        due, code, problem = min(dues)
        if now >= due:
            self.fail(code, problem)
        if has_more:
            return 0.0
        if self._ping_due is None:
            due = min(due, received_at + limits.keepalive_seconds)
        most = min(min(limits.stall_seconds, limits.write_stall_seconds) / _CHECKS, _MOST_SECONDS)
        return min(max(due - now, 0.0), most)

    def _frames(self, data: bytes, is_over: Callable[[], bool] = _never) -> int:
        """Handle complete frames until `is_over`; return the index after the last one."""
        streams = self._streams
        windows = self._windows
        unpack = MESSAGE_HEAD.unpack_from
        most_fast = min(MIN_MAX_FRAME, self._limits.max_message_bytes + PREFIX_BYTES)
        at, end, now = 0, len(data), self._now
        viewed: dict[int, int] = {}  # stream -> bytes of this read that it keeps views of
        count = 0
        while end - at >= HEAD_BYTES:
            count += 1
            if count > _FEW_FRAMES and is_over():
                self._has_turn = False
                break
            if end - at >= _FAST_BYTES:
                high, low, kind, flags, stream_id, compressed, size = unpack(data, at)
                length = low | high << 16
                stop = at + HEAD_BYTES + length
                if (
                    kind == DATA
                    and not flags
                    and stop <= end
                    and size == length - PREFIX_BYTES
                    and not compressed
                    and (stream := streams.get(stream_id)) is not None
                    and stream.ready
                    and self._plain
                    and length <= stream.receive_window
                    and length <= windows.receive_window
                    and length <= most_fast
                ):  # a complete message of a stream that is ready
                    stream.received_at = now
                    stream.receive_window -= length
                    windows.receive_window -= length
                    self.calls.deliver(stream, data[at + _FAST_BYTES : stop])
                    if stream.receive_window < windows.stream_low or windows.receive_window < windows.receive_low:
                        self._give_back(stream)
                    at = stop
                    continue
            else:
                high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
                length = low | high << 16
                stop = at + HEAD_BYTES + length
            if length > MIN_MAX_FRAME:
                raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if stop > end:
                break
            if kind == DATA and length >= _VIEW_BYTES:
                payload: bytes | memoryview = memoryview(data)[at + HEAD_BYTES : stop]
                viewed[stream_id] = viewed.get(stream_id, 0) + length
            else:
                payload = data[at + HEAD_BYTES : stop]
            self._frame(kind, flags, stream_id & _ID_MASK, payload)
            at = stop
        if viewed and 2 * sum(viewed.values()) < end:
            self._copy_views(viewed)
        return at

    def _copy_views(self, viewed: Iterable[int]) -> None:
        """Copy the pieces that streams keep, if they are a small part of the read that the views keep alive."""
        for stream_id in viewed:
            stream = self._streams.get(stream_id & _ID_MASK)
            if stream is not None:
                stream.inbox.own()

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        if not self._streams and self.finished:  # the rest of this read is ignored
            self.lose()
            return
        try:
            self._incoming.frame(kind, flags, stream_id, payload, self._now)
        except ResetError as fault:
            self._faults.spend(self._now)
            stream = self._streams.get(fault.stream_id)
            if stream is not None:
                self.calls.reset(stream, fault.code)
            else:
                self.out.append(rst_stream_frame(fault.stream_id, fault.code))
                if fault.stream_id <= self.calls.last_id:
                    self.calls.record_closed(fault.stream_id, by_us=True)
        self._plain = self._incoming.takes_data

    def _give_back(self, stream: Stream) -> None:
        if stream.id in self._streams:
            self._windows.consumed(stream)
        else:
            self._windows.give_back()

    def _complete_first(self, data: bytes) -> bytes:
        """Handle the frame that began in an earlier read if it is complete now; return the bytes after it."""
        rest = self._rest
        if len(rest) < HEAD_BYTES:
            missing = HEAD_BYTES - len(rest)
            rest, data = rest + data[:missing], data[missing:]
            if len(rest) < HEAD_BYTES:
                self._rest = rest
                return data
        high, low = _LENGTH.unpack_from(rest)
        missing = HEAD_BYTES + (low | high << 16) - len(rest)
        self._rest = rest + data[:missing]
        if missing <= len(data):
            whole, self._rest = self._rest, b""
            self._frames(whole)
        elif (low | high << 16) > MIN_MAX_FRAME:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "a frame that is too large")
        return data[missing:]

    def _check_preface(self, data: bytes) -> bytes:
        preface = self._preface
        size = min(len(preface), len(data))
        if data[:size] != preface[:size]:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface = preface[size:]
        return data[size:]
