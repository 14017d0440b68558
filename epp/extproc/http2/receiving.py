# SPDX-License-Identifier: Apache-2.0
"""Receive windows of a connection and its streams: returned as data is consumed, half a window at a time."""

from epp.extproc.http2.frames import window_update_frame
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.sending import Sending
from epp.extproc.http2.streams import Stream


class Receiving:
    """Counts bytes that came on all streams; those that a stream holds back are not given back."""

    def __init__(self, sending: Sending, limits: Limits) -> None:
        self._sending = sending
        self._limits = limits
        self.low = limits.connection_window // 2
        """Level below which the window is given back."""
        self.stream_low = limits.stream_window // 2
        self.window = limits.connection_window
        """Bytes that the peer may send on all streams."""
        self._held = 0

    def account(self, stream: Stream) -> None:
        """Give back what an open stream has consumed."""
        held = stream.inbox.size if stream.blocked else 0
        self._held += held - stream.held
        stream.held = held
        most = self._limits.stream_window
        if stream.receive_window + held < self.stream_low and not stream.remote_ended:
            self._sending.out.append(window_update_frame(stream.id, most - held - stream.receive_window))
            stream.receive_window = most - held
        self.give_back()

    def release(self, stream: Stream) -> None:
        """Count what a closed stream held as consumed."""
        self._held -= stream.held
        stream.held = 0
        self.give_back()

    def give_back(self) -> None:
        """Widen the connection's window if half of what is not held back has been consumed."""
        room = self._limits.connection_window - self._held
        if 2 * self.window <= room and self.window < room:
            self._sending.out.append(window_update_frame(0, room - self.window))
            self.window = room
