# SPDX-License-Identifier: Apache-2.0
"""The figures of a run as a table for a terminal."""

from collections.abc import Iterator

from perf.bench.report.document import Document, Figures, RowFigures


def table(document: Document) -> str:
    """Return a line for the machine and for each row."""
    heads = ["row", "unit", *document.pickers, *_peers(document), "target", ""]
    lines = [heads, *(_cells(document, row) for row in document.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join([*_intro(document), *("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)])


def _intro(document: Document) -> Iterator[str]:
    machine = document.machine
    yield f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}, {document.date}"
    yield ", ".join(f"{name} {version}" for name, version in document.versions.items())
    yield "CPU time of the picker's process, net of idle: median (minimum to maximum of n rounds)"
    if document.quick:
        yield "--quick: small pools and few repetitions; figures are not reliable"
    yield ""


def _peers(document: Document) -> list[str]:
    names = dict.fromkeys(name for row in document.rows for name in row.ratios)
    return [f"ratio to {name} (least)" for name in names]


def _cells(document: Document, row: RowFigures) -> list[str]:
    ratios = [
        f"{ratio.median:.2f} ({ratio.least:.2f})" if (ratio := row.ratios.get(name)) else ""
        for name in dict.fromkeys(name for each in document.rows for name in each.ratios)
    ]
    figures = [_figures(row.by[name]) if name in row.by else "" for name in document.pickers]
    verdict = {True: "met", False: "not met", None: ""}[row.met]
    return [row.title, row.unit, *figures, *ratios, "" if row.target is None else f"<= {number(row.target)}", verdict]


def _figures(found: Figures) -> str:
    return f"{number(found.median)} ({number(found.min)} to {number(found.max)}, {found.n})"


def number(figure: float) -> str:
    """Return a figure with three significant digits."""
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(figure) >= limit:
            return f"{figure:,.{digits}f}"
    return f"{figure:.3f}"
