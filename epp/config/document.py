# SPDX-License-Identifier: Apache-2.0
"""A YAML or JSON text, with the line and column of every part."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"

Path: TypeAlias = tuple[str | int, ...]
"""Where something stands: keys and indexes from the top of the document."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Counted from 1, as editors do."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class NotYamlError(Exception):
    """The text cannot be read; `position` says where that begins, if anything does."""

    def __init__(self, problem: str, position: Position | None) -> None:
        super().__init__(problem)
        self.position = position


class Document:
    """Read once; `content` is plain dicts, lists and scalars, and every key in it a string."""

    def __init__(self, text: str) -> None:
        """Read the text; raises NotYamlError."""
        self.text = text
        self._root: yaml.Node | None = None
        self.content: object = None
        try:
            self._read()
        except yaml.reader.ReaderError as error:
            problem = f"character U+{error.character:04X} is not allowed"
            raise NotYamlError(problem, _position_at(text, error.position)) from error
        except yaml.MarkedYAMLError as error:
            problem = ", ".join(part for part in (error.context, error.problem) if part)
            mark = error.problem_mark
            raise NotYamlError(problem, None if mark is None else _position(mark)) from error
        except RecursionError as error:
            raise NotYamlError("nested too deeply", None) from error

    def _read(self) -> None:
        loader = _StrictLoader(self.text)
        try:
            self._root = loader.get_single_node()
            self.content = None if self._root is None else loader.construct_document(self._root)
        finally:
            loader.dispose()

    def position(self, path: Path) -> Position:
        """Return where the key or item at this path begins; of one that is not there, the nearest one around it.

        What a merge key brought in stands where it is written.
        """
        node = self._root
        position = Position(1, 1)
        for step in path:
            found = None if node is None else _step(node, step)
            if found is None:
                break
            begin, node = found
            position = _position(begin.start_mark)
        return position


def _step(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node where the step begins, and the one it leads to."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, and those that take their place last
            if key.value == step:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _position_at(text: str, index: int) -> Position:
    before = text[:index]
    return Position(before.count("\n") + 1, index - before.rfind("\n"))


class _StrictLoader(yaml.SafeLoader):
    """Takes what JSON can say: keys are strings, dates too, tabs may stand between brackets.

    Refuses a key that stands twice in one mapping, where YAML would take the last one in silence.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  never changed
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.flow_level and self.peek() == "\t":
            self.forward()
            super().scan_to_next_token()

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # refused further on
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
            if key.tag != _MERGE:
                key.tag = _TEXT
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  yaml calls it so
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            problem = f"{node.value!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
