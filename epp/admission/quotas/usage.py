# SPDX-License-Identifier: Apache-2.0
"""Usage over time: tokens in a minute, and device seconds and dollars in a day (UTC)."""

from epp.framework.clock import Clock
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS

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


_MOST = 64
"""Requests that a mean looks back on: it follows a tenant who changes."""
_MOST_OUTPUT_TOKENS = 2**24


class Means:
    """Running means; an answer has a usual length before any has been seen, and time and price are 0."""

    __slots__ = ("_answers", "_requests", "device_seconds", "dollars", "output_tokens", "seconds")

    def __init__(self) -> None:
        self.output_tokens = DEFAULT_OUTPUT_TOKENS
        self.seconds = 0.0
        """Of the endpoint's time, which requests there share."""
        self.device_seconds = 0.0
        self.dollars = 0.0
        self._answers = 0
        self._requests = 0

    def answered(self, output_tokens: int) -> None:
        """Add the length of an answer, as a model server says it."""
        self._answers = min(self._answers + 1, _MOST)
        tokens = min(max(output_tokens, 0), _MOST_OUTPUT_TOKENS)
        self.output_tokens += (tokens - self.output_tokens) / self._answers

    def ended(self, seconds: float, device_seconds: float, dollars: float) -> None:
        """Add what a request has taken in all."""
        self._requests = min(self._requests + 1, _MOST)
        share = 1.0 / self._requests
        self.seconds += (seconds - self.seconds) * share
        self.device_seconds += (device_seconds - self.device_seconds) * share
        self.dollars += (dollars - self.dollars) * share


_MOST_MINUTES = 5
"""Most that a bucket holds, in limits of a minute: thus nobody waits longer than this for it to drain."""
_SECONDS = 60.0


class MinuteUse:
    """Tokens taken, which drain at the limit a minute; more than the limit is a debt.

    What is taken stays what it was under another limit, and drains at the new one.
    """

    __slots__ = ("_at", "_taken")

    def __init__(self) -> None:
        self._taken = 0.0
        self._at = 0.0

    def taken(self, limit: float, now: float) -> float:
        """Return the tokens taken that have not drained yet."""
        if self._taken:
            drained = self._taken - max(0.0, now - self._at) * limit / _SECONDS
            self._taken = min(max(0.0, drained), limit * _MOST_MINUTES)
        self._at = now
        return self._taken

    def add(self, tokens: float, limit: float, now: float) -> None:
        """Take tokens, or give back those of a negative number."""
        self._taken = max(0.0, self.taken(limit, now) + tokens)

    def seconds_until(self, tokens: float, limit: float, now: float) -> float:
        """Return how long it takes until so many tokens fit; at most the limit is asked for."""
        return max(0.0, (self.taken(limit, now) + min(tokens, limit) - limit) * _SECONDS / limit)
