# SPDX-License-Identifier: Apache-2.0
"""Entries of a list in YAML or JSON, each with its line."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import yaml

from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe

_DEPTH_LIMIT = 16

BesideList = Callable[[str, object], str]
"""Returns the error for a key next to the list and its value; empty if valid."""


class Row(NamedTuple):
    """One entry without null values."""

    line: int
    fields: Mapping[str, object]


class Rows(NamedTuple):
    """Entries of a file, and errors with line and remedy."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()


def read_rows(text: str, *, form: str, key: str = "", beside: BesideList | None = None) -> Rows:
    """Return the entries of a list, or of the list under a key of a mapping.

    Raises ValueError with the line, and `form` as the remedy, for a text without such a list.
    """
    try:
        refuse_unsafe(text, _DEPTH_LIMIT)
        root, data = _loaded(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if root is None:
        raise ValueError(f"it is empty: {form}")
    problems: list[str] = []
    if key and isinstance(root, yaml.MappingNode) and isinstance(data, dict):
        problems.extend(_beside(root, data, key, beside))
        root, data = next(((node, data[key]) for name, node in root.value if name.value == key), (root, None))
    if not isinstance(root, yaml.SequenceNode) or not isinstance(data, list):
        raise ValueError(f"line {_line(root)}: there is no list: {form}")  # noqa: TRY004  of a file
    rows = []
    for node, entry in zip(root.value, data, strict=True):
        if isinstance(entry, dict):
            fields = {str(name): value for name, value in entry.items() if value is not None}
            rows.append(Row(_line(node), fields))
        else:
            problems.append(f"line {_line(node)}: it is {entry!r:.60}: write an entry in braces, or key: value")
    return Rows(tuple(rows), tuple(problems))


def _loaded(text: str) -> tuple[yaml.Node | None, object]:
    loader = PlainLoader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _beside(
    root: yaml.MappingNode, data: Mapping[object, object], key: str, validate: BesideList | None
) -> Iterator[str]:
    lines = {str(name.value): _line(name) for name, _ in root.value}
    for name, value in data.items():
        if name != key and validate is not None and (problem := validate(str(name), value)):
            yield f"line {lines.get(str(name), _line(root))}: {problem}"


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
