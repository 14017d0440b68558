# SPDX-License-Identifier: Apache-2.0
"""Figures of each row, picker and round."""

import statistics
from collections.abc import Iterable

from perf.bench.report.catalogue import BY_ID


class Samples:
    """Measurements: one figure per row, picker and round."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, picker: str, figure: float) -> None:
        """Add the figure of one round; the row must be in the catalogue."""
        self._found.setdefault(BY_ID[row].id, {}).setdefault(picker, []).append(figure)

    @property
    def rows(self) -> Iterable[str]:
        """Rows with figures, in the order of the catalogue."""
        return [row for row in BY_ID if row in self._found]

    def of(self, row: str) -> dict[str, list[float]]:
        """Return the figures of a row by picker."""
        return self._found[row]

    def ratio(self, row: str, picker: str, to: str) -> tuple[float, float] | None:
        """Return the median of the ratios of each round, and the ratio of the minimum figures; None without figures."""
        ours, theirs = self._found[row].get(picker, []), self._found[row].get(to, [])
        pairs = [ours_now / theirs_now for ours_now, theirs_now in zip(ours, theirs, strict=False) if theirs_now > 0]
        if not pairs or min(theirs) <= 0:
            return None
        return statistics.median(pairs), min(ours) / min(theirs)
