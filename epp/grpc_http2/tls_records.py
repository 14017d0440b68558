# SPDX-License-Identifier: Apache-2.0
"""Where the records of TLS end in the bytes of a connection, however these are cut."""

from typing import Final

_HEAD_BYTES: Final = 5


class TlsRecords:
    """Follows the records, which may be encrypted: their heads are not."""

    __slots__ = ("_head", "_left", "ended")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # bytes of the record that is coming
        self.ended = 0
        """How many records have ended in what was taken last."""

    def take(self, data: bytes, at: int, most: int) -> int:
        """Go on from this place in `data`, to the end of so many records at `most`; return the place behind them."""
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
