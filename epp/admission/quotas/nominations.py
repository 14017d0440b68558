# SPDX-License-Identifier: Apache-2.0
"""What ended requests gave back for one of higher priority, held for it against lower ones for a short time."""

from collections.abc import Sequence
from typing import NamedTuple

from epp.admission.quotas.reservation import NOTHING, Amounts, Reservation
from epp.framework.request import Request

MOST = 64
"""Requests of one tenant for which something is held at once; the oldest goes first."""


class _Nomination(NamedTuple):
    until: float
    victims: tuple[Reservation, ...]


class Nominations:
    """Those of one tenant."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[Request, _Nomination] = {}

    def __len__(self) -> int:
        return len(self._of)

    def twin(self) -> "Nominations":
        """Return others that hold the same now."""
        other = Nominations()
        other._of = dict(self._of)
        return other

    def add(self, request: Request, victims: Sequence[Reservation], until: float) -> None:
        """Hold what these give back for a request, as soon as they have."""
        self._of.pop(request, None)
        if len(self._of) >= MOST:
            del self._of[next(iter(self._of))]
        self._of[request] = _Nomination(until, tuple(victims))

    def forget(self, request: Request) -> bool:
        """Hold nothing for a request any more; return whether something was held."""
        return self._of.pop(request, None) is not None

    def forget_before(self, now: float) -> bool:
        """Forget those whose time is over; return whether there were any."""
        over = [request for request, nomination in self._of.items() if nomination.until <= now]
        for request in over:
            del self._of[request]
        return bool(over)

    def held_against(self, request: Request) -> Amounts:
        """Return what a request cannot have, as it is held for others of higher priority."""
        held = NOTHING
        for nominated, nomination in self._of.items():
            if nominated.priority > request.priority:
                for victim in nomination.victims:
                    if victim.is_released:
                        held = held.plus(victim.amounts)
        return held

    def until(self, now: float) -> float:
        """Return when nothing is held any more."""
        return max((nomination.until for nomination in self._of.values()), default=now)
