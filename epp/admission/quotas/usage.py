# SPDX-License-Identifier: Apache-2.0
"""Usage over time: tokens in a minute, device seconds and dollars in a day (UTC), and means over requests."""

from epp.framework.clock import Clock
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS

DAY_SECONDS = 86_400
_LONGEST_SECONDS = DAY_SECONDS + 3_600.0
"""Longest day: a clock that was far ahead for a while must not stop the reset of budgets."""
_MOST = 64
"""Requests in a running mean."""
_MOST_OUTPUT_TOKENS = 2**24
_MOST_MINUTES = 5
"""Capacity of a bucket, in minutes of its limit: the longest wait for it to drain."""
_SECONDS = 60.0


class Calendar:
    """Numbers the days for all tenants, in ascending order.

    A clock that is set back does not repeat a day; one that is set forward starts a new day.
    """

    __slots__ = ("_clock", "_day", "_number", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self.date
        self._since = clock.now()
        self._number = 0

    def today(self) -> int:
        """Return the number of the day."""
        day, now = self.date, self._clock.now()
        if day > self._day or now - self._since >= _LONGEST_SECONDS:
            self._day, self._since = day, now
            self._number += 1
        return self._number

    @property
    def date(self) -> int:
        """The day, as days since 1970; it may repeat."""
        return int(self._clock.utc() // DAY_SECONDS)

    def seconds_left(self) -> float:
        """Return the seconds until the next day, at most 24 hours."""
        self.today()
        midnight = (self._day + 1) * DAY_SECONDS - self._clock.utc()
        longest = self._since + _LONGEST_SECONDS - self._clock.now()
        return max(0.0, min(midnight, longest, DAY_SECONDS))


class DayUse:
    """Usage in a day, and the expected further usage of requests in flight."""

    __slots__ = ("_day", "_taken", "expected")

    def __init__(self) -> None:
        self._day = -1
        self._taken = 0.0
        self.expected = 0.0

    def taken(self, today: int) -> float:
        """Return the usage of today."""
        if self._day != today:
            self._day, self._taken = today, 0.0
        return self._taken

    def add(self, amount: float, today: int) -> None:
        """Add usage of today."""
        self._taken = self.taken(today) + amount

    def expect(self, amount: float) -> None:
        """Change the expected usage of requests in flight."""
        self.expected = max(0.0, self.expected + amount)


class Means:
    """Running means over requests; before the first one, output has the usual length and the rest is 0."""

    __slots__ = ("_answers", "_requests", "device_seconds", "dollars", "output_tokens", "seconds")

    def __init__(self) -> None:
        self.output_tokens = DEFAULT_OUTPUT_TOKENS
        self.seconds = 0.0
        """Time at an endpoint, which its requests share."""
        self.device_seconds = 0.0
        self.dollars = 0.0
        self._answers = 0
        self._requests = 0

    def answered(self, output_tokens: int) -> None:
        """Add the length of an output, as the model server reports it."""
        self._answers = min(self._answers + 1, _MOST)
        tokens = min(max(output_tokens, 0), _MOST_OUTPUT_TOKENS)
        self.output_tokens += (tokens - self.output_tokens) / self._answers

    def ended(self, seconds: float, device_seconds: float, dollars: float) -> None:
        """Add the total of a request that has ended."""
        self._requests = min(self._requests + 1, _MOST)
        share = 1.0 / self._requests
        self.seconds += (seconds - self.seconds) * share
        self.device_seconds += (device_seconds - self.device_seconds) * share
        self.dollars += (dollars - self.dollars) * share


class MinuteUse:
    """A leaky bucket of tokens, which drains at the limit for a minute; it may hold more than the limit.

    A change of the limit keeps the content, and changes the rate at which it drains.
    """

    __slots__ = ("_at", "_taken", "added")

    def __init__(self) -> None:
        self.added = 0.0
        """Tokens that were ever added, without those of other pickers."""
        self._taken = 0.0
        self._at = 0.0

    def taken(self, limit: float, now: float) -> float:
        """Return the tokens that have not drained."""
        if self._taken:
            drained = self._taken - max(0.0, now - self._at) * limit / _SECONDS
            self._taken = min(max(0.0, drained), limit * _MOST_MINUTES)
        self._at = now
        return self._taken

    def add(self, tokens: float, limit: float, now: float) -> None:
        """Add tokens, or remove a negative number of them."""
        self.added += tokens
        self.add_elsewhere(tokens, limit, now)

    def add_elsewhere(self, tokens: float, limit: float, now: float) -> None:
        """Add tokens of another picker, likewise."""
        self._taken = max(0.0, self.taken(limit, now) + tokens)

    def seconds_until(self, tokens: float, limit: float, now: float) -> float:
        """Return the time until so many tokens, or as many as the limit, fit."""
        return max(0.0, (self.taken(limit, now) + min(tokens, limit) - limit) * _SECONDS / limit)
