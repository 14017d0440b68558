# SPDX-License-Identifier: Apache-2.0
"""Limits on the resources that all gateways together may use, and the current usage."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from epp.extproc.http2.limits import Account, BufferedBytes, Capacity, RateLimitedLog
from epp.extproc.settings import BudgetSettings
from epp.runtime.supervisor import within_limit

_STALL_SECONDS: Final = 1.0
"""A request without progress for this time may be evicted; most are complete within milliseconds."""
_PROGRESS_BYTES: Final = 16 * 1024
"""Bytes that count as progress."""
_EXTRA_STREAMS: Final = 8
"""One stream above the limit for each 8 below it is answered with a refusal; more are refused by gRPC."""
_REMEDIES: Final = {
    "connections": "--max-connections",
    "streams": "--max-streams",
    "pending_streams": "--max-pending-streams",
    "gathered_bytes": "--max-gathered-bytes",
}


class PendingStreams(Capacity):
    """Streams with an incomplete request, by gateway, the longest idle first.

    If there is no room, a new stream evicts the longest idle stream if that has been idle for a second. Otherwise, if
    its gateway has less than its share, it evicts the longest idle stream of the gateway with the most streams.
    """

    def __init__(self, name: str, limit: int, refused: Callable[[Capacity], None]) -> None:
        super().__init__(name, limit, refused)
        self._clock = time.monotonic
        self._moved_at: dict[str, dict[Claim, float]] = {}
        """Time of the last progress of each stream, by gateway; the oldest first."""

    def take_for(self, claim: "Claim", gateway: str) -> bool:
        """Count a stream if there is room, evicting a stalled one if necessary; return whether it is counted."""
        now = self._clock()
        if self.used >= self.limit:
            self.refuse()
            stalled = self._to_evict(gateway, now)
            if stalled is None:
                return False
            stalled.evict()
        self.used += 1
        self._moved_at.setdefault(gateway, {})[claim] = now
        return True

    def moved(self, claim: "Claim", gateway: str) -> None:
        streams = self._moved_at[gateway]
        del streams[claim]
        streams[claim] = self._clock()

    def remove(self, claim: "Claim", gateway: str) -> None:
        self.give_back()
        streams = self._moved_at[gateway]
        del streams[claim]
        if not streams:
            del self._moved_at[gateway]

    def _to_evict(self, gateway: str, now: float) -> "Claim | None":
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
    """The budgets and their current usage."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._warnings = RateLimitedLog()
        self.settings = settings
        # With more than half, descriptors would run out before idle connections are closed for new ones.
        self.connections = Capacity("connections", within_limit(settings.max_connections, 2), self._warn)
        self.streams = Capacity("streams", settings.max_streams, self._warn)
        self.pending = PendingStreams("pending_streams", settings.max_pending_streams, self._warn)
        self.gathered = BufferedBytes("gathered_bytes", settings.gathered_bytes, self._warn)
        limit = settings.max_streams
        self.most_streams = limit + max(limit // _EXTRA_STREAMS, 1)
        """Number of streams from which new ones get no session, not even for a refusal."""
        self.timeouts = 0
        """Requests that timed out before their body was complete."""

    def __iter__(self) -> Iterator[Capacity]:
        return iter((self.connections, self.streams, self.pending, self.gathered))

    def _warn(self, capacity: Capacity) -> None:
        flag = _REMEDIES[capacity.name]
        self._warnings.warn(
            "budget used up",
            time.monotonic(),
            budget=capacity.name,
            limit=capacity.limit,
            remedy=f"find the gateway or client that uses most of it, or raise {flag}",
        )


class Claim:
    """The share of one stream in the budgets."""

    __slots__ = ("_budgets", "_gateway", "_is_pending", "_new_bytes", "account", "evicted", "lack")

    def __init__(self, budgets: Budgets, account: Account, gateway: str = "") -> None:
        """Count a stream of the host `gateway`, even above a limit; `lack` is then the exhausted budget."""
        self._budgets = budgets
        self._gateway = gateway
        self._new_bytes = 0
        self.evicted = False
        """Whether it was ended to make room for another stream with an incomplete request."""
        self.account = account
        self.lack: Capacity | None = None
        """The exhausted budget: the stream must be refused."""
        streams = budgets.streams
        if streams.used >= streams.limit:
            streams.refuse()
            self.lack = streams
        streams.used += 1
        self._is_pending = self.lack is None and budgets.pending.take_for(self, gateway)
        if self.lack is None and not self._is_pending:
            self.lack = budgets.pending

    def complete(self) -> None:
        """Stop counting the stream as pending: its request is complete or refused."""
        if self._is_pending:
            self._is_pending = False
            self._budgets.pending.remove(self, self._gateway)

    def progressed(self, size: int) -> None:
        self._new_bytes += size
        if self._new_bytes >= _PROGRESS_BYTES and self._is_pending:
            self._new_bytes = 0
            self._budgets.pending.moved(self, self._gateway)

    def evict(self) -> None:
        self.evicted = True
        self.complete()
        self.account.evict()

    def timed_out(self) -> None:
        self._budgets.timeouts += 1

    def close(self) -> None:
        """Release everything except the account, which the carrier closes; call once."""
        self.complete()
        self._budgets.streams.give_back()
