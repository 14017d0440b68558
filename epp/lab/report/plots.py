# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG text: curves, points, bars and matrices, coloured by the style sheet of the page."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

WIDTH, HEIGHT = 640.0, 300.0
COLOURS = 8
"""Colours of the style sheet: `--series-0` to `--series-7`."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 12.0, 44.0
_TICKS = 5
_ROW, _LABEL = 26.0, 210.0
_NEAR_END, _ANCHOR = 0.7, ("start", "end")
_SAME = 1e-9
_ROOM = 1.1
"""Length of axes relative to the largest value, so that labels of points have room."""
_MOST_POINTS = 400
"""Points of a curve that are drawn; more make the page large and look the same."""


class Series(NamedTuple):
    """Points under a name; points that are not finite are left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class Bar(NamedTuple):
    """A value with its interval."""

    label: str
    value: float
    low: float
    high: float
    text: str


class _Axis(NamedTuple):
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, here = map(log10, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return self.start + (here - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> Sequence[float]:
        if self.is_log:
            powers = range(floor(log10(self.low)), floor(log10(self.high)) + 1)
            found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            return [tick for tick in found if self.low <= tick <= self.high]
        step = _step((self.high - self.low) / _TICKS)
        return [step * number for number in range(ceil(self.low / step), floor(self.high / step) + 1)]


def curves(series: Sequence[Series], x_label: str, y_label: str, *, log_x: bool = False) -> str:
    """Return lines, each with the colour of its place in the list."""

    def lines(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
        for number, each in enumerate(series):
            points = _thinned(_finite(each, positive_x=log_x))
            if points:
                path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
                title = f"<title>{escape(each.label)}</title>"
                yield f'<polyline class="line s{number % COLOURS}" points="{path}">{title}</polyline>'

    return _framed(series, x_label, y_label, lines, log_x=log_x)


def points(series: Sequence[Series], x_label: str, y_label: str, frontier: Sequence[tuple[float, float]] = ()) -> str:
    """Return points with their labels, and a line through those of the frontier."""

    def marks(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in frontier)
        if path:
            yield f'<polyline class="frontier" points="{path}"/>'
        for number, each in enumerate(series):
            for x, y in _finite(each):
                title = f"<title>{escape(each.label)}: {_number(x)}, {_number(y)}</title>"
                place = f'cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}"'
                yield f'<circle class="point s{number % COLOURS}" {place} r="5">{title}</circle>'
                near_end = x_axis.at(x) > WIDTH * _NEAR_END
                yield _text(x_axis.at(x) + (-9 if near_end else 9), y_axis.at(y) - 6, each.label, _ANCHOR[near_end])

    return _framed(series, x_label, y_label, marks, room=_ROOM)


def bars(rows: Sequence[Bar], unit: str) -> str:
    """Return a bar for each row, with a whisker for its interval."""
    ends = [end for row in rows for end in (row.value, row.low, row.high, 0.0) if isfinite(end)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    axis = _axis(low, high, _LABEL, WIDTH - 90)
    height = len(rows) * _ROW + 24
    parts = [f'<line class="axis" x1="{axis.at(0):.1f}" x2="{axis.at(0):.1f}" y1="0" y2="{height - 24:.0f}"/>']
    for number, row in enumerate(rows):
        y = number * _ROW + 4
        parts.append(_text(_LABEL - 8, y + 13, row.label, "end"))
        if isfinite(row.value):
            start, end = sorted((axis.at(0), axis.at(row.value)))
            box = f'x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{_ROW - 8:.0f}"'
            parts.append(f'<rect class="bar" {box}/>')
        if isfinite(row.low) and isfinite(row.high) and row.high > row.low:
            middle = f'y1="{y + 9:.1f}" y2="{y + 9:.1f}"'
            parts.append(f'<line class="whisker" x1="{axis.at(row.low):.1f}" x2="{axis.at(row.high):.1f}" {middle}/>')
        parts.append(_text(WIDTH - 84, y + 13, row.text, "start"))
    parts.append(_text((axis.start + axis.end) / 2, height - 4, unit, "middle"))
    return _svg(height, parts)


def matrix(rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]]) -> str:
    """Return a table of shares, 0..1, each as a percentage on a background as dark as it is high."""
    width = (WIDTH - _LABEL) / max(1, len(columns))
    parts = [_text(_LABEL + (at + 0.5) * width, 14, name, "middle") for at, name in enumerate(columns)]
    for number, (name, values) in enumerate(zip(rows, shares, strict=True)):
        y = 22 + number * _ROW
        parts.append(_text(_LABEL - 8, y + 17, name, "end"))
        for at, share in enumerate(values):
            box = f'x="{_LABEL + at * width + 1:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{_ROW - 2:.0f}"'
            parts.append(f'<rect class="cell" {box} fill-opacity="{0.7 * share:.3f}"/>')
            parts.append(_text(_LABEL + (at + 0.5) * width, y + 17, f"{share:.0%}", "middle"))
    return _svg(30 + len(rows) * _ROW, parts)


def legend(labels: Sequence[str]) -> str:
    """Return the names of series with their colours."""
    items = (f'<span><i class="swatch b{at % COLOURS}"></i>{escape(label)}</span>' for at, label in enumerate(labels))
    return f'<p class="legend">{"".join(items)}</p>'


def _framed(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    draw: Callable[[_Axis, _Axis], Iterator[str]],
    *,
    log_x: bool = False,
    room: float = 1.0,
) -> str:
    found = [point for each in series for point in _finite(each, positive_x=log_x)]
    if not found:
        return '<p class="empty">No data.</p>'
    xs, ys = zip(*found, strict=True)
    x_axis = _axis(min(xs) if log_x else min(0.0, *xs), room * max(xs), _LEFT, WIDTH - _RIGHT, is_log=log_x)
    y_axis = _axis(min(0.0, *ys), room * max(ys), HEIGHT - _BOTTOM, _TOP)
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT:.0f}" x2="{WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _number(tick), "end"))
    base = HEIGHT - _BOTTOM
    parts += [_text(x_axis.at(tick), base + 18, _number(tick), "middle") for tick in x_axis.ticks]
    parts.append(f'<line class="axis" x1="{_LEFT:.0f}" x2="{WIDTH - _RIGHT:.0f}" y1="{base:.0f}" y2="{base:.0f}"/>')
    parts.append(_text((_LEFT + WIDTH) / 2, HEIGHT - 6, x_label, "middle"))
    middle = (_TOP + base) / 2
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(f'<text x="14" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(y_label)}</text>')
    return _svg(HEIGHT, [*parts, *draw(x_axis, y_axis)])


def _axis(low: float, high: float, start: float, end: float, *, is_log: bool = False) -> _Axis:
    """Return an axis, wider than the values where these are all the same."""
    if high - low <= _SAME * max(abs(low), abs(high)):
        high = 2 * abs(low) + high or 1.0
    return _Axis(low, high, start, end, is_log)


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _finite(series: Series, *, positive_x: bool = False) -> list[tuple[float, float]]:
    pairs = ((float(x), float(y)) for x, y in zip(series.x, series.y, strict=True))
    return [(x, y) for x, y in pairs if isfinite(x) and isfinite(y) and (x > 0 or not positive_x)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return some of many points, the first and the last included."""
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(number * step)] for number in range(_MOST_POINTS)]


def _step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least so much."""
    power: float = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004


def pareto(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both values, lower being better."""
    front: list[tuple[float, float]] = []
    for point in sorted(found):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def steps_down(front: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the staircase through a front."""
    corners = list(front[:1])
    for before, after in pairwise(front):
        corners += [(after[0], before[1]), after]
    return corners
