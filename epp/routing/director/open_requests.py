# SPDX-License-Identifier: Apache-2.0
"""Unanswered routed requests: attempts that supersede each other, and reservations that expire."""

from collections.abc import Iterator

from epp.framework.clock import Clock
from epp.framework.headers import ATTEMPT_COUNT
from epp.framework.refusals import SupersededError
from epp.framework.request import Request
from epp.routing.director.routing import Routing

MOST_OF_ONE_ID = 16
"""Open attempts that are compared for one id; clients may use one id for many requests."""
_MOST_DIGITS = 6
RESERVATION_SECONDS = 600.0
"""Time after which an unanswered request no longer counts as load of its endpoint."""
SWEEP_SECONDS = 30.0
"""Time between two sweeps for such requests."""
_EXPIRED = 32
"""Requests that expire in one step, which takes some milliseconds."""


class Attempts:
    """Open attempts by the id of their request.

    An id does not identify a request: clients choose ids, and may use one for all requests of a trace. A superseded
    exchange is ended along with its reservation, so that repeated ids cannot hide load.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[Routing]] = {}

    def __len__(self) -> int:
        return sum(len(attempts) for attempts in self._open.values())

    def supersede_former(self, request: Request) -> bool:
        """End the former attempt at this request if it is open and unanswered; return whether there was one."""
        attempts, count = self._open.get(request.id, []), attempt_of(request)
        if count < 2:  # noqa: PLR2004  the first attempt
            return False
        for former in attempts:
            if not former.is_committed and attempt_of(former.request) < count and _are_alike(former.request, request):
                attempts.remove(former)
                former.supersede(SupersededError())
                return True
        return False

    def opened(self, attempt: Routing) -> None:
        """Add a routed request; the oldest of more than 16 with the same id is no longer compared."""
        attempts = self._open.setdefault(attempt.request.id, [])
        if len(attempts) == MOST_OF_ONE_ID:
            del attempts[0]
        attempts.append(attempt)

    def ended(self, attempt: Routing) -> None:
        attempts = self._open.get(attempt.request.id)
        if attempts is None:
            return
        if attempt in attempts:
            attempts.remove(attempt)
        if not attempts:
            del self._open[attempt.request.id]


def attempt_of(request: Request) -> int:
    """Return the number of the attempt, from 1; 0 if the gateway does not report it."""
    text = request.headers.get(ATTEMPT_COUNT, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _are_alike(one: Request, other: Request) -> bool:
    """Return whether both have the same content and flow, as far as their bodies were read."""
    return (
        one.size_bytes == other.size_bytes > 0
        and one.path == other.path
        and one.fairness_id == other.fairness_id
        and one.body.model == other.body.model
        and one.body.prompt == other.body.prompt
    )


class Reservations:
    """Routed requests that have not been answered.

    A gateway without a timeout waits forever for a server that has vanished. After a time limit, the request therefore
    no longer counts as load of its endpoint.
    """

    def __init__(self, clock: Clock, *, seconds: float = RESERVATION_SECONDS) -> None:
        """`seconds` is the time for an answer; infinite for no limit."""
        self._clock = clock
        self.seconds = seconds
        self._assumed: dict[Routing, float] = {}
        """Time of the pick by request, oldest first."""

    def __len__(self) -> int:
        return len(self._assumed)

    def assume(self, assumed: Routing, at: float) -> None:
        self._assumed[assumed] = at

    def settle(self, assumed: Routing) -> None:
        self._assumed.pop(assumed, None)

    def __iter__(self) -> Iterator[Routing]:
        return iter(self._assumed)

    def sweep(self) -> Iterator[int]:
        """Expire overdue requests, a limited number in each step; yield their number."""
        due = self._clock.now() - self.seconds
        overdue = []
        for assumed, at in self._assumed.items():
            if at > due:
                break
            overdue.append(assumed)
        for start in range(0, len(overdue), _EXPIRED):
            some = overdue[start : start + _EXPIRED]
            yield sum(assumed.expire() for assumed in some if assumed in self._assumed)
