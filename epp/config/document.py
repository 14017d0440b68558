"""A YAML or JSON text: what it says, and on which line and column it says it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

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
    """Read once; `content` is plain dicts, lists and scalars."""

    def __init__(self, text: str) -> None:
        """Read the text; raises NotYamlError."""
        self.text = text
        loader = _StrictLoader(text)
        try:
            self._root: yaml.Node | None = loader.get_single_node()
            self.content: object = None if self._root is None else loader.construct_document(self._root)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or " ".join(str(error).split())
            raise NotYamlError(problem, None if mark is None else _position(mark)) from error
        finally:
            loader.dispose()

    def position(self, path: Path) -> Position:
        """Return where the key or item at this path begins; of one that is not there, the nearest one around it."""
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
        for key, value in node.value:
            if key.value == step:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would take the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  yaml calls it so
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
