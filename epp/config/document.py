# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON texts, with the line and column of every part, and problems with their place in the text."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import yaml

from epp.framework import ConfigurationError
from epp.framework.messages import without_credentials
from epp.framework.plain_yaml import YamlTextError, begin_of, load_all, step_into

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_MOST_DEPTH = 64
_JOIN = "remove one of them, or join them"
_LINE_ENDS = re.compile(r"\r\n|\r|\n")

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the top of the document."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A line and a column, both counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Place:
    position: Position | None = None
    inside: str = ""
    """Place within a quoted text that has no lines in the file."""


@dataclass(frozen=True, slots=True)
class Problem:
    message: str
    path: Path = ()
    position: Position | None = None
    origin: str = ""
    remedy: str = ""
    """Empty for none."""
    inside: str = ""
    """Place within a quoted text that has no lines in the file."""

    def __str__(self) -> str:
        """Format as `file.yaml:3:5: plugins[0].type: message; remedy`; editors can jump to the place."""
        place = f"{self.origin}:{self.position}" if self.position else self.origin
        text = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return ": ".join(part for part in (place, self.inside, written(self.path), without_credentials(text)) if part)


class Text:
    """A text, perhaps quoted by another text; places refer to the outermost text, the file."""

    def __init__(self, text: str, within: "Quotation | None" = None) -> None:
        self.text = text
        self._within = within
        self._starts = [0, *(end.end() for end in _LINE_ENDS.finditer(text))]  # only the line ends that editors know

    @property
    def lines(self) -> list[str]:
        return _LINE_ENDS.split(self.text)

    def position(self, index: int) -> Position:
        line = bisect_right(self._starts, index)
        return Position(line, index - self._starts[line - 1] + 1)

    def place(self, index: int) -> Place:
        """Return the place of a character in the file."""
        position = self.position(index)
        return Place(position) if self._within is None else self._within.place(position)

    def fault(self, message: str, index: int, remedy: str = "") -> Problem:
        """Return a problem at a character; the origin is not known here."""
        place = self.place(index)
        return Problem(message, (), place.position, "", remedy, place.inside)


@dataclass(frozen=True, slots=True)
class Quotation:
    """A text within a text; maps places in it to places in the file if the file shows the same lines."""

    label: str
    begin: Position
    indents: tuple[int, ...] = ()
    """Indentation of each line of a literal block after `begin`; empty for any other style."""

    @classmethod
    def of(cls, label: str, node: yaml.ScalarNode, source: Text) -> "Quotation":
        """Return the place of a scalar in the text that it was read from."""
        begin = source.position(node.start_mark.index)
        if node.style != "|":
            return cls(label, begin)
        lines = zip(source.lines[begin.line :], Text(node.value.rstrip("\n")).lines, strict=False)
        return cls(label, begin, tuple(len(outer) - len(inner) for outer, inner in lines))

    def place(self, inner: Position) -> Place:
        if self.indents:
            line = min(inner.line, len(self.indents))  # the end of a text is after its last line
            column = max(self.indents[line - 1], 0) + (inner.column if line == inner.line else 1)
            return Place(Position(self.begin.line + line, column))
        return Place(self.begin, f"line {inner.line} of {self.label}")


class NotYamlError(Exception):
    def __init__(self, fault: Problem) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a text; `content` has plain dicts with string keys, lists and scalars."""

    content: object
    node: yaml.Node
    source: Text
    faults: tuple[Problem, ...] = ()
    """Repeated keys; the last value is used."""

    def place(self, path: Path) -> Place:
        """Return the start of the key or item at this path, or of the innermost existing part around it.

        Content of a merge key has the place where it is written.
        """
        return self.source.place(begin_of(self.node, path).start_mark.index)

    def part(self, *path: str | int) -> "Document":
        """Return the part at this path as a document; raises KeyError if it does not exist."""
        node, content = self.node, self.content
        for step in path:
            found = step_into(node, step)
            if found is None or not isinstance(content, (dict, list)):
                raise KeyError(step)
            node, content = found[1], content[step]  # type: ignore[index]  # a key or an index
        return replace(self, node=node, content=content, faults=())

    def quoted(self, label: str) -> Text | None:
        """Return the content as a separate text; None if it is not a string."""
        if isinstance(self.node, yaml.ScalarNode) and isinstance(self.content, str):
            return Text(self.content, Quotation.of(label, self.node, self.source))
        return None


def read_documents(source: Text) -> tuple[Document, ...]:
    """Return the non-empty documents of a text; raises NotYamlError."""
    try:
        return tuple(_documents(source))
    except YamlTextError as error:
        what = "is not usable" if error.is_yaml else "is not valid YAML"
        raise NotYamlError(source.fault(f"{what}: {error.problem}", error.index, error.remedy)) from error


def _documents(source: Text) -> Iterator[Document]:
    repeated: list[yaml.ScalarNode] = []

    def prepare(root: yaml.Node) -> None:
        repeated[:] = _with_text_keys(root, set())

    for each in load_all(source.text, _MOST_DEPTH, keys_may_repeat=True, prepare=prepare):
        faults = (source.fault(f"key {key.value!r} is repeated", key.start_mark.index, _JOIN) for key in repeated)
        yield Document(each.data, each.root, source, tuple(faults))


def _with_text_keys(node: yaml.Node, visited: set[int]) -> Iterator[yaml.ScalarNode]:
    """Make all keys strings, and yield the repeated ones."""
    if id(node) in visited:  # by an alias
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _with_text_keys(item, visited)
    elif isinstance(node, yaml.MappingNode):
        found: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in found:
                    yield key
                found.add(key.value)
                if key.tag != _MERGE:
                    key.tag = _TEXT
            yield from _with_text_keys(value, visited)


class InvalidConfigError(ConfigurationError):
    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.problems)))


def in_order_of_the_file(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by position; problems without a position come first."""
    return sorted(problems, key=lambda problem: problem.position or Position(1, 1))


def written(path: Path) -> str:
    """Format ("plugins", 0, "type") as `plugins[0].type`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")
