# SPDX-License-Identifier: Apache-2.0
"""Attempts of gateways at one request: a later one supersedes an earlier one that nothing answers."""

from typing import Protocol

from epp.framework.errors import SupersededError
from epp.framework.headers import ATTEMPT_COUNT
from epp.framework.request import Request

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
