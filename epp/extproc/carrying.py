# SPDX-License-Identifier: Apache-2.0
"""What every carrier of sessions needs: their making and their end, counted, with the traits of the gateway."""

import time
from collections.abc import Callable
from typing import TypeAlias

from epp.director import Cause
from epp.extproc.budgets import Budgets, Claim
from epp.extproc.faults import Faults, ProtocolError
from epp.extproc.modes import GatewayTraits
from epp.extproc.open_streams import OpenStreams
from epp.extproc.session import Session
from epp.grpc_http2.capacity import Account

_MOST_GATEWAYS = 1024

SessionMaker: TypeAlias = Callable[[GatewayTraits, Claim], Session]


class SessionSource:
    """Opens a session for each stream, and closes it."""

    def __init__(self, sessions: SessionMaker, budgets: Budgets) -> None:
        self._sessions = sessions
        self.budgets = budgets
        self._traits: dict[str, GatewayTraits] = {}
        self.faults = Faults()
        self.streams = OpenStreams()

    def open(self, peer: str, account: Account) -> Session | None:
        """Return the session of a new stream, with an account of its bytes; each is to be closed.

        None where there are so many streams that this one is to be refused without a word.
        """
        budgets = self.budgets
        if budgets.streams.used >= budgets.most_streams:
            budgets.streams.refuse()
            return None
        claim = Claim(budgets, account)
        try:
            session = self._sessions(self._traits_of(peer), claim)
        except BaseException:
            claim.close()
            raise
        self.streams.opened()
        return session

    def close(self, session: Session, cause: Cause) -> None:
        """Close a session that was opened here."""
        self.streams.closed()
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
