# SPDX-License-Identifier: Apache-2.0
"""Limits on what one peer may make a connection hold, do or log."""

from dataclasses import dataclass, field

import structlog

from epp.extproc.http2.status import ErrorCode, GoawayError


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of events at once, and as many more a second as are refilled."""

    burst: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Constants of a server. Floods end the connection with ENHANCE_YOUR_CALM."""

    max_message_bytes: int = 4 * 1024 * 1024
    """A larger gRPC message ends its stream with RESOURCE_EXHAUSTED."""
    max_sent_message_bytes: int = 2**31 - 1
    """The same for an answer."""
    max_streams: int = 16_384
    """Streams that one connection may have open; a further one is refused, and the peer may try it elsewhere."""
    stream_window: int = 1024 * 1024
    """Bytes of one stream that may wait to be processed."""
    connection_window: int = 16 * 1024 * 1024
    """Bytes of all streams of a connection that may wait to be processed."""
    max_frame_bytes: int = 16_384
    max_header_list_bytes: int = 16_384
    max_header_block_bytes: int = 32_768
    max_continuations: int = 16
    metadata_names: frozenset[str] = frozenset()
    """Request headers, in lower case, that calls are told; nothing is kept of others."""
    write_buffer_bytes: int = 256 * 1024
    """Bytes that may wait in the transport before reading pauses."""
    preface_seconds: float = 10.0
    """For the client's preface and SETTINGS."""
    handshake_seconds: float = 10.0
    """For TLS."""
    max_handshakes: int = 256
    """Unfinished ones at a time; for a further one the oldest is given up."""
    settings_seconds: float = 30.0
    """For the acknowledgement of SETTINGS."""
    keepalive_seconds: float = 60.0
    """A peer that was silent so long gets a PING."""
    keepalive_timeout_seconds: float = 20.0
    """For the answer to it."""
    idle_seconds: float = 7200.0
    """A connection without streams for so long is closed."""
    stall_seconds: float = 60.0
    """For the next bytes of a message that has begun, or of a call that awaits more; infinite for no limit."""
    write_stall_seconds: float = 60.0
    """A peer that reads nothing for so long while there is something to read is cut off, and so is a stream."""
    pings: Rate = Rate(100, 20)
    """Beyond one for each time that data was sent or received: clients measure the bandwidth by pings."""
    settings: Rate = Rate(50, 5)
    resets: Rate = Rate(2000, 500)
    """Streams that the client resets before it got any answer."""
    strays: Rate = Rate(2000, 500)
    """Frames on streams that are closed, beyond those that may be under way as we end a stream; and streams that break
    a rule."""
    empty_frames: Rate = Rate(1000, 100)
    """DATA without bytes or end."""
    empty_records: Rate = Rate(200, 20)
    """TLS records without data: one that renews the keys is more work than most messages."""
    priorities: Rate = Rate(2000, 200)
    small_updates: Rate = Rate(10_000, 20_000)
    """WINDOW_UPDATE by less than 1 KiB; larger ones are limited by the size of a window."""


class Budget:
    """Counts one kind of event against its rate."""

    __slots__ = ("_expected", "_kind", "_left", "_rate", "_spent_at")

    def __init__(self, rate: Rate, kind: str) -> None:
        self._rate = rate
        self._kind = kind
        self._left = float(rate.burst)
        self._expected = 0
        self._spent_at = 0.0

    def allows(self, now: float) -> bool:
        """Count one event; return whether that is not too many."""
        if self._expected:
            self._expected -= 1
            return True
        earned = (now - self._spent_at) * self._rate.per_second
        self._spent_at = now
        self._left = min(self._left + earned, float(self._rate.burst))
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def spend(self, now: float) -> None:
        """Count one event; raises GoawayError when there are too many."""
        if not self.allows(now):
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._kind}")

    def expect(self, events: int, most: int) -> None:
        """Allow for events that are to come, `most` at a time, before the rate counts."""
        self._expected = min(self._expected + events, most)


_log = structlog.get_logger()

_OF_ONE = Rate(20, 0.2)
_OF_ALL = Rate(200, 2)
_MOST_HOSTS = 256


@dataclass(slots=True)
class _OfHost:
    budget: Budget = field(default_factory=lambda: Budget(_OF_ONE, "warnings"))
    left_out: int = 0


class RateLimitedLog:
    """Shared by the connections of a server; each host has a budget of its own."""

    def __init__(self) -> None:
        self._all = Budget(_OF_ALL, "warnings")
        self._hosts: dict[str, _OfHost] = {}  # the one of the last warning last
        self._forgotten = 0

    def warn(self, event: str, now: float, *, peer: str = "", **fields: object) -> None:
        """Log a warning about a peer, `host:port`, or count it for the next one about the same host that is logged."""
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
