# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON texts, with the line and column of every part, and problems with their place in the text."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from epp.framework import ConfigurationError
from epp.framework.messages import without_credentials

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MOST_TABS = 20
_MOST_NODES = 100_000
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

    def place(self, index: int | None) -> Place:
        """Return the place of a character in the file; None for the text as a whole."""
        position = None if index is None else self.position(index)
        return Place(position) if self._within is None else self._within.place(position)

    def fault(self, message: str, index: int | None = None, remedy: str = "") -> Problem:
        """Return a problem at a character, or with the text as a whole; the origin is not known here."""
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

    def place(self, inner: Position | None) -> Place:
        if inner is not None and self.indents:
            line = min(inner.line, len(self.indents))  # the end of a text is after its last line
            column = max(self.indents[line - 1], 0) + (inner.column if line == inner.line else 1)
            return Place(Position(self.begin.line + line, column))
        return Place(self.begin, self.label if inner is None else f"line {inner.line} of {self.label}")


class NotYamlError(Exception):
    def __init__(self, *faults: Problem) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a text; `content` has plain dicts with string keys, lists and scalars."""

    content: object
    node: yaml.Node
    source: Text
    faults: tuple[Problem, ...] = ()
    """Errors such as repeated keys: the last value is used, and lists are joined."""

    def place(self, path: Path) -> Place:
        """Return the start of the key or item at this path, or of the innermost existing part around it.

        Content of a merge key has the place where it is written.
        """
        node: yaml.Node | None = self.node
        index = self.node.start_mark.index
        for step in path:
            found = None if node is None else _step(node, step)
            if found is None:
                break
            begin, node = found
            index = begin.start_mark.index
        return self.source.place(index)

    def part(self, *path: str | int) -> "Document":
        """Return the part at this path as a document; raises KeyError if it does not exist."""
        node, content = self.node, self.content
        for step in path:
            found = _step(node, step)
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
    except yaml.reader.ReaderError as error:
        problem = f"is not valid YAML: character U+{error.character:04X} is not allowed"
        raise NotYamlError(source.fault(problem, error.position)) from error
    except yaml.MarkedYAMLError as error:
        if tabs := tuple(_tabs_of_indentation(source.text)):
            problem, remedy = "is not valid YAML: a tab in the indentation", "write spaces"
            raise NotYamlError(*(source.fault(problem, tab, remedy) for tab in tabs)) from error
        problem = "is not valid YAML: " + ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark
        raise NotYamlError(source.fault(problem, None if mark is None else mark.index)) from error
    except RecursionError as error:
        raise NotYamlError(source.fault("is not valid YAML: nested too deeply")) from error


def _documents(source: Text) -> Iterator[Document]:
    loader = _StrictLoader(source.text)
    try:
        while loader.check_node():
            loader.repeated = []
            node = loader.get_node()
            if node is not None and _size(node, {}) > _MOST_NODES:
                problem = f"is not usable: with its aliases, it has more than {_MOST_NODES} parts"
                raise NotYamlError(source.fault(problem))
            content = loader.construct_document(node)
            if node is not None and content is not None:
                remedy = "remove one of them, or join them"
                repeated = [(f"key {key.value!r} is repeated", key.start_mark.index) for key in loader.repeated]
                yield Document(content, node, source, tuple(source.fault(*each, remedy) for each in repeated))
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes; an aliased node counts at each use."""
    size = known.get(id(node))
    if size is None:
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        size = known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return size


def _tabs_of_indentation(text: str) -> Iterator[int]:
    """Yield the index of the first tab in each line that is unreadable because of it."""
    lines: set[int] = set()
    for replaced in range(_MOST_TABS):
        try:
            for _ in yaml.compose_all(text, _StrictLoader):
                pass
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            if mark is None or text[mark.index : mark.index + 1] != "\t":
                return
            if mark.line not in lines:
                yield mark.index - replaced  # each replaced tab became two spaces
            lines.add(mark.line)
            text = f"{text[: mark.index]}  {text[mark.index + 1 :]}"
        else:
            return


def _step(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node at which the step begins, and the node that it leads to."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, overriding keys last
            if key.value == step:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


class _StrictLoader(yaml.SafeLoader):
    """Loads YAML with the types of JSON: keys and dates are strings, tabs are allowed between tokens.

    Records repeated keys of a mapping; YAML would use the last one silently.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  never changed
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[yaml.ScalarNode] = []

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or self._begun()):
            self.forward()
            super().scan_to_next_token()

    def _begun(self) -> bool:
        """Whether the line has other characters than spaces before this position."""
        line: str = self.buffer[self.pointer - self.column : self.pointer]
        return bool(line.strip())

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
            named = self.anchors.get(event.anchor)
            if named is not None and named.end_mark is None:  # still being read
                problem = f"alias {event.anchor!r} is inside its own anchor"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        pairs: list[tuple[yaml.Node, yaml.Node]] = []
        at: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                pairs.append((key, value))  # refused later
                continue
            if key.value in at:
                self.repeated.append(key)
                first = pairs[at[key.value]][1]
                if isinstance(first, yaml.SequenceNode) and isinstance(value, yaml.SequenceNode):
                    first.value.extend(value.value)
                else:
                    pairs[at[key.value]] = (key, value)
            else:
                at[key.value] = len(pairs)
                pairs.append((key, value))
            if key.tag != _MERGE:
                key.tag = _TEXT
        node.value = pairs
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  yaml calls it so
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            problem = f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


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
