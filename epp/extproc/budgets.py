# SPDX-License-Identifier: Apache-2.0
"""Limits on the resources that all gateways together may use, and the current usage."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from epp.extproc.http2.capacity import Account, BufferedBytes, Capacity
from epp.extproc.http2.rate_limited_log import RateLimitedLog
from epp.runtime.process import gateway_connections

_STALL_SECONDS: Final = 1.0
"""A request with fewer bytes than this after so long may be evicted; most are complete within milliseconds."""
_PROGRESS_BYTES: Final = 16 * 1024
"""So much counts as progress: less in a second is a client that stalls."""
_MIB: Final = 1024 * 1024
DEFAULT_GATHERED_BYTES: Final = 256 * _MIB
_LARGEST_BODIES: Final = 2
"""So many of the largest body have to fit."""
_EXTRA_STREAMS: Final = 8
"""Streams above the limit, one for so many below it, are answered with a refusal; beyond these, gRPC refuses."""
_REMEDIES: Final = {
    "connections": "--max-connections",
    "streams": "--max-streams",
    "pending_streams": "--max-pending-streams",
    "gathered_bytes": "--max-gathered-bytes",
}


def least_gathered_bytes(body_bytes: int) -> int:
    """Return the least limit of gathered bytes under which a body of this size always fits."""
    return _LARGEST_BODIES * body_bytes


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """Limits of what gateways may take."""

    max_connections: int = 4096
    """Half of the file descriptors of this process at most."""
    max_streams: int = 65_536
    """Of all connections together."""
    max_streams_per_connection: int = 16_384
    max_pending_streams: int = 16_384
    """Streams whose request is not complete."""
    max_gathered_bytes: int = DEFAULT_GATHERED_BYTES
    """Of all bodies that come in, and of what gateways do not read."""
    body_timeout_seconds: float = 60.0
    """Longest time without another byte of a request that has begun; infinite for no limit."""


class PendingStreams(Capacity):
    """Streams with an incomplete request, by gateway, the longest idle first.

    Where there is no room, the one that stalls longest gives way, if it has stalled for a second. If none has, and the
    gateway that asks holds less than its share, the longest stalled one of the gateway that holds most does.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        refused: Callable[[Capacity], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, limit, refused)
        self._clock = clock
        self._moved_at: dict[str, dict[Claim, float]] = {}
        """When something came last, by gateway."""

    def take_for(self, claim: "Claim", gateway: str) -> bool:
        """Count a stream if there is room, evicting a stalled one if necessary; return whether it is counted."""
        now = self._clock()
        if self.used >= self.limit:
            self.refuse()
            stalled = self._to_give_way(gateway, now)
            if stalled is None:
                return False
            stalled.give_way()
        self.used += 1
        self._moved_at.setdefault(gateway, {})[claim] = now
        return True

    def moved(self, claim: "Claim", gateway: str) -> None:
        """Note that a part of a stream's request has come."""
        streams = self._moved_at[gateway]
        del streams[claim]
        streams[claim] = self._clock()

    def remove(self, claim: "Claim", gateway: str) -> None:
        """Count a stream no more."""
        self.give_back()
        streams = self._moved_at[gateway]
        del streams[claim]
        if not streams:
            del self._moved_at[gateway]

    def _to_give_way(self, gateway: str, now: float) -> "Claim | None":
        if not self._moved_at:
            return None
        oldest = (next(iter(streams.items())) for streams in self._moved_at.values())
        claim, moved_at = min(oldest, key=lambda entry: entry[1])
        if now - moved_at >= _STALL_SECONDS:
            return claim
        share = self.limit // len({*self._moved_at, gateway})
        if len(self._moved_at.get(gateway, ())) >= share:
            return None
        _, largest = max((len(streams), name) for name, streams in self._moved_at.items())
        return next(iter(self._moved_at[largest]))


class Budgets:
    """What is in use."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._complaints = RateLimitedLog()
        self.settings = settings
        self.connections = Capacity("connections", gateway_connections(settings.max_connections), self._say)
        self.streams = Capacity("streams", settings.max_streams, self._say)
        self.pending = PendingStreams("pending_streams", settings.max_pending_streams, self._say)
        self.gathered = BufferedBytes("gathered_bytes", settings.max_gathered_bytes, self._say)
        limit = settings.max_streams
        self.most_streams = limit + max(limit // _EXTRA_STREAMS, 1)
        """The number of streams from which on none is opened, not even to be refused with words."""
        self.timeouts = 0
        """Requests that were given up as nothing more of them came."""

    def __iter__(self) -> Iterator[Capacity]:
        """Yield each budget."""
        return iter((self.connections, self.streams, self.pending, self.gathered))

    def _say(self, capacity: Capacity) -> None:
        flag = _REMEDIES[capacity.name]
        self._complaints.warn(
            "budget used up",
            time.monotonic(),
            budget=capacity.name,
            limit=capacity.limit,
            remedy=f"find out which gateway or client takes so much, or raise {flag}",
        )


class Claim:
    """What one stream takes of the budgets."""

    __slots__ = ("_budgets", "_gateway", "_is_pending", "_new_bytes", "account", "gave_way", "lack")

    def __init__(self, budgets: Budgets, account: Account, gateway: str = "") -> None:
        """Count a stream: there must be one for it, though it may be above the limit, and then lacks something.

        `gateway` is the host that the stream comes from.
        """
        self._budgets = budgets
        self._gateway = gateway
        self._new_bytes = 0
        self.gave_way = False
        """Whether it had to make room for another stream whose request is not complete."""
        self.account = account
        self.lack: Capacity | None = None
        """The budget in which there was no room for the stream, which is to be refused."""
        streams = budgets.streams
        if streams.used >= streams.limit:
            streams.refuse()
            self.lack = streams
        streams.used += 1
        self._is_pending = self.lack is None and budgets.pending.take_for(self, gateway)
        if self.lack is None and not self._is_pending:
            self.lack = budgets.pending

    @staticmethod
    def without_limits() -> "Claim":
        """Return a claim on budgets of its own."""
        most = 2**62
        budgets = Budgets(BudgetSettings(most, most, most, most, most, math.inf))
        return Claim(budgets, budgets.gathered.account())

    def complete(self) -> None:
        """Count the stream as pending no more: its request is complete, or needs no more."""
        if self._is_pending:
            self._is_pending = False
            self._budgets.pending.remove(self, self._gateway)

    def progressed(self, size: int) -> None:
        """Note that so many bytes of the request have come."""
        self._new_bytes += size
        if self._new_bytes >= _PROGRESS_BYTES and self._is_pending:
            self._new_bytes = 0
            self._budgets.pending.moved(self, self._gateway)

    def give_way(self) -> None:
        """Count the stream as pending no more, and have it ended."""
        self.gave_way = True
        self.complete()
        self.account.give_way()

    def timed_out(self) -> None:
        """Count that nothing more of the request came in time."""
        self._budgets.timeouts += 1

    def close(self) -> None:
        """Give everything back, but the account, which the carrier closes; to be called once."""
        self.complete()
        self._budgets.streams.give_back()
