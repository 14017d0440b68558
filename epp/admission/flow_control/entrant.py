# SPDX-License-Identifier: Apache-2.0
"""A request in front of the pool, as its owner shows it to flow control."""

from abc import ABC, abstractmethod

from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.quotas import Blocked
from epp.framework.request import Request


class Entrant(ABC):
    """Told exactly once what becomes of it, unless it leaves: `go` that succeeds, or `refuse`."""

    request: Request
    is_restricted: bool = False
    """Whether only a part of the pool may serve it, by the gateway's word."""

    @abstractmethod
    def candidates(self) -> Candidates:
        """Return the endpoints that may serve it as things are now, full ones included."""

    def fitting(self) -> Candidates:
        """Return the endpoints that could serve it if they had room."""
        return self.candidates()

    def blocked(self) -> Blocked | None:
        """Return what it may not go for, whatever the room; None where it may."""
        return None

    def preempt(self) -> bool:
        """End others of lower priority so that it may go; return whether any will end."""
        return False

    @abstractmethod
    def go(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route it to one of the candidates where the mask is true.

        Returns False where only one of the others could serve it, and Blocked where it may not go to any of them.
        """

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """End its waiting with an error."""
