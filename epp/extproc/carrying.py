# SPDX-License-Identifier: Apache-2.0
"""What every carrier of sessions needs: their making and their end, counted, with the traits of the gateway."""

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from epp.extproc.budgets import Budgets, Claim
from epp.extproc.faults import Faults, ProtocolError
from epp.extproc.http2.capacity import Account
from epp.extproc.modes import GatewayTraits
from epp.extproc.open_streams import OpenStreams, StreamObserver
from epp.extproc.session import Session
from epp.routing.director import Cause

_MOST_GATEWAYS = 1024

OK, CANCELED, INVALID_ARGUMENT, UNAVAILABLE = "OK", "Canceled", "InvalidArgument", "Unavailable"
"""How streams end, as Go's library for gRPC names it."""

SessionMaker: TypeAlias = Callable[[GatewayTraits, Claim, Mapping[str, str]], Session]
"""Makes a session of the traits of its gateway, its claim, and the metadata that its stream began with."""


class SessionSource:
    """Opens a session for each stream, and closes it."""

    def __init__(self, sessions: SessionMaker, budgets: Budgets, observer: StreamObserver | None = None) -> None:
        """Prepare; without an observer, times are not taken."""
        self._sessions = sessions
        self._observer = observer
        self._since: dict[Session, float] = {}
        self.budgets = budgets
        self._traits: dict[str, GatewayTraits] = {}
        self.faults = Faults()
        self.streams = OpenStreams()

    def open(self, peer: str, account: Account, metadata: Mapping[str, str]) -> Session | None:
        """Return the session of a new stream, with an account of its bytes; each is to be closed.

        None where there are so many streams that this one is to be refused without a word.
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
        """Close a session that was opened here, and whose stream ends with this status.

        Without one, it ended well if the exchange was complete, and else as the gateway gave it up.
        """
        self.streams.closed()
        if self._observer is not None:
            seconds = time.monotonic() - self._since.pop(session)
            self._observer.ended(code or (OK if session.done else CANCELED), seconds)
        session.close(cause)
        session.claim.close()

    def warn_of(self, error: ProtocolError, peer: str) -> None:
        """Count and log that a stream ended as its gateway broke the protocol; of many, some are logged."""
        self.faults.note(error, peer, time.monotonic())

    def _traits_of(self, peer: str) -> GatewayTraits:
        """Return the traits of the gateway on the host of `peer`, which ends in the port of one connection."""
        host = peer.rpartition(":")[0]
        traits = self._traits.get(host)
        if traits is None:
            if len(self._traits) >= _MOST_GATEWAYS:
                self._traits.clear()
            traits = self._traits[host] = GatewayTraits(host)
        return traits
