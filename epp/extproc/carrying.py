# SPDX-License-Identifier: Apache-2.0
"""What every carrier of sessions needs: their making and their end, counted, with the traits of the gateway."""

import time
from collections.abc import Callable

from epp.director import Cause
from epp.extproc.exchange import ProtocolError
from epp.extproc.modes import GatewayTraits
from epp.extproc.open_streams import OpenStreams
from epp.extproc.session import Session
from epp.grpc_http2.complaints import Complaints

_MOST_GATEWAYS = 1024


class SessionSource:
    """Opens a session for each stream, and closes it."""

    def __init__(self, sessions: Callable[[GatewayTraits], Session]) -> None:
        self._sessions = sessions
        self._traits: dict[str, GatewayTraits] = {}
        self._complaints = Complaints()
        self.streams = OpenStreams()

    def open(self, peer: str) -> Session:
        """Return the session of a new stream; each is to be closed."""
        session = self._sessions(self._traits_of(peer))
        self.streams.opened()
        return session

    def close(self, session: Session, cause: Cause) -> None:
        """Close a session that was opened here."""
        self.streams.closed()
        session.close(cause)

    def warn_of(self, error: ProtocolError, peer: str) -> None:
        """Log that a stream ended as its gateway broke the protocol; of many, some."""
        self._complaints.warn("stream closed: protocol error", time.monotonic(), problem=str(error), peer=peer)

    def _traits_of(self, peer: str) -> GatewayTraits:
        """Return the traits of the gateway on the host of `peer`, which ends in the port of one connection."""
        host = peer.rpartition(":")[0]
        traits = self._traits.get(host)
        if traits is None:
            if len(self._traits) >= _MOST_GATEWAYS:
                self._traits.clear()
            traits = self._traits[host] = GatewayTraits(host)
        return traits
