# SPDX-License-Identifier: Apache-2.0
"""Untrusted YAML as plain data, without input that could end the process; and entries of lists with their lines."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import yaml

try:
    from yaml import CSafeLoader as _Loader  # SafeLoader takes seconds for 1 MiB
except ImportError:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # without libyaml


class PlainLoader(_Loader):
    """Loads dates as strings, like Kubernetes."""


def _as_string(loader: PlainLoader, node: yaml.ScalarNode) -> object:
    return loader.construct_scalar(node)


PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_string)

_DEPTH_LIMIT = 16
_MOST_ALIASED = 1_000_000
"""Most values that all aliases of a text together expand to."""


class UnsafeTextError(ValueError):
    def __init__(self, problem: str, event: yaml.Event) -> None:
        mark = event.start_mark
        super().__init__(problem if mark is None else f"line {mark.line + 1}: {problem}")
        self.problem = problem
        self.index: int | None = None if mark is None else mark.index
        """Place of the problem in the text, counted in characters from 0; None if unknown."""


def refuse_unsafe(text: str, depth_limit: int, *, keys_may_repeat: bool = False) -> None:
    """Raise UnsafeTextError for text that cannot be loaded safely, or of which a part would be lost silently.

    It refuses nesting deeper than the limit, because the loader recurses in C; aliases that expand to millions of
    values, or to a value that contains itself; and duplicate keys in a mapping, unless keys may repeat.
    """
    scan = _Scan(depth_limit, keys_may_repeat=keys_may_repeat)
    for event in yaml.parse(text, Loader=_Loader):
        try:
            scan.take(event)
        except ValueError as error:
            raise UnsafeTextError(str(error), event) from None


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been read yet."""

    anchor: str | None
    at_key: bool
    keys: set[tuple[str, tuple[bool, bool]]] | None
    """None in a list."""
    parts: int = 1


class _Scan:
    def __init__(self, depth_limit: int, *, keys_may_repeat: bool) -> None:
        self._depth_limit = depth_limit
        self._keys_may_repeat = keys_may_repeat
        self._open: list[_Open] = []
        self._parts_of: dict[str | None, int] = {}
        """Number of values that an anchor expands to; 0 before its end."""
        self._aliased = 0

    def take(self, event: yaml.Event) -> None:
        """Read the next event; raises ValueError."""
        if isinstance(event, yaml.ScalarEvent):
            self._parts_of[event.anchor] = 1
            if self._open:
                self._scalar(event, self._open[-1])
        elif isinstance(event, yaml.CollectionStartEvent):
            self._parts_of[event.anchor] = 0
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            self._open.append(_Open(event.anchor, is_mapping, set() if is_mapping else None))
            if len(self._open) > self._depth_limit:
                raise ValueError(f"nested more than {self._depth_limit} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._open.pop()
            self._parts_of[closed.anchor] = closed.parts
            self._add(closed.parts)
        elif isinstance(event, yaml.AliasEvent):
            parts = self._parts_of.get(event.anchor, 1)
            if not parts:
                raise ValueError(f"alias {event.anchor!r} is inside its own anchor")
            self._aliased += parts
            if self._aliased > _MOST_ALIASED:
                raise ValueError(f"its aliases expand to more than {_MOST_ALIASED} values: write fewer")
            self._add(parts)

    def _scalar(self, event: yaml.ScalarEvent, within: _Open) -> None:
        if within.at_key and within.keys is not None and not self._keys_may_repeat:
            key = event.value, event.implicit
            if key in within.keys and event.value != "<<":
                raise ValueError(f"key {event.value!r:.60} is repeated: remove one of them")
            within.keys.add(key)
        self._add(1)

    def _add(self, parts: int) -> None:
        """Count values in the enclosing collection; in a mapping, keys and values alternate."""
        if self._open:
            within = self._open[-1]
            within.parts += parts
            within.at_key = within.keys is not None and not within.at_key


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

    Raises ValueError with the line and the remedy `form` for a text without such a list.
    """
    try:
        refuse_unsafe(text, _DEPTH_LIMIT)
        root, data = _loaded(text)
    except yaml.YAMLError as error:
        raise ValueError(f"neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if root is None:
        raise ValueError(f"it is empty: {form}")
    problems: list[str] = []
    if key and isinstance(root, yaml.MappingNode) and isinstance(data, dict):
        problems.extend(_beside(root, data, key, beside))
        root, data = next(((node, data[key]) for name, node in root.value if name.value == key), (root, None))
    if not isinstance(root, yaml.SequenceNode) or not isinstance(data, list):
        raise ValueError(f"line {_line(root)}: there is no list: {form}")  # noqa: TRY004  an error in a file
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
