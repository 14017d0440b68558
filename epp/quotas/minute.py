# SPDX-License-Identifier: Apache-2.0
"""Tokens a minute: a bucket that may go into debt, as usage is known only at the end."""

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
