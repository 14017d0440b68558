# SPDX-License-Identifier: Apache-2.0
"""Deadlines of a peer: to greet, acknowledge settings, answer pings, and use the connection."""

from epp.extproc.http2.control import Control
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.status import ErrorCode, GoawayError
from epp.extproc.http2.streams import StreamTable


class Liveness:
    """Call `overdue` by the time of `next_due`."""

    def __init__(self, control: Control, table: StreamTable, limits: Limits, now: float) -> None:
        self._control = control
        self._table = table
        self._limits = limits
        self._started = now
        self._idle_since = now
        self._last_id_seen = 0

    def overdue(self, now: float, heard_at: float) -> GoawayError | None:
        """Return why the connection is to end, if it is; send a keepalive PING if one is due."""
        limits, control = self._limits, self._control
        if self._table.open or self._table.last_id != self._last_id_seen:
            self._last_id_seen = self._table.last_id
            self._idle_since = now
        if control.ping_due is not None and heard_at >= control.ping_due - limits.keepalive_timeout_seconds:
            control.ping_due = None  # any frame is a sign of life
        if not control.settings_seen and now >= self._started + limits.preface_seconds:
            return GoawayError(ErrorCode.PROTOCOL_ERROR, "no preface and SETTINGS in time")
        if control.settings_due is not None and now >= control.settings_due:
            return GoawayError(ErrorCode.SETTINGS_TIMEOUT, "no acknowledgement of SETTINGS in time")
        if control.ping_due is not None and now >= control.ping_due:
            return GoawayError(ErrorCode.NO_ERROR, "no answer to PING in time")
        if now >= self._idle_since + limits.idle_seconds:
            return GoawayError(ErrorCode.NO_ERROR, "no streams for a long time")
        if control.ping_due is None and now >= heard_at + limits.keepalive_seconds:
            control.ask_alive(now)
        return None

    def next_due(self, heard_at: float) -> float:
        """Return the time of the next check."""
        limits, control = self._limits, self._control
        dues = [
            heard_at + limits.keepalive_seconds if control.ping_due is None else control.ping_due,
            self._idle_since + limits.idle_seconds,
        ]
        if control.settings_due is not None:
            dues.append(control.settings_due)
        if not control.settings_seen:
            dues.append(self._started + limits.preface_seconds)
        return min(dues)
