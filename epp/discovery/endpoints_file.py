"""Reads a file of endpoints, YAML or JSON, and refuses a bad one with entry, field, line and remedy."""

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import yaml

from epp.discovery.target import Target, read_host, read_port
from epp.framework.accelerators import AcceleratorDeclaration
from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.parameters import ParameterError, read_struct
from epp.plain_yaml import PlainLoader, refuse_deep_nesting

_LIMIT_BYTES = 1024 * 1024
_DEPTH_LIMIT = 16
_FIELDS = ("name", "namespace", "address", "port", "labels", "node", "cluster", "accelerator")


class _Mark(Protocol):
    """A place in a file; the fast and the slow loader have a class each."""

    @property
    def line(self) -> int: ...


class _BadEntryError(ValueError):
    """What is wrong with which field of an entry; without a field, with all of it."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field


def read_content(path: str) -> bytes:
    """Return the file's bytes; raises ConfigurationError when it cannot be read or has more than 1 MiB."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"endpoints file {path}: {error.strerror}") from error
    if len(content) > _LIMIT_BYTES:
        raise ConfigurationError(f"endpoints file {path}: it has more than {_LIMIT_BYTES} bytes")
    return content


def read_targets(content: bytes, path: str) -> tuple[Target, ...]:
    """Return the endpoints of a file's content; raises ConfigurationError. `path` is for the message."""
    root, data = _load(content, path)
    if not isinstance(data, dict) or "endpoints" not in data:
        raise ConfigurationError(f"endpoints file {path}: it has no list 'endpoints': for none write 'endpoints: []'")
    try:
        _refuse_unknown(data, ("endpoints",))
    except _BadEntryError as error:
        raise ConfigurationError(f"endpoints file {path}: {error}") from None
    entries = data["endpoints"]
    if not isinstance(entries, list):
        raise ConfigurationError(f"endpoints file {path}: 'endpoints' is not a list: for none write 'endpoints: []'")
    targets: list[Target] = []
    taken: dict[object, int] = {}
    for index, entry in enumerate(entries):
        try:
            target = _read_entry(entry)
            _refuse_duplicate(target, index, taken)
        except _BadEntryError as error:
            place = _describe(entry, index, _line_of(root, index, error.field))
            raise ConfigurationError(f"endpoints file {path}: {place}: {error}") from None
        targets.append(target)
    return tuple(targets)


def _load(content: bytes, path: str) -> tuple[yaml.Node | None, object]:
    try:
        text = content.decode("utf-8-sig")
        if text.lstrip().startswith("{"):
            text = text.replace("\t", " ")  # the one thing in a JSON file that YAML does not take
        refuse_deep_nesting(text, _DEPTH_LIMIT)
        loader = PlainLoader(text)
        try:
            root = loader.get_single_node()
            return root, None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        place = _line(error.problem_mark)
        raise ConfigurationError(f"endpoints file {path}: {place}neither YAML nor JSON: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"endpoints file {path}: neither YAML nor JSON: {error}") from error


def _line(mark: _Mark | None) -> str:
    return "" if mark is None else f"line {mark.line + 1}: "


def _read_entry(entry: object) -> Target:
    if not isinstance(entry, dict):
        raise _BadEntryError(f"not a mapping: write the fields {', '.join(_FIELDS)}")
    _refuse_unknown(entry, _FIELDS)
    for key in ("name", "address", "port"):
        if entry.get(key) in (None, ""):
            raise _BadEntryError("missing: every endpoint has name, address and port", key)
    name, address = _text(entry, "name"), _text(entry, "address")
    namespace = _text(entry, "namespace") if entry.get("namespace") is not None else "default"
    labels = entry.get("labels")
    if labels is None:
        labels = {}
    if not isinstance(labels, dict):
        raise _BadEntryError("not a mapping: write key: value", "labels")
    for key, value in labels.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise _BadEntryError(
                f"{reprlib.repr(key)}: {reprlib.repr(value)} is not a pair of texts: put both in quotes", "labels"
            )
    try:
        host = read_host(address)
    except ValueError as error:
        raise _BadEntryError(str(error), "address") from None
    try:
        port = read_port(entry["port"])
    except ValueError as error:
        raise _BadEntryError(str(error), "port") from None
    node = _text(entry, "node") if entry.get("node") is not None else ""
    cluster = _text(entry, "cluster") if entry.get("cluster") is not None else ""
    return Target(name, host, port, namespace, labels, node, cluster, _accelerator(entry.get("accelerator")))


def _accelerator(value: object) -> AcceleratorDeclaration | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _BadEntryError("not a mapping: write class, count and so on", "accelerator")
    try:
        return read_struct(AcceleratorDeclaration, value)
    except ParameterError as error:
        place = ".".join(map(str, error.path))
        raise _BadEntryError(f"{place}: {error}" if place else str(error), "accelerator") from None


def _text(entry: Mapping[object, object], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise _BadEntryError(f"{reprlib.repr(value)} is not a text: put it in quotes", key)
    return value


def _refuse_unknown(given: Iterable[object], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise _BadEntryError(f"unknown field {key!r}: {hint_at(str(key), known)}", str(key))


def _refuse_duplicate(target: Target, index: int, taken: dict[object, int]) -> None:
    for key, field, what in (
        ((target.namespace, target.name), "name", f"{target.name!r} in namespace {target.namespace!r}"),
        ((target.host.lower(), target.port), "address", f"{target.host!r} with port {target.port}"),
    ):
        first = taken.setdefault((field, key), index)
        if first != index:
            raise _BadEntryError(f"{what} is that of endpoints[{first}] already: leave one out", field)


def _describe(entry: object, index: int, line: int | None) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"endpoints[{index}]{f' {reprlib.repr(name)}' if name else ''}{f' (line {line})' if line else ''}"


def _line_of(root: yaml.Node | None, index: int, field: str) -> int | None:
    """Return the line of an entry's field, or of the entry when it has no such field."""
    entries = _value_of(root, "endpoints")
    if not isinstance(entries, yaml.SequenceNode):
        return None
    entry = entries.value[index]
    node = _value_of(entry, field) or entry
    return int(node.start_mark.line) + 1


def _value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            if key_node.value == key:
                return value_node if isinstance(value_node, yaml.Node) else None
    return None
