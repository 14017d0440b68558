# SPDX-License-Identifier: Apache-2.0
"""The reader of YAML and JSON: plain data with lines, from untrusted text, without input that could end the process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import yaml

from epp.framework.files import read_regular
from epp.framework.input_errors import ParameterError, read_struct

try:
    from yaml import CSafeLoader as _Loader  # SafeLoader takes seconds for 1 MiB
except ImportError:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # without libyaml

_DEPTH_LIMIT = 16
"""Deepest nesting of the files of `read_rows`, `read_list` and `read_mapping`."""
_MOST_BYTES = 16 * 1024 * 1024
"""Largest list of profiles."""
_MOST_CALIBRATED_BYTES = 64 * 1024
"""Largest file of `epp calibrate`."""
_MOST_ALIASED = 1_000_000
"""Most values that all aliases of a text together expand to."""
_MISTAKES: Mapping[str, str] = {
    "while scanning a quoted scalar": "a quote is opened and not closed",
    "while scanning a simple key": "a key is not followed by a colon and a space",
    "while parsing a flow sequence": "[ is not closed, or a comma is missing",
    "while parsing a flow mapping": "{ is not closed, or a comma is missing",
    "while parsing a flow node": "a value is missing, or a bracket is not closed",
    "mapping values are not allowed in this context": "a colon is not expected here: put the value in quotes, or "
    "indent the keys of a mapping alike and write a space after each colon",
}
"""By the context or the problem that libyaml reports."""
_NOTHING = yaml.ScalarNode("tag:yaml.org,2002:null", "", yaml.Mark("", 0, 0, 0, "", 0))
"""The root of an empty text."""
S = TypeVar("S", bound=msgspec.Struct)


class YamlTextError(ValueError):
    """A text that is neither YAML nor JSON, or that cannot be loaded safely."""

    def __init__(self, text: str, problem: str, index: int, *, remedy: str = "", is_yaml: bool = False) -> None:
        line = text.count("\n", 0, index) + 1
        kind = "" if is_yaml else "neither YAML nor JSON"
        super().__init__(f"line {line}: {': '.join(part for part in (kind, problem, remedy) if part)}")
        self.problem = problem
        self.index = index
        """Place of the problem in the text, counted in characters from 0."""
        self.remedy = remedy
        """Empty for none."""
        self.is_yaml = is_yaml
        """Whether the text is YAML that cannot be loaded safely."""


@dataclass(frozen=True, slots=True)
class PlainYaml:
    """One document of a text."""

    data: object
    """Dicts, lists and scalars; dates are strings, like in Kubernetes."""
    root: yaml.Node
    """An empty scalar for an empty text."""

    def line(self, *path: str | int) -> int:
        """Return the line, counted from 1, of the innermost part of a path of keys and indexes that exists."""
        line: int = begin_of(self.root, path).start_mark.line
        return line + 1


def begin_of(root: yaml.Node, path: tuple[str | int, ...]) -> yaml.Node:
    """Return the node of the key or item at which the innermost existing part of a path begins."""
    begin = node = root
    for step in path:
        found = step_into(node, step)
        if found is None:
            break
        begin, node = found
    return begin


def step_into(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node at which a key or index begins, and the node of its value; None if there is no such part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, overriding keys last
            if key.value == step:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def load(text: str, depth_limit: int, *, secret: bool = False) -> PlainYaml:
    """Return the only document of a text; raises YamlTextError, also for text that cannot be loaded safely.

    Not safe are: nesting deeper than the limit, because the loader recurses in C; aliases that expand to millions of
    values, or to a value that contains itself; and repeated keys in a mapping, of which a part would be lost silently.

    With `secret`, no error has a word of the text, no data is constructed, and keys may repeat.
    """
    with _reading(text, depth_limit, keys_may_repeat=secret, secret=secret) as loader:
        root = loader.get_single_node() or _NOTHING
        data = None if secret else loader.construct_document(root)
    return PlainYaml(data, root)


def load_all(
    text: str,
    depth_limit: int,
    *,
    keys_may_repeat: bool = False,
    prepare: Callable[[yaml.Node], None] = lambda _: None,
) -> Iterator[PlainYaml]:
    """Yield the documents of a text that are not empty; raises the errors of `load`.

    `prepare` is called with the root of each document and may change its nodes before the data is constructed.
    """
    with _reading(text, depth_limit, keys_may_repeat=keys_may_repeat) as loader:
        while loader.check_node():
            root = loader.get_node() or _NOTHING
            prepare(root)
            data = loader.construct_document(root)
            if data is not None:
                yield PlainYaml(data, root)


@contextmanager
def _reading(text: str, depth_limit: int, *, keys_may_repeat: bool, secret: bool = False) -> Iterator["_PlainLoader"]:
    """Provide a loader of a text that is safe to load; errors within the block become YamlTextError."""
    try:
        _refuse_unsafe(text, depth_limit, keys_may_repeat=keys_may_repeat)
        loader = _PlainLoader(text)
        try:
            yield loader
        finally:
            loader.dispose()
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeEncodeError) as error:
        fault = _fault(text, error)
        raise YamlTextError(text, "", fault.index) if secret else fault from None


def _fault(text: str, error: yaml.MarkedYAMLError | yaml.reader.ReaderError | UnicodeEncodeError) -> YamlTextError:
    if isinstance(error, yaml.MarkedYAMLError):
        return _syntax_error(text, error)
    index = error.start if isinstance(error, UnicodeEncodeError) else text.index(chr(error.character))
    return YamlTextError(text, f"character U+{ord(text[index]):04X} is not allowed", index)


def _syntax_error(text: str, error: yaml.MarkedYAMLError) -> YamlTextError:
    index = _index(error.problem_mark)
    if text[index : index + 1] == "\t":
        return YamlTextError(text, "a tab in the indentation", index, remedy="write spaces")
    known = _MISTAKES.get(error.context or error.problem or "")
    if known is not None:  # its place is where a bracket is opened, not where the text ends
        return YamlTextError(text, known, _index(error.context_mark or error.problem_mark))
    return YamlTextError(text, ", ".join(part for part in (error.context, error.problem) if part), index)


def _index(mark: Any) -> int:  # the marks of yaml and of libyaml, which have no common type
    return 0 if mark is None else mark.index


class _PlainLoader(_Loader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  yaml calls it so
        """Construct a value; the error for a value that cannot be constructed has its place."""
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            problem = f"{node.value!r:.60} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _as_string(loader: _PlainLoader, node: yaml.ScalarNode) -> object:
    return loader.construct_scalar(node)


_PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_string)


def _refuse_unsafe(text: str, depth_limit: int, *, keys_may_repeat: bool) -> None:
    scan = _Scan(depth_limit, keys_may_repeat=keys_may_repeat)
    for event in yaml.parse(text, Loader=_Loader):
        try:
            scan.take(event)
        except ValueError as error:
            raise YamlTextError(text, str(error), _index(event.start_mark), is_yaml=True) from None


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
                raise ValueError("an alias is inside its own anchor")
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
    document = load(text, _DEPTH_LIMIT)
    if document.data is None:
        raise ValueError(f"it is empty: {form}")
    entries = document.data
    place: tuple[str, ...] = ()
    problems: list[str] = []
    if key and isinstance(entries, dict):
        for name, value in entries.items():
            if name != key and beside is not None and (problem := beside(str(name), value)):
                problems.append(f"line {document.line(str(name))}: {problem}")
        entries, place = entries.get(key), (key,)
    if not isinstance(entries, list):
        raise ValueError(f"line {document.line(*place)}: there is no list: {form}")  # noqa: TRY004  an error in a file
    rows = []
    for index, entry in enumerate(entries):
        line = document.line(*place, index)
        if isinstance(entry, dict):
            rows.append(Row(line, {str(name): value for name, value in entry.items() if value is not None}))
        else:
            problems.append(f"line {line}: it is {entry!r:.60}: write an entry in braces, or key: value")
    return Rows(tuple(rows), tuple(problems))


def read_mapping(path: Path) -> dict[str, object]:
    """Return the mapping in a YAML file of `epp calibrate`; raises ValueError with the problem."""
    found = _read(path, _MOST_CALIBRATED_BYTES, "name a file of `epp calibrate`")
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError("is not a mapping: name a file of `epp calibrate`, or write `field: value` lines")
    return found


def read_list(parameter: str, path: str, entry: type[S]) -> tuple[S, ...]:
    """Return the entries of the list in a file; raises a ValueError with the parameter, the file and the place."""
    what = f"{parameter} {path!r}"
    try:
        found = _read(Path(path), _MOST_BYTES, "leave entries out")
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    if not isinstance(found, list):
        raise ValueError(f"{what} is not a list; begin each entry with `- `")  # noqa: TRY004  as plugins must raise
    whole = msgspec.defstruct("ListInFile", [("entries", tuple[entry, ...])])  # type: ignore[valid-type]  # a type at run time
    try:
        (entries,) = msgspec.structs.astuple(read_struct(whole, {"entries": found}))
    except ParameterError as error:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path[1:])
        raise ValueError(f"{what}, {place}: {error}") from error
    return cast("tuple[S, ...]", entries)


def _read(path: Path, most_bytes: int, remedy: str) -> object:
    try:
        content = read_regular(path, most_bytes).data
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > most_bytes:
        raise ValueError(f"has more than {most_bytes} bytes: {remedy}")
    return load(content.decode("utf-8-sig"), _DEPTH_LIMIT).data
