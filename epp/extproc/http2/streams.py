# SPDX-License-Identifier: Apache-2.0
"""Streams of one connection: those that are open, and what is remembered of those that were."""

from enum import IntEnum
from typing import Final

from epp.extproc.http2.capacity import Account
from epp.extproc.http2.inbox import Inbox
from epp.extproc.http2.limits import Budget
from epp.extproc.http2.service import Call, Cancellable

_REMEMBERED: Final = 4096
_UNDER_WAY: Final = 8
"""Frames that a client may have sent before it knows that we have ended a stream."""


class Stream:
    """One stream that is not closed in both directions."""

    __slots__ = (
        "account",
        "call",
        "counted",
        "deadline",
        "ending",
        "half_closed",
        "headers_sent",
        "heard_at",
        "held",
        "id",
        "inbox",
        "length_left",
        "outbox",
        "ready",
        "receive_window",
        "refusal",
        "remote_ended",
        "send_window",
        "silence",
        "stuck",
        "unsent",
        "waiting",
    )

    def __init__(
        self, stream_id: int, inbox: Inbox, account: Account, *, receive_window: int, send_window: int, now: float
    ) -> None:
        self.id = stream_id
        self.call: Call | None = None
        """None before it is opened and after it is closed."""
        self.ready = False
        """Whether the next message can be delivered as it arrives: nothing waits before it, and nothing is to be
        checked beside it."""
        self.inbox = inbox
        self.account = account
        self.counted = 0
        """Bytes of the inbox and the outbox that are on the account."""
        self.heard_at = now
        """When bytes of it came last."""
        self.unsent = 0
        """Bytes in the outbox."""
        self.stuck: tuple[int, float] | None = None
        """Bytes in the outbox when it was looked at, and since when they are so many."""
        self.outbox: list[memoryview] = []
        """Bytes that the peer's windows do not allow yet."""
        self.ending: bytes | None = None
        """The trailers that follow the outbox; empty for none, None before the end is known."""
        self.refusal: tuple[bytes, bytes] | None = None
        """Headers and body that answer a request of another protocol."""
        self.receive_window = receive_window
        self.send_window = send_window
        self.headers_sent = False
        self.remote_ended = False
        self.half_closed = False
        """Whether the call knows that the client sends no more."""
        self.held = 0
        """Bytes in the inbox that are not counted as consumed."""
        self.length_left: int | None = None
        """Bytes that are to come by content-length; None without one."""
        self.waiting: Cancellable | None = None
        self.deadline: Cancellable | None = None
        self.silence: Cancellable | None = None

    def count(self) -> None:
        """Have what waits on the account, room or not."""
        waiting = self.inbox.size + self.unsent
        if waiting != self.counted:
            self.account.put(waiting - self.counted)
            self.counted = waiting

    @property
    def blocked(self) -> bool:
        """Whether messages must wait: for an answer, for the peer to take those before, or for ever."""
        return self.call is None or self.waiting is not None or bool(self.outbox)


class Fate(IntEnum):
    """State of a stream that is not open."""

    IDLE = 0
    ENDED = 1
    """Both sides ended it."""
    RESET = 2
    """The peer reset it."""
    ABANDONED = 3
    """We reset it: the peer may not know yet."""
    FORGOTTEN = 4
    """It was closed, or passed over, long ago."""


class StreamTable:
    """Open streams by number, and the fates of the last few thousand closed ones."""

    def __init__(self, strays: Budget) -> None:
        self.strays = strays
        """Frames on closed streams that are put up with."""
        self.open: dict[int, Stream] = {}
        self.last_id = 0
        """The highest number that the peer has used."""
        self._fates: dict[int, int] = {}  # place in a ring -> number and fate

    def add(self, stream: Stream) -> None:
        """Take in a new stream, whose number is higher than any before."""
        self.last_id = stream.id
        self.open[stream.id] = stream

    def remove(self, stream: Stream, fate: Fate) -> None:
        """Forget all of it but its fate."""
        del self.open[stream.id]
        self.note(stream.id, fate)

    def note(self, stream_id: int, fate: Fate) -> None:
        """Remember how a stream was closed."""
        if fate is Fate.ABANDONED:
            self.strays.expect(_UNDER_WAY, most=_UNDER_WAY * _REMEMBERED)
        self._fates[(stream_id >> 1) % _REMEMBERED] = stream_id << 3 | fate

    def fate(self, stream_id: int) -> Fate:
        """Return the fate of a stream that is not open."""
        if stream_id > self.last_id:
            return Fate.IDLE
        noted = self._fates.get((stream_id >> 1) % _REMEMBERED, 0)
        return Fate(noted & 7) if noted >> 3 == stream_id else Fate.FORGOTTEN
