# SPDX-License-Identifier: Apache-2.0
"""The values of the Helm chart as a table, from the comments of its values.yaml."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHART = Path(__file__).parents[1] / "deploy" / "chart"
PAGE = "deploy/chart/README.md"
_PLACE = re.compile(
    r"(<!-- values, written by `make docs` from values\.yaml -->\n).*?(<!-- end of values -->)", re.DOTALL
)
_KEY = re.compile(r"( *)([A-Za-z]\w*):(?: (.*))?")
_COMMENT = re.compile(r" *# ?(.*)")
_ITEM = re.compile(r" *- ")


class Value(NamedTuple):
    """A value of the chart."""

    path: str
    default: str
    """As in YAML; empty for a group of values."""
    text: str


def values(content: str) -> Iterator[Value]:
    """Yield all values in the order of the file; the comment of a group is that of its first value as well."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    lines = content.splitlines()
    for number, line in enumerate(lines):
        if (match := _KEY.fullmatch(line)) is not None:
            indent, name, default = len(match[1]), match[2], match[3] or ""
            path = [each for each in path if each[0] < indent]
            path.append((indent, name))
            default = default or " ".join(each.strip() for each in _items(lines[number + 1 :]))
            if default or comment:
                yield Value(".".join(each for _, each in path), default, " ".join(comment))
            comment = []
        elif (match := _COMMENT.fullmatch(line)) is not None and not match[1].startswith(" "):
            comment.append(match[1])
        else:
            comment = []


def _items(lines: list[str]) -> Iterator[str]:
    """Yield the items of the list at the beginning of these lines."""
    for line in lines:
        if not _ITEM.match(line):
            return
        yield line


def document() -> str:
    """Return the README of the chart with the table of its values."""
    found = values((CHART / "values.yaml").read_text(encoding="utf-8"))
    rows = [f"| `{each.path}` | {_code(each.default)} | {each.text.replace('|', chr(92) + '|')} |" for each in found]
    table = "\n".join(["| value | default | |", "|---|---|---|", *rows])
    page = (CHART / "README.md").read_text(encoding="utf-8")
    return _PLACE.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
