# SPDX-License-Identifier: Apache-2.0
"""Budgets of a day, from midnight to midnight UTC, on a clock that may be wrong or set back."""

from epp.framework.clock import Clock

DAY_SECONDS = 86_400
_LONGEST_SECONDS = DAY_SECONDS + 3_600.0
"""After so long a new day begins, whatever the clock says: one that was far ahead for a while stops no budget."""


class Calendar:
    """Days, as numbers that only grow; one for all tenants.

    A clock that is set back begins no day again, and one that is set forward begins one.
    """

    __slots__ = ("_clock", "_day", "_number", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = int(clock.utc() // DAY_SECONDS)
        self._since = clock.now()
        self._number = 0

    def today(self) -> int:
        """Return the number of the day."""
        day, now = int(self._clock.utc() // DAY_SECONDS), self._clock.now()
        if day > self._day or now - self._since >= _LONGEST_SECONDS:
            self._day, self._since = day, now
            self._number += 1
        return self._number

    def seconds_left(self) -> float:
        """Return how long the day lasts, at most 24 hours."""
        self.today()
        midnight = (self._day + 1) * DAY_SECONDS - self._clock.utc()
        longest = self._since + _LONGEST_SECONDS - self._clock.now()
        return max(0.0, min(midnight, longest, DAY_SECONDS))


class DayUse:
    """What was taken in a day, and what requests under way are expected to take of it."""

    __slots__ = ("_day", "_taken", "expected")

    def __init__(self) -> None:
        self._day = -1
        self._taken = 0.0
        self.expected = 0.0

    def taken(self, today: int) -> float:
        """Return what was taken today."""
        if self._day != today:
            self._day, self._taken = today, 0.0
        return self._taken

    def add(self, amount: float, today: int) -> None:
        """Take some today."""
        self._taken = self.taken(today) + amount

    def expect(self, amount: float) -> None:
        """Expect more of requests under way, or less."""
        self.expected = max(0.0, self.expected + amount)
