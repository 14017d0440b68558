# SPDX-License-Identifier: Apache-2.0
"""The figures of a hostile campaign, `hostile.json`, as a table in its page: a line for each row."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

REPOSITORY = Path(__file__).parents[1]
CAMPAIGN = REPOSITORY / "perf/hostile/hostile.json"
PAGE = "perf/hostile/README.md"
PLACE = re.compile(
    r"(<!-- figures, written by `make docs` from hostile\.json -->\n).*?(<!-- end of figures -->)", re.DOTALL
)
_COLUMNS = {
    "p99 beside": "p99 beside it",
    "longest": "longest beside it",
    "lost": "requests lost beside it",
    "memory at its highest": "memory grown at its highest",
    "memory after": "memory grown after",
}
"""Heads, and the names of the figures."""


def table(content: bytes) -> str:
    """Return the figures of a campaign as Markdown."""
    campaign: Mapping[str, Any] = msgspec.json.decode(content)
    rows = {name: list(figures) for name, figures in groupby(campaign["figures"], key=lambda figure: figure["row"])}
    judged = [figure for figure in campaign["figures"] if figure["verdict"] != "not judged"]
    wrong = sum(figure["verdict"] == "WRONG" for figure in judged)
    run = f"`--size {campaign['size']} --transport {campaign['transport']}`"
    lines = [
        f"{run}: {len(rows)} rows, {len(judged)} figures with a target, {wrong} wrong.",
        "",
        f"| row | {' | '.join(_COLUMNS)} | judged | wrong |",
        "|---|" + "---:|" * (len(_COLUMNS) + 2),
        *(f"| `{name}` | {' | '.join(_cells(figures))} |" for name, figures in rows.items()),
    ]
    return "\n".join(lines)


def _cells(figures: Sequence[Mapping[str, str]]) -> list[str]:
    found = {figure["name"]: figure["figure"] for figure in figures}
    verdicts = [figure["verdict"] for figure in figures]
    shown = [found.get(name, "-") for name in _COLUMNS.values()]
    return [*shown, str(len(verdicts) - verdicts.count("not judged")), str(verdicts.count("WRONG"))]


def document() -> str:
    """Return the page as it is, with the figures of the campaign if there are any."""
    text = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    if not CAMPAIGN.exists():
        return text
    return PLACE.sub(lambda found: f"{found[1]}\n{table(CAMPAIGN.read_bytes())}\n\n{found[2]}", text)
