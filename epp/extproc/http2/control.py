# SPDX-License-Identifier: Apache-2.0
"""Frames about the connection itself: SETTINGS, PING and GOAWAY, and the deadlines of the peer."""

from struct import Struct
from typing import Final

from epp.extproc.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    MAX_MAX_FRAME,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MIN_MAX_FRAME,
    PING,
    SETTINGS,
    Setting,
    frame,
    goaway_frame,
    settings_frame,
    window_update_frame,
)
from epp.extproc.http2.limits import Budget, Limits
from epp.extproc.http2.status import ErrorCode, GoawayError
from epp.extproc.http2.streams import Stream, StreamTable
from epp.extproc.http2.windows import LARGEST_FRAME, Receiving, Sending

_SETTING: Final = Struct(">HL")
_PING_BYTES: Final = 8
_KEEPALIVE: Final = b"epp-live"
_DRAIN: Final = b"epp-last"


class Control:
    """Handles SETTINGS, PING and GOAWAY of both sides; call `overdue` at the time of `next_due`."""

    def __init__(self, sending: Sending, receiving: Receiving, table: StreamTable, limits: Limits, now: float) -> None:
        self._sending = sending
        self._receiving = receiving
        self._table = table
        self._limits = limits
        self._pings = Budget(limits.pings, "PING frames")
        self._settings = Budget(limits.settings, "SETTINGS frames")
        self._started_at = self._idle_since = now
        self._last_id_seen = 0
        self._windows = (0, 0)  # at the last PING; data changes them
        self.settings_seen = False
        self.settings_due: float | None = None
        """Deadline for the acknowledgement of our SETTINGS; None after it."""
        self.going_away = False
        """Whether the peer was asked to open no more streams; streams already on the way are served."""
        self.refusing_above: int | None = None
        """The last stream that is served; None for no limit."""
        self.peer_going_away = False
        self.ping_due: float | None = None
        """Deadline for the answer to a keepalive PING."""

    def greet(self, now: float) -> None:
        """Send our SETTINGS."""
        limits = self._limits
        values = {
            Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        if limits.max_frame_bytes != MIN_MAX_FRAME:
            values[Setting.MAX_FRAME_SIZE] = limits.max_frame_bytes
        self._sending.out.append(settings_frame(values))
        self._sending.out.append(window_update_frame(0, limits.connection_window - DEFAULT_WINDOW))
        self.settings_due = now + limits.settings_seconds

    def on_settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> list[Stream]:
        """Apply the peer's SETTINGS; return the streams whose outbox is empty now."""
        if stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with a payload")
            self.settings_due = None
            return []
        if len(payload) % _SETTING.size:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        self._settings.spend(now)
        self.settings_seen = True
        values: dict[int, int] = {}
        for key, value in _SETTING.iter_unpack(payload):
            _check(key, value)
            values[key] = value  # the last of several values counts
        self._sending.out.append(frame(SETTINGS, ACK, 0))
        return self._apply(values)

    def on_ping(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Answer a PING, or handle the answer to ours."""
        if stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong length")
        if not flags & ACK:
            windows = self._sending.window, self._receiving.window
            if windows == self._windows:
                self._pings.spend(now)
            self._windows = windows
            self._sending.out.append(frame(PING, ACK, 0, payload))
        elif payload == _DRAIN and self.going_away:
            self.last_call()

    def on_goaway(self, stream_id: int, payload: bytes) -> None:
        """Record that the peer opens no more streams."""
        if stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _PING_BYTES:
            raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self.peer_going_away = True

    def ask_alive(self, now: float) -> None:
        """Send a keepalive PING."""
        self._sending.out.append(frame(PING, 0, 0, _KEEPALIVE))
        self.ping_due = now + self._limits.keepalive_timeout_seconds

    def go_away(self) -> None:
        """Ask the peer to open no more streams, and send a PING: its answer follows the last stream."""
        if not self.going_away:
            self.going_away = True
            self._sending.out.append(goaway_frame(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._sending.out.append(frame(PING, 0, 0, _DRAIN))

    def last_call(self) -> None:
        """Send the number of the last stream that is served."""
        if self.refusing_above is None:
            self.going_away = True
            self.refusing_above = self._table.last_id
            self._sending.out.append(goaway_frame(self._table.last_id, ErrorCode.NO_ERROR))

    def overdue(self, now: float, heard_at: float) -> GoawayError | None:
        """Return why the connection must end, or None; send a keepalive PING if one is due."""
        limits = self._limits
        if self._table.open or self._table.last_id != self._last_id_seen:
            self._last_id_seen = self._table.last_id
            self._idle_since = now
        if self.ping_due is not None and heard_at >= self.ping_due - limits.keepalive_timeout_seconds:
            self.ping_due = None  # any frame is a sign of life
        if not self.settings_seen and now >= self._started_at + limits.preface_seconds:
            return GoawayError(ErrorCode.PROTOCOL_ERROR, "no preface and SETTINGS in time")
        if self.settings_due is not None and now >= self.settings_due:
            return GoawayError(ErrorCode.SETTINGS_TIMEOUT, "no acknowledgement of SETTINGS in time")
        if self.ping_due is not None and now >= self.ping_due:
            return GoawayError(ErrorCode.NO_ERROR, "no answer to PING in time")
        if now >= self._idle_since + limits.idle_seconds:
            return GoawayError(ErrorCode.NO_ERROR, "no streams for a long time")
        if self.ping_due is None and now >= heard_at + limits.keepalive_seconds:
            self.ask_alive(now)
        return None

    def next_due(self, heard_at: float) -> float:
        """Return the time of the next check."""
        limits = self._limits
        dues = [
            heard_at + limits.keepalive_seconds if self.ping_due is None else self.ping_due,
            self._idle_since + limits.idle_seconds,
        ]
        if self.settings_due is not None:
            dues.append(self.settings_due)
        if not self.settings_seen:
            dues.append(self._started_at + limits.preface_seconds)
        return min(dues)

    def _apply(self, values: dict[int, int]) -> list[Stream]:
        sending = self._sending
        if Setting.HEADER_TABLE_SIZE in values:
            sending.drop_table()
        sending.max_frame = min(values.get(Setting.MAX_FRAME_SIZE, sending.max_frame), LARGEST_FRAME)
        if Setting.INITIAL_WINDOW_SIZE not in values:
            return []
        return sending.set_initial_window(values[Setting.INITIAL_WINDOW_SIZE], list(self._table.open.values()))


def _check(key: int, value: int) -> None:
    match key:
        case Setting.ENABLE_PUSH if value > 1:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        case Setting.INITIAL_WINDOW_SIZE if value > MAX_WINDOW:
            raise GoawayError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        case Setting.MAX_FRAME_SIZE if not MIN_MAX_FRAME <= value <= MAX_MAX_FRAME:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")
