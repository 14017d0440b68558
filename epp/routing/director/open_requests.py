# SPDX-License-Identifier: Apache-2.0
"""Routed requests without an answer: attempts that supersede each other, and reservations that expire."""

from collections.abc import Iterator
from typing import Protocol

from epp.framework.clock import Clock
from epp.framework.errors import SupersededError
from epp.framework.headers import ATTEMPT_COUNT
from epp.framework.request import Request, Usage
from epp.framework.snapshot import Snapshot

MOST_OF_ONE_ID = 16
"""Open attempts of one id among which a later one looks for its like: clients may use one id for many requests."""
_MOST_DIGITS = 6


class Attempt(Protocol):
    """A routed request whose attempt number the gateway states."""

    @property
    def request(self) -> Request:
        """The request."""

    @property
    def is_committed(self) -> bool:
        """Whether its endpoint has answered."""

    def supersede(self, error: SupersededError) -> None:
        """Release what it holds at once, and end its exchange soon."""


class Attempts:
    """Open attempts by the id of their request.

    An id alone names no request: clients choose ids, and use one for all requests of a trace. A superseded exchange is
    ended, so that its load is gone in truth when its reservation is: ids that are repeated hide no work.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[Attempt]] = {}

    def __len__(self) -> int:
        return sum(len(attempts) for attempts in self._open.values())

    def supersede_former(self, request: Request) -> bool:
        """End the attempt before this one, if it is under way and not answered; return whether there was one."""
        attempts = self._open.get(request.id)
        if attempts is None:
            return False
        count = attempt_of(request)
        if count < 2:  # noqa: PLR2004  the first attempt
            return False
        for former in attempts:
            if not former.is_committed and attempt_of(former.request) < count and _are_alike(former.request, request):
                attempts.remove(former)
                former.supersede(SupersededError())
                return True
        return False

    def opened(self, attempt: Attempt) -> None:
        """Note a routed request; of very many with one id, the oldest are independent from now on."""
        attempts = self._open.setdefault(attempt.request.id, [])
        if len(attempts) == MOST_OF_ONE_ID:
            del attempts[0]
        attempts.append(attempt)

    def ended(self, attempt: Attempt) -> None:
        """Note the end of one."""
        attempts = self._open.get(attempt.request.id)
        if attempts is None:
            return
        if attempt in attempts:
            attempts.remove(attempt)
        if not attempts:
            del self._open[attempt.request.id]


def attempt_of(request: Request) -> int:
    """Return which attempt a request is, from 1; 0 where the gateway does not say."""
    text = request.headers.get(ATTEMPT_COUNT, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _are_alike(one: Request, other: Request) -> bool:
    """Whether both ask the same for the same flow, as far as their bodies were seen."""
    return (
        one.size_bytes == other.size_bytes > 0
        and one.path == other.path
        and one.fairness_id == other.fairness_id
        and one.body.model == other.body.model
        and one.body.prompt == other.body.prompt
    )


RESERVATION_SECONDS = 600.0
"""Time without an answer after which an endpoint is not believed to work on a request any more."""
SWEEP_SECONDS = 30.0
"""Time between two looks for such requests."""
_EXPIRED = 32
"""Requests that expire in a step: with what is recorded of each, that takes some milliseconds."""


class Reservation(Protocol):
    """Something that a routed request holds until it ends; every verb may be called any number of times."""

    def commit(self) -> None:
        """Keep it for good: the endpoint answers, with the headers of a response or with a part of its body."""

    def first_token(self) -> None:
        """Give back what only the prompt took: the endpoint has computed it."""

    def move(self, snapshot: Snapshot, slot: int) -> None:
        """Hold it at another endpoint from now on: the gateway went there."""

    def release(self, usage: Usage | None) -> None:
        """Give everything back; `usage` is what the endpoint counted, None where that is not known."""


class Assumed(Protocol):
    """A routed request that no endpoint has answered yet."""

    def expire(self) -> bool:
        """Release what it holds, unless its answer would not be seen; return whether that was done."""


class Reservations:
    """The book of assumed requests; it holds open ones only, and each costs one entry until it is answered.

    An exchange may stay open for ever although nobody works on its request: a gateway without a timeout waits for a
    server that has gone without a word. Its share of the endpoint's load comes back after a while.
    """

    def __init__(self, clock: Clock, *, seconds: float = RESERVATION_SECONDS) -> None:
        """`seconds` is the time for an answer; infinite for no limit."""
        self._clock = clock
        self.seconds = seconds
        self._assumed: dict[Assumed, float] = {}
        """When each was picked for, the first one first."""

    def __len__(self) -> int:
        return len(self._assumed)

    def assume(self, assumed: Assumed, at: float) -> None:
        """Note a request that is picked for now."""
        self._assumed[assumed] = at

    def settle(self, assumed: Assumed) -> None:
        """Note that it was answered, or has ended."""
        self._assumed.pop(assumed, None)

    def __iter__(self) -> Iterator[Assumed]:
        """Yield the reservations without a response, the oldest first."""
        return iter(self._assumed)

    def sweep(self) -> Iterator[int]:
        """Expire what was not answered in time, some in each step, as all may be due at once; yield how many."""
        due = self._clock.now() - self.seconds
        overdue = []
        for assumed, at in self._assumed.items():
            if at > due:
                break
            overdue.append(assumed)
        for start in range(0, len(overdue), _EXPIRED):
            some = overdue[start : start + _EXPIRED]
            yield sum(assumed.expire() for assumed in some if assumed in self._assumed)
