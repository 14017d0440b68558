# SPDX-License-Identifier: Apache-2.0
"""Reservations of routed requests: assumed at the pick, committed as the endpoint answers, released once."""

from collections.abc import Iterator
from typing import Protocol

from epp.framework.clock import Clock
from epp.framework.request import Usage
from epp.framework.snapshot import Snapshot

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
