# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages with SVG plots."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --dim: #5b626b; --line: #d5d9de; --back: #ffffff;
  --series-0: #2563b0; --series-1: #c2570c; --series-2: #1a7f5a; --series-3: #8a3ba8;
  --series-4: #a3782b; --series-5: #b3261e; --series-6: #0e7490; --series-7: #5f6b7a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --dim: #a2a9b2; --line: #3a4048; --back: #15181c;
  --series-0: #7db2f5; --series-1: #f5a065; --series-2: #65d0a5; --series-3: #cf95e8;
  --series-4: #e0bd6f; --series-5: #f28b82; --series-6: #67cfe3; --series-7: #aab4c0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; max-width: 46rem; } .note, .empty { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; vertical-align: bottom; }
figure { margin: .6rem 0 1.4rem; break-inside: avoid; } svg { width: 100%; height: auto; max-width: 52rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--line); } .axis { stroke: var(--dim); } .whisker { stroke: var(--ink); stroke-width: 2; }
.line { fill: none; stroke-width: 2; } .frontier { fill: none; stroke: var(--dim); stroke-dasharray: 4 3; }
.bar { fill: var(--series-0); fill-opacity: .75; } .cell { fill: var(--series-0); }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
.swatch { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; border-radius: 2px; }
pre { background: color-mix(in srgb, var(--line) 35%, transparent); padding: .8rem; overflow-x: auto; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } h2 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
""" + "".join(
    f".s{n} {{ stroke: var(--series-{n}); }} circle.s{n} {{ fill: var(--series-{n}); }} "
    f".b{n} {{ background: var(--series-{n}); }}\n"
    for n in range(8)
)
WIDTH, HEIGHT = 640.0, 300.0
COLOURS = 8
"""Colours of the style sheet: `--series-0` to `--series-7`."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 12.0, 44.0
_TICKS = 5
_ROW, _LABEL = 26.0, 210.0
_NEAR_END, _ANCHOR = 0.7, ("start", "end")
_SAME = 1e-9
_ROOM = 1.1
"""Length of an axis relative to the largest value, which leaves room for the labels of points."""
_MOST_POINTS = 400
"""Maximum number of points drawn for a curve; more would only make the page larger."""


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="note">{escape(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str, note: str = "") -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2>{below}{''.join(parts)}"


def figure(plot: str, *, above: str = "") -> str:
    return f"<figure>{above}{plot}</figure>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column names the rows."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Return a text with its line breaks, in a fixed-width font."""
    return f"<pre>{escape(text)}</pre>"


class Series(NamedTuple):
    """Named points; points that are not finite are not drawn."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class Bar(NamedTuple):
    label: str
    value: float
    low: float
    high: float
    text: str


class _Axis(NamedTuple):
    """Mapping from a range of values to a range of pixels."""

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
    """Return a line plot; the colour of a line depends on its position in the list."""

    def lines(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
        for number, each in enumerate(series):
            points = _thinned(_finite(each, positive_x=log_x))
            if points:
                path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
                title = f"<title>{escape(each.label)}</title>"
                yield f'<polyline class="line s{number % COLOURS}" points="{path}">{title}</polyline>'

    return _framed(series, x_label, y_label, lines, log_x=log_x)


def points(series: Sequence[Series], x_label: str, y_label: str, frontier: Sequence[tuple[float, float]] = ()) -> str:
    """Return a scatter plot with labels, and a line through the points of `frontier`."""

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
    """Return a bar chart with a whisker for the interval of each bar."""
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
    """Return a heat map of shares (0..1), each with its percentage."""
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
    """Return an axis that is never empty, even if all values are equal."""
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
    """Return at most `_MOST_POINTS` of the points, including the first and the last."""
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(number * step)] for number in range(_MOST_POINTS)]


def _step(least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power: float = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004


def pareto(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of the points; lower values are better."""
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
