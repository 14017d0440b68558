# SPDX-License-Identifier: Apache-2.0
"""Limits on the memory, work and log lines that one peer may cause, and on the resources of all peers together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import structlog

from epp.extproc.http2.service import ErrorCode, GoawayError

_log = structlog.get_logger()
_MOST_HOSTS = 256


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket of `burst` events, refilled by `per_second`."""

    burst: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each connection of a server. Floods end the connection with ENHANCE_YOUR_CALM."""

    max_message_bytes: int = 4 * 1024 * 1024
    """A larger gRPC message ends its stream with RESOURCE_EXHAUSTED."""
    max_sent_message_bytes: int = 2**31 - 1
    """Largest answer; a larger one ends its stream with RESOURCE_EXHAUSTED."""
    max_streams: int = 16_384
    """Open streams of one connection; more are refused with REFUSED_STREAM, so the peer may retry."""
    stream_window: int = 1024 * 1024
    """Unprocessed bytes of one stream."""
    connection_window: int = 16 * 1024 * 1024
    """Unprocessed bytes of all streams of a connection."""
    max_header_list_bytes: int = 16_384
    max_header_block_bytes: int = 32_768
    max_continuations: int = 16
    metadata_names: frozenset[str] = frozenset()
    """Request headers, in lower case, that calls can read."""
    write_buffer_bytes: int = 256 * 1024
    """Unwritten bytes above which reading pauses."""
    preface_seconds: float = 10.0
    """Timeout for the client's preface and SETTINGS."""
    handshake_seconds: float = 10.0
    """Timeout for the TLS handshake."""
    max_handshakes: int = 256
    """Unfinished TLS handshakes; one more ends the oldest."""
    settings_seconds: float = 30.0
    """Timeout for the acknowledgement of SETTINGS."""
    keepalive_seconds: float = 60.0
    """Silence after which the peer gets a PING."""
    keepalive_timeout_seconds: float = 20.0
    """Timeout for the answer to that PING."""
    idle_seconds: float = 7200.0
    """Time without streams after which a connection is closed."""
    stall_seconds: float = 60.0
    """Timeout for the next bytes of an incomplete message or call; infinite for no limit."""
    write_stall_seconds: float = 60.0
    """Time after which a connection or stream is closed if the peer does not read its data."""
    pings: Rate = Rate(100, 20)
    """PING frames without data in between: clients measure bandwidth by pings after data."""
    settings: Rate = Rate(50, 5)
    resets: Rate = Rate(2000, 500)
    """Streams that the client resets before an answer."""
    strays: Rate = Rate(2000, 500)
    """Frames on closed streams, except those sent before the client knew; and streams that violate the protocol."""
    empty_frames: Rate = Rate(1000, 100)
    """DATA frames without bytes and without END_STREAM."""
    empty_records: Rate = Rate(200, 20)
    """TLS records without data: a key update costs more than most messages."""
    priorities: Rate = Rate(2000, 200)
    small_updates: Rate = Rate(10_000, 20_000)
    """WINDOW_UPDATE frames of less than 1 KiB; the window limits larger ones."""


class Budget:
    """Counts one kind of event against its rate."""

    __slots__ = ("_expected", "_kind", "_left", "_rate", "_spent_at")

    def __init__(self, rate: Rate, kind: str) -> None:
        self._rate = rate
        self._kind = kind
        self._left = rate.burst
        self._expected = 0
        self._spent_at = 0.0

    def allows(self, now: float) -> bool:
        """Count one event; return whether it is within the rate."""
        if self._expected:
            self._expected -= 1
            return True
        earned = (now - self._spent_at) * self._rate.per_second
        self._spent_at = now
        self._left = min(self._left + earned, self._rate.burst)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def spend(self, now: float) -> None:
        """Count one event; raises GoawayError when there are too many."""
        if not self.allows(now):
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._kind}")

    def expect(self, events: int, most: int) -> None:
        """Exempt `events` future events from the rate, at most `most` in total."""
        self._expected = min(self._expected + events, most)


_OF_ONE = Rate(20, 0.2)
_OF_ALL = Rate(200, 2)


@dataclass(slots=True)
class _OfHost:
    budget: Budget = field(default_factory=lambda: Budget(_OF_ONE, "warnings"))
    left_out: int = 0


class RateLimitedLog:
    """Logs warnings about peers at a limited rate for each host and in total, so that no client can flood the log."""

    def __init__(self) -> None:
        self._all = Budget(_OF_ALL, "warnings")
        self._hosts: dict[str, _OfHost] = {}  # the most recent last
        self._forgotten = 0

    def warn(self, event: str, now: float, *, peer: str = "", **fields: object) -> None:
        """Log a warning about a peer, `host:port`; above the rate, count it for the next warning about the host."""
        host = peer.rpartition(":")[0]
        known = self._hosts.pop(host, None) or _OfHost()
        self._hosts[host] = known
        if len(self._hosts) > _MOST_HOSTS:
            self._forgotten += self._hosts.pop(next(iter(self._hosts))).left_out
        if not known.budget.allows(now) or not self._all.allows(now):
            known.left_out += 1
            return
        if peer:
            fields["peer"] = peer
        if known.left_out:
            fields["warnings_left_out"] = known.left_out
            known.left_out = 0
        if self._forgotten:
            fields["warnings_left_out_elsewhere"] = self._forgotten
            self._forgotten = 0
        _log.warning(event, **fields)


_WORTHWHILE_BYTES: Final = 4096
"""Holders of at least this size can be evicted."""
_SMALL_BYTES: Final = 64 * 1024
_RESERVED: Final = 8
"""One eighth of the bytes is reserved for small holders."""
GRACE_SECONDS: Final = 10.0
"""Holders younger than this are not evicted: most large bodies are complete by then."""


class Capacity:
    """A counter with a limit."""

    def __init__(self, name: str, limit: int, refused: Callable[["Capacity"], None] = lambda _: None) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.refusals = 0
        self._refused = refused

    def take(self) -> bool:
        """Count one more if there is room; return whether there was."""
        if self.used >= self.limit:
            self.refuse()
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        self.used -= 1

    def refuse(self) -> None:
        self.refusals += 1
        self._refused(self)


class BufferedBytes(Capacity):
    """Buffered bytes, counted on one account for each holder.

    If there is no room, the oldest large holder is evicted if it is older than `GRACE_SECONDS`; this affects slow
    senders and readers. A part of the room is reserved for small holders.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        refused: Callable[[Capacity], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, limit, refused)
        self._clock = clock
        self.room_for_all = limit - limit // _RESERVED
        """Above this number of bytes, only small holders have room."""
        self._holders: dict[Account, float] = {}  # large holders and since when; the oldest first

    def account(self) -> "Account":
        """Return a new account; close it after use."""
        return Account(self)

    def make_room(self, size: int, *, asker: "Account") -> bool:
        """Evict holders until there is room for `size` more bytes; return whether there is."""
        small = asker.size + size < _SMALL_BYTES
        limit = self.limit if small else self.room_for_all
        while self.used + size > limit:
            oldest = next((each for each in self._holders if each is not asker), None)
            self.refuse()
            if oldest is None or self._clock() - self._holders[oldest] < GRACE_SECONDS:
                return False
            oldest.evict()
        return True

    def hold(self, account: "Account") -> None:
        """Add an account to the large holders, or remove it."""
        if account.size < _WORTHWHILE_BYTES:
            self._holders.pop(account, None)
        elif account not in self._holders:
            self._holders[account] = self._clock()


class Account:
    """The bytes of one holder."""

    __slots__ = ("_bytes", "closed", "on_evict", "size")

    def __init__(self, held: BufferedBytes) -> None:
        self._bytes = held
        self.size = 0
        self.closed = False
        """Whether everything is released; further bytes are not counted."""
        self.on_evict: Callable[[], None] = nothing
        """Called once on eviction: the holder must release its bytes soon."""

    def add(self, size: int) -> bool:
        """Count more bytes if there is room; return whether they are counted."""
        held = self._bytes
        if self.closed:
            return False
        if held.used + size > held.room_for_all and not held.make_room(size, asker=self):
            return False
        self.put(size)
        return True

    def put(self, size: int) -> None:
        """Count `size` more bytes (fewer if negative) without a check of the limit."""
        if self.closed:
            return
        held = self._bytes
        held.used += size
        before, self.size = self.size, self.size + size
        if (before < _WORTHWHILE_BYTES) is not (self.size < _WORTHWHILE_BYTES):
            held.hold(self)

    def evict(self) -> None:
        """Close the account and make the holder release its bytes."""
        on_evict = self.on_evict
        self.close()
        on_evict()

    def close(self) -> None:
        """Release everything; only the first call has an effect."""
        if not self.closed:
            if self.size:
                self.put(-self.size)
            self.closed = True
            self.on_evict = nothing


def nothing() -> None:
    """Do nothing."""
