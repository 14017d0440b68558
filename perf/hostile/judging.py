# SPDX-License-Identifier: Apache-2.0
"""Figures of a campaign and their limits: targets for a full run, wider limits for a short run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Size = Literal["ci", "full"]
Verdict = Literal["ok", "WRONG", "not judged"]
_WIDER = 25.0
"""Factor on the targets of times for a short run on a shared machine."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    row: str
    name: str
    figure: str
    target: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.row:18} {self.name:46} {self.figure:>18}  {self.target:18} {self.verdict}"


@dataclass(slots=True)
class Judge:
    """Collects and checks the figures of one row."""

    row: str
    size: Size
    figures: list[Figure] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all checked figures are within their limits."""
        return all(figure.verdict != "WRONG" for figure in self.figures)

    def at_most(self, name: str, value: float, most: float, unit: str = "") -> None:
        """Check a count or a size against its limit, on any machine."""
        self._add(name, _said(value, unit), f"<= {_said(most, unit)}", holds=value <= most)

    def at_least(self, name: str, value: float, least: float, unit: str = "") -> None:
        """Check that a count reaches its target, on any machine."""
        self._add(name, _said(value, unit), f">= {_said(least, unit)}", holds=value >= least)

    def exactly(self, name: str, value: object, expected: object) -> None:
        """Check a figure against the only correct value."""
        self._add(name, f"{value}", f"= {expected}", holds=value == expected)

    def within(self, name: str, seconds: float, most: float) -> None:
        """Check a time against its target, which is much wider on a busy machine."""
        allowed = most if self.size == "full" else most * _WIDER
        self._add(name, f"{seconds * 1e3:.1f} ms", f"<= {allowed * 1e3:g} ms", holds=seconds <= allowed)

    def shows(self, name: str, value: float, unit: str = "") -> None:
        """Show a figure that has no target."""
        self.figures.append(Figure(self.row, name, _said(value, unit), "-", "not judged"))

    def failed(self, problem: str) -> None:
        """Record that the row could not be completed."""
        self.figures.append(Figure(self.row, problem.partition("\n")[0][:200], "-", "runs to its end", "WRONG"))

    def _add(self, name: str, figure: str, target: str, *, holds: bool) -> None:
        self.figures.append(Figure(self.row, name, figure, target, "ok" if holds else "WRONG"))


def share_of(values: Sequence[float], share: float) -> float:
    """Return the quantile of the values at `share`; 0 without values."""
    found = sorted(values)
    return found[int(share * (len(found) - 1))] if found else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the growth per second of a linear fit of points (seconds, value); 0 for fewer than two."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _said(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
    return f"{number} {unit}".rstrip()
