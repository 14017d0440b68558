# SPDX-License-Identifier: Apache-2.0
"""A limit on all polls together: with many endpoints, each is polled less often."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MOST_POLLS_PER_SECOND = 2000.0
"""Of endpoints that answer: two fifths of a CPU."""
MOST_FAILING_PER_SECOND = 200.0
"""Of those that do not: an attempt costs more than a page, and tells less."""


class Pace:
    """How often one feed of one endpoint may be polled."""

    __slots__ = ("_budget", "_failing", "_interval_seconds")

    def __init__(self, budget: "PollBudget", interval_seconds: float) -> None:
        self._budget = budget
        self._interval_seconds = interval_seconds
        self._failing = False

    @property
    def seconds(self) -> float:
        """Time between two polls that succeed: the interval asked for, or a longer one that the budget allows."""
        return max(self._interval_seconds, self._budget.shortest_seconds)

    @property
    def wait_seconds(self) -> float:
        """Least time until the next poll."""
        return max(self._interval_seconds, self._budget.failing_seconds) if self._failing else self.seconds

    @property
    def failing(self) -> bool:
        """Whether the last poll failed."""
        return self._failing

    @failing.setter
    def failing(self, failing: bool) -> None:
        if failing is not self._failing:
            self._budget.count(self._interval_seconds, -1, failing=self._failing)
            self._budget.count(self._interval_seconds, 1, failing=failing)
            self._failing = failing


class PollBudget:
    """Divides a number of polls per second among all who poll: those with short intervals wait, all alike."""

    def __init__(
        self, polls_per_second: float = MOST_POLLS_PER_SECOND, failing_per_second: float = MOST_FAILING_PER_SECOND
    ) -> None:
        self._polls_per_second = polls_per_second
        self._failing_per_second = failing_per_second
        self._intervals: Counter[float] = Counter()
        """How many poll at each interval, without those that fail."""
        self._failing = 0
        self._shortest_seconds: float | None = 0.0
        """None where it has to be computed anew."""

    @contextmanager
    def pace(self, interval_seconds: float) -> Iterator[Pace]:
        """Count one who polls at this interval, and return its pace."""
        pace = Pace(self, interval_seconds)
        self.count(interval_seconds, 1, failing=False)
        try:
            yield pace
        finally:
            self.count(interval_seconds, -1, failing=pace.failing)

    def count(self, interval_seconds: float, number: int, *, failing: bool) -> None:
        """Add to, or take from, those who poll."""
        if failing:
            self._failing += number
        else:
            self._intervals[interval_seconds] += number
            self._intervals += Counter()  # without what is no more
            self._shortest_seconds = None

    @property
    def first_seconds(self) -> float:
        """Time in which all are polled once, however long their intervals are."""
        return (self._intervals.total() + self._failing) / self._polls_per_second

    @property
    def failing_seconds(self) -> float:
        """Time between two attempts at an endpoint that does not answer."""
        return self._failing / self._failing_per_second

    @property
    def shortest_seconds(self) -> float:
        """Time between two polls below which no interval is kept; 0 while all can be."""
        if self._shortest_seconds is None:
            self._shortest_seconds = self._shortest()
        return self._shortest_seconds

    def _shortest(self) -> float:
        """Return the shortest interval with which all polls together stay within the budget.

        From the longest interval on, each who needs less than an equal share of what is left gets what it needs.
        """
        left, remaining = self._polls_per_second, self._intervals.total()
        for interval in sorted(self._intervals, reverse=True):
            number = self._intervals[interval]
            if remaining > left * interval:
                return remaining / left
            left -= number / interval
            remaining -= number
        return 0.0
