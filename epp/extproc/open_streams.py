# SPDX-License-Identifier: Apache-2.0
"""Open streams: the session of each, their count, and how each one ended."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from epp.extproc.budgets import Budgets, Claim
from epp.extproc.exchange import Faults, GatewayTraits, ProtocolError
from epp.extproc.http2.capacity import Account
from epp.extproc.session import Session
from epp.routing.director import Cause

_MOST_GATEWAYS = 1024
OK, CANCELED, INVALID_ARGUMENT, UNAVAILABLE = "OK", "Canceled", "InvalidArgument", "Unavailable"
"""Statuses of streams in the spelling of Go's gRPC library."""
SessionMaker: TypeAlias = Callable[[GatewayTraits, Claim, Mapping[str, str]], Session]
"""Makes a session from the traits of its gateway, its claim, and the initial metadata of its stream."""


class StreamObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def opened(self) -> None:
        """Record a new stream."""

    def ended(self, code: str, seconds: float) -> None:
        """Record the end of a stream: the name of its gRPC status in Go's spelling, and its duration."""


class OpenStreams:
    """Call `opened` and `closed` for each stream; await `quiet` for an idle period."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._arrival = asyncio.Event()

    @property
    def count(self) -> int:
        """Streams that are open now."""
        return self._count

    def opened(self) -> None:
        """Count a stream."""
        self._count += 1
        if self._count == 1:
            self._idle.clear()
        self._arrival.set()

    def closed(self) -> None:
        """Stop counting a stream."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream has been open for so many seconds."""
        while True:
            while self._count:  # a stream may have opened after the event
                await self._idle.wait()
            self._arrival.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrival.wait()
            if not self._arrival.is_set():
                return


class SessionSource:
    """Opens a session for each stream, and closes it."""

    def __init__(self, sessions: SessionMaker, budgets: Budgets, observer: StreamObserver | None = None) -> None:
        """Without an observer, durations are not measured."""
        self._sessions = sessions
        self._observer = observer
        self._since: dict[Session, float] = {}
        self.budgets = budgets
        self._traits: dict[str, GatewayTraits] = {}
        self.faults = Faults()
        self.streams = OpenStreams()

    def open(self, peer: str, account: Account, metadata: Mapping[str, str]) -> Session | None:
        """Return the session of a new stream; close it after use.

        None if there are too many streams even for a refusal by a session.
        """
        budgets = self.budgets
        if budgets.streams.used >= budgets.most_streams:
            budgets.streams.refuse()
            return None
        claim = Claim(budgets, account, peer.rpartition(":")[0])
        try:
            session = self._sessions(self._traits_of(peer), claim, metadata)
        except BaseException:
            claim.close()
            raise
        self.streams.opened()
        if self._observer is not None:
            self._observer.opened()
            self._since[session] = time.monotonic()
        return session

    def close(self, session: Session, cause: Cause, code: str = "") -> None:
        """Close a session whose stream ends with status `code`.

        Without a code, the status is OK for a complete exchange, and Canceled otherwise.
        """
        self.streams.closed()
        if self._observer is not None:
            seconds = time.monotonic() - self._since.pop(session)
            self._observer.ended(code or (OK if session.done else CANCELED), seconds)
        session.close(cause)
        session.claim.close()

    def warn_of(self, error: ProtocolError, peer: str) -> None:
        """Count and log a stream that ended with a protocol error."""
        self.faults.note(error, peer, time.monotonic())

    def _traits_of(self, peer: str) -> GatewayTraits:
        host = peer.rpartition(":")[0]
        traits = self._traits.get(host)
        if traits is None:
            if len(self._traits) >= _MOST_GATEWAYS:
                self._traits.clear()
            traits = self._traits[host] = GatewayTraits(host)
        return traits
