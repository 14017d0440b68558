# SPDX-License-Identifier: Apache-2.0
"""The figures of `perf/bench/profiles.json` as the table of docs/profiles.md and the chart of README.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).parents[1]
FIGURES = REPOSITORY / "perf" / "bench" / "profiles.json"
PAGE = "docs/profiles.md"
COMMAND = "make bench-chart"
_PLACE = re.compile(r"(<!-- profiles, written by `make docs` -->\n).*?(<!-- end of profiles -->)", re.DOTALL)
_FLEETS = {"mixed": "mixed fleet: 2 H100, 2 A100, 2 halves of an A100, 2 T4", "equal": "equal fleet: 6 A100"}
_NAMES = {
    "adaptive": "`adaptive`, the default here",
    "llm-d-default": "llm-d's default profile",
    "least-loaded": "least loaded",
    "round-robin": "round robin",
}
_LONGEST_BAR_SECONDS = 0.4
"""Longer times go beyond the chart, and say how long they are."""
_WIDTH, _BAR, _LEFT, _RIGHT = 860, 26, 190, 330
_COLOURS = {
    "light": {"text": "#1f2328", "muted": "#656d76", "ours": "#0969da", "others": "#afb8c1"},
    "dark": {"text": "#e6edf3", "muted": "#8d96a0", "ours": "#4493f8", "others": "#484f58"},
}


class Figure(msgspec.Struct):
    """One run; a time is None where that share of the requests got no token within 30 seconds."""

    fleet: str
    profile: str
    p90_seconds: float | None
    p99_seconds: float | None
    dollars: float
    """Of busy devices, for 1,000 requests."""


def figures() -> list[Figure]:
    """Return the runs that the last `make bench-chart` has written."""
    return msgspec.json.decode(FIGURES.read_bytes(), type=list[Figure])


def document() -> str:
    """Return the page with the table in its place."""
    text = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    return _PLACE.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text)


def table() -> str:
    """Return the figures as Markdown."""
    lines = ["| | p90 | p99 | $ per 1,000 requests |", "|---|---|---|---|"]
    for fleet, title in _FLEETS.items():
        lines.append(f"| **{title}** | | | |")
        lines += [
            f"| {_NAMES[one.profile]} | {_time(one.p90_seconds)} | {_time(one.p99_seconds)} | {one.dollars:.3f} |"
            for one in figures()
            if one.fleet == fleet
        ]
    return "\n".join(lines)


def chart(theme: str) -> str:
    """Return the p90 times as an SVG, light or dark."""
    colours = _COLOURS[theme]
    body: list[str] = []
    y = 24
    for fleet, title in _FLEETS.items():
        body.append(f'<text x="0" y="{y}" font-weight="600" fill="{colours["text"]}">{title}</text>')
        y += 14
        for one in figures():
            if one.fleet == fleet:
                body += _bar(one, y, colours)
                y += _BAR
        y += 30
    label = "Time to the first token that 90 % of requests stay within, and dollars for 1,000 requests, by profile."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y - 20}" width="{_WIDTH}" role="img" '
        f'aria-label="{label}" font-family="system-ui, sans-serif" font-size="14">\n' + "\n".join(body) + "\n</svg>\n"
    )


def _bar(one: Figure, y: int, colours: dict[str, str]) -> Iterator[str]:
    seconds = one.p90_seconds
    most = _WIDTH - _LEFT - _RIGHT
    width = most if seconds is None else max(min(seconds / _LONGEST_BAR_SECONDS, 1) * most, 2)
    colour = colours["ours" if one.profile == "adaptive" else "others"]
    name = _NAMES[one.profile].replace("`", "").partition(",")[0]
    yield f'<text x="{_LEFT - 10}" y="{y + 18}" text-anchor="end" fill="{colours["text"]}">{name}</text>'
    yield f'<rect x="{_LEFT}" y="{y + 4}" width="{width:.0f}" height="{_BAR - 8}" rx="3" fill="{colour}"/>'
    if seconds is None or seconds > _LONGEST_BAR_SECONDS:  # a cut: the bar would be longer
        x, bottom, rise = _LEFT + most - 14, y + _BAR - 2, f"l6 {8 - _BAR}"
        yield f'<path d="M{x} {bottom} {rise} M{x + 6} {bottom} {rise}" stroke="{colours["text"]}"/>'
    said = f"p90 {_time(seconds)}, ${one.dollars:.3f} per 1,000"
    yield f'<text x="{_LEFT + width + 8:.0f}" y="{y + 18}" fill="{colours["muted"]}">{said}</text>'


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "over 30 s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
