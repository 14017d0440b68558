# SPDX-License-Identifier: Apache-2.0
"""The page around plots and tables: one file without scripts or links, readable in print and in dark mode."""

from collections.abc import Sequence
from html import escape

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
p { margin: .3rem 0; max-width: 46rem; } .note, .empty, figcaption { color: var(--dim); }
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


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """Return a page with these parts, which are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="note">{escape(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str, note: str = "") -> str:
    """Return a heading, a sentence below it, and parts."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2>{below}{''.join(parts)}"


def figure(plot: str, caption: str = "", *, above: str = "") -> str:
    """Return a plot with its legend above and its caption below."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{above}{plot}{below}</figure>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column names the rows."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Return a text with its line breaks, in a fixed-width font."""
    return f"<pre>{escape(text)}</pre>"
