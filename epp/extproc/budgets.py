# SPDX-License-Identifier: Apache-2.0
"""What all gateways together may take of a picker: settings, and what is in use."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from epp.grpc_http2.capacity import Account, Capacity, HeldBytes
from epp.grpc_http2.complaints import Complaints

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
    max_streams: int = 65_536
    """Of all connections together."""
    max_streams_per_connection: int = 16_384
    max_pending_streams: int = 16_384
    """Streams whose request is not complete."""
    max_gathered_bytes: int = DEFAULT_GATHERED_BYTES
    """Of all bodies that come in, and of what gateways do not read."""
    body_timeout_seconds: float = 60.0
    """Longest time without another byte of a request that has begun; infinite for no limit."""


class Budgets:
    """What is in use."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._complaints = Complaints()
        self.settings = settings
        self.connections = Capacity("connections", settings.max_connections, self._say)
        self.streams = Capacity("streams", settings.max_streams, self._say)
        self.pending = Capacity("pending_streams", settings.max_pending_streams, self._say)
        self.gathered = HeldBytes("gathered_bytes", settings.max_gathered_bytes, self._say)
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

    __slots__ = ("_budgets", "_is_pending", "account", "lack")

    def __init__(self, budgets: Budgets, account: Account) -> None:
        """Count a stream: there must be one for it, though it may be above the limit, and then lacks something."""
        self._budgets = budgets
        self.account = account
        self.lack: Capacity | None = None
        """The budget in which there was no room for the stream, which is to be refused."""
        streams = budgets.streams
        if streams.used >= streams.limit:
            streams.refuse()
            self.lack = streams
        streams.used += 1
        self._is_pending = self.lack is None and budgets.pending.take()
        if self.lack is None and not self._is_pending:
            self.lack = budgets.pending

    @staticmethod
    def without_limits() -> "Claim":
        """Return a claim on budgets that nobody else has a part of."""
        most = 2**62
        budgets = Budgets(BudgetSettings(most, most, most, most, most, math.inf))
        return Claim(budgets, budgets.gathered.account())

    def complete(self) -> None:
        """Count the stream as pending no more: its request is complete, or needs no more."""
        if self._is_pending:
            self._is_pending = False
            self._budgets.pending.give_back()

    def timed_out(self) -> None:
        """Count that nothing more of the request came in time."""
        self._budgets.timeouts += 1

    def close(self) -> None:
        """Give everything back, but the account, which the carrier closes; to be called once."""
        self.complete()
        self._budgets.streams.give_back()
