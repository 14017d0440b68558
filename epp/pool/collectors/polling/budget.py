# SPDX-License-Identifier: Apache-2.0
"""A limit on the time that all polls together take: with many endpoints, each is polled less often."""

_SHARE = 0.2
"""Of the event loop's time that requests and all else leave."""
_LEAST_LEFT = 0.25
"""Of the event loop's time: with more requests than it can take, polls still get this part of their share."""
_MEMORY_SECONDS = 1.0
_SPAN_SECONDS = 0.1
"""Time over which the work of the event loop is looked at."""
_ON_TIME_SECONDS = 0.002
"""Delay that counts for nothing: polls themselves take as long."""
_TURN_SECONDS = 0.001
"""What polls that begin together may take: their answers may come together, too."""
_MOST_AT_ONCE = 32
_FIRST_COST_SECONDS = 100e-6
_LEAST_COST_SECONDS, _MOST_COST_SECONDS = 20e-6, 20e-3
"""What a poll is taken to cost at least, since not all of it is measured, and at most, since a bad moment passes."""
_MEMORY_POLLS = 500.0
"""Polls after which a cost counts for little."""
_LONGEST_GAP_SECONDS = 0.05
"""Time without a poll that is made up for; what a busy event loop missed is not."""


class PollBudget:
    """Says how many polls may begin, by the CPU time of polls and of all else so far; knows no clock of its own."""

    __slots__ = ("_at", "_busy", "_cost_seconds", "_late_seconds", "_left", "_seen", "_share", "_spent_seconds")

    def __init__(self, share: float = _SHARE) -> None:
        self._share = share
        self._spent_seconds = 0.0
        self._busy = 0.0
        """Part of its time in which the event loop does anything but polls, or cannot do what it should."""
        self._late_seconds = 0.0
        self._seen: tuple[float, float] | None = None
        """A time, and what all else had taken by then."""
        self._cost_seconds = _FIRST_COST_SECONDS
        self._left = 0.0
        self._at: float | None = None

    @property
    def polls_per_second(self) -> float:
        """Most polls that may begin in a second."""
        return self._share * max(1.0 - self._busy, _LEAST_LEFT) / self._cost_seconds

    @property
    def at_once(self) -> int:
        """Most polls that may begin together."""
        return min(max(int(_TURN_SECONDS / self._cost_seconds), 1), _MOST_AT_ONCE)

    def ran(self, now: float, seconds: float, late_seconds: float = 0.0) -> None:
        """Record the CPU time that the event loop has taken by now, that of polls included, and by how much it is late.

        It is late for a while after each long turn, and all the time where the machine has other work for its CPUs.
        """
        others = seconds - self._spent_seconds
        self._late_seconds += max(late_seconds - _ON_TIME_SECONDS, 0.0)
        if self._seen is None:
            self._seen = now, others
        elif (gap := now - self._seen[0]) >= _SPAN_SECONDS:
            busy = min(max((others - self._seen[1]) / gap, self._late_seconds / gap, 0.0), 1.0)
            self._busy += min(gap / _MEMORY_SECONDS, 1.0) * (busy - self._busy)
            self._seen = now, others
            self._late_seconds = 0.0

    def spent(self, seconds: float, polls: int) -> None:
        """Record the CPU time that so many polls took."""
        self._spent_seconds += seconds
        if polls:
            weight = min(polls / _MEMORY_POLLS, 1.0)
            cost = self._cost_seconds + weight * (seconds / polls - self._cost_seconds)
            self._cost_seconds = min(max(cost, _LEAST_COST_SECONDS), _MOST_COST_SECONDS)

    def allowance(self, now: float) -> int:
        """Return how many polls may begin now; at least one after a while, however much they cost."""
        gap = _LONGEST_GAP_SECONDS if self._at is None else min(max(now - self._at, 0.0), _LONGEST_GAP_SECONDS)
        self._at = now
        rate = self.polls_per_second
        self._left = min(self._left + gap * rate, max(_LONGEST_GAP_SECONDS * rate, 1.0))
        return int(self._left)

    def began(self, polls: int) -> None:
        """Record that so many polls began."""
        self._left -= polls
