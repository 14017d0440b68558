# SPDX-License-Identifier: Apache-2.0
"""Connections of an HTTP server: causes of their end, counts, and the choice of a connection to close."""

import ssl
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol, TypeAlias

Contexts: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
"""Returns the TLS context of a new connection."""


class Cut(StrEnum):
    """Cause of a closed connection or a refused request."""

    MADE_ROOM = "made_room"
    NO_DESCRIPTOR = "no_descriptor"
    REQUEST_TIMEOUT = "request_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    BUSY = "busy"
    TLS = "tls"


class ConnectionCounts:
    """Counts the connections of one port. This base class counts nothing."""

    def opened(self) -> None:
        """Count a new connection."""

    def closed(self) -> None:
        """Count the end of a connection."""

    def cut(self, cause: Cut) -> None:
        """Count a closed connection or a refused request by its cause."""


class Closable(Protocol):
    host: str
    busy: bool
    """Whether a request is being answered."""
    since: float
    """Time at which the last request began or ended or, before any, the connection was made; monotonic seconds."""

    def abort(self) -> None:
        """Close the connection immediately."""


class OpenConnections:
    """Open connections by host, busy and idle, in the order of their last change."""

    def __init__(self) -> None:
        self._by_host: dict[str, tuple[dict[Closable, None], dict[Closable, None]]] = {}
        """The idle and the busy connections of each host."""
        self.count = 0

    @property
    def all(self) -> list[Closable]:
        return [each for kinds in self._by_host.values() for kind in kinds for each in kind]

    def add(self, connection: Closable) -> None:
        """Add a connection after a change."""
        self._by_host.setdefault(connection.host, ({}, {}))[connection.busy][connection] = None
        self.count += 1

    def discard(self, connection: Closable) -> None:
        """Remove a connection if it is registered. Call this before `busy` changes."""
        kinds = self._by_host.get(connection.host)
        if kinds is None or connection not in kinds[connection.busy]:
            return
        del kinds[connection.busy][connection]
        self.count -= 1
        if not any(kinds):
            del self._by_host[connection.host]

    def close_one(self) -> bool:
        """Close the oldest connection of the host with the most, idle ones first; return whether there was any."""
        if not self._by_host:
            return False
        most = max(sum(map(len, kinds)) for kinds in self._by_host.values())
        greatest = (kinds for kinds in self._by_host.values() if sum(map(len, kinds)) == most)
        oldest = (next(iter(idle or busy)) for idle, busy in greatest)
        found = min(oldest, key=lambda each: (each.busy, each.since))
        self.discard(found)
        found.abort()
        return True
