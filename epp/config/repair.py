# SPDX-License-Identifier: Apache-2.0
"""Builds a partial model of a document with errors, so that all its errors are found in one run."""

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from epp.config.document import Path
from epp.config.model import API_VERSION, KIND, EndpointPickerConfig
from epp.framework.messages import nearest

_MOST_ROUNDS = 50
_FREE_TEXTS = {"name", "pluginRef"}
"""Strings that may look like numbers."""
_FIXED = {"apiVersion": API_VERSION, "kind": KIND}


@dataclass(frozen=True, slots=True)
class Gaps:
    """Parts of the document that its partial model omits."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Types of the omitted plugins, by name; empty for an unknown type."""
    nameless: bool = False
    """Whether it omits plugins with unknown names."""
    profiles: bool = False
    """Whether it omits profiles."""
    content: object = None
    """The repaired content of the model; None for the whole document."""

    def in_document(self, path: Path) -> Path:
        """Convert a path in the model to a path in the document."""
        found: Path = ()
        part = self.content
        for step in path:
            if isinstance(part, _Items) and isinstance(step, int) and step < len(part):
                found, part = (*found, part.numbers[step]), part[step]
            elif isinstance(part, _Keys) and isinstance(step, str):
                found, part = (*found, part.written.get(step, step)), part.get(step)
            else:
                found, part = (*found, step), None
        return found


NO_GAPS = Gaps()


@dataclass(frozen=True, slots=True)
class Repaired:
    """A partial model: wrong values are corrected if the intention is clear, otherwise removed.

    Quotes around numbers are removed, and misspelt keys replaced by the most similar ones.
    """

    model: EndpointPickerConfig
    gaps: Gaps
    further: tuple[tuple[Path, ErrorDetails], ...]
    """Errors in the values of misspelt keys, with their paths in the document."""


def repaired(content: dict[str, Any], errors: Iterable[ErrorDetails]) -> Repaired:
    """Repair a document with these errors."""
    left = _Keys.of(content)
    further: list[tuple[Path, ErrorDetails]] = []
    for _ in range(_MOST_ROUNDS):
        renamed: list[tuple[_Keys, str]] = []
        in_order = sorted(errors, key=lambda error: error["type"] == "missing")  # a misspelt key may be the one
        _take_out(left, [path for error in in_order for path in _fix(left, error, renamed)])
        try:
            return Repaired(EndpointPickerConfig.model_validate(left), _gaps(content, left), tuple(further))
        except ValidationError as again:
            errors = again.errors(include_url=False)
        paths = Gaps(content=left)
        further += [(paths.in_document(tuple(each["loc"])), each) for each in errors if _is_below(each, left, renamed)]
    nothing = _Keys.of(dict(_FIXED))
    return Repaired(EndpointPickerConfig.model_validate(nothing), _gaps(content, nothing), tuple(further))


def _is_below(error: ErrorDetails, left: "_Keys", renamed: "list[tuple[_Keys, str]]") -> bool:
    """Whether an error is in the value of a renamed key."""
    path = tuple(error["loc"])
    return any(
        step == key and _at(left, path[:depth]) is holder for depth, step in enumerate(path) for holder, key in renamed
    )


def keys_at(path: Path) -> list[str]:
    """Return the allowed keys of the mapping at this path."""
    model: Any = EndpointPickerConfig
    for step in path:
        if isinstance(step, str):
            fields = {one.alias or name: one.annotation for name, one in model.model_fields.items()}
            model = _model_within(fields.get(step))
    return [one.alias or name for name, one in model.model_fields.items()]


def meant_by(key: str, path: Path, present: Iterable[str]) -> str | None:
    """Return the missing key that is most similar to an unknown one."""
    return nearest(key, set(keys_at(path)).difference(present))


def unquoted(error: ErrorDetails) -> object:
    """Return the intended value of an input with the wrong type; None if unclear."""
    value = error["input"]
    match error["type"]:
        case "float_type" | "int_type" if isinstance(value, str):
            try:
                return float(value) if error["type"] == "float_type" else int(value)
            except ValueError:
                return None
        case "bool_type" if isinstance(value, str) and value in {"true", "false"}:
            return value == "true"
        case "string_type" if isinstance(value, (bool, int, float)) and error["loc"][-1] in _FREE_TEXTS:
            return str(value).lower() if isinstance(value, bool) else str(value)
    return None


class _Items(list[Any]):
    """A list with the index of each item in the document."""

    numbers: list[int]

    @classmethod
    def of(cls, items: list[Any]) -> "_Items":
        found = cls(map(_tracked, items))
        found.numbers = list(range(len(items)))
        return found

    def drop(self, indexes: Iterable[int]) -> None:
        for index in sorted(set(indexes), reverse=True):
            del self[index]
            del self.numbers[index]


class _Keys(dict[str, Any]):
    """A mapping with the original spelling of renamed keys."""

    written: dict[str, str]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "_Keys":
        found = cls({key: value if key == "parameters" else _tracked(value) for key, value in content.items()})
        found.written = {}
        return found

    def rename(self, key: str, meant: str) -> None:
        self[meant] = self.pop(key)
        self.written[meant] = key


def _tracked(part: Any) -> Any:
    if isinstance(part, dict):
        return _Keys.of(part)
    return _Items.of(part) if isinstance(part, list) else part


def _fix(left: _Keys, error: ErrorDetails, renamed: list[tuple[_Keys, str]]) -> Iterator[Path]:
    """Correct or remove the cause of an error; yield the path of a list item to remove."""
    *around, last = error["loc"]
    holder = _at(left, tuple(around))
    if not isinstance(holder, (_Keys, _Items)):
        return
    if isinstance(holder, _Items):
        value = unquoted(error)
        if value is None or not isinstance(last, int):
            yield tuple(error["loc"])
        else:
            holder[last] = value
    elif not around and last in _FIXED:
        holder[str(last)] = _FIXED[str(last)]
    elif error["type"] == "extra_forbidden":
        meant = meant_by(str(last), tuple(around), holder)
        if meant is None:
            del holder[str(last)]
        else:
            holder.rename(str(last), meant)
            renamed.append((holder, meant))
    elif error["type"] != "missing":
        value = unquoted(error)
        if value is None:
            holder.pop(str(last), None)
        else:
            holder[str(last)] = value
    elif last not in holder:
        yield tuple(around)


def _take_out(left: _Keys, paths: Iterable[Path]) -> None:
    items: dict[Path, list[int]] = {}
    for path in paths:
        if isinstance(path[-1], int):
            items.setdefault(path[:-1], []).append(path[-1])
        else:
            holder = _at(left, path[:-1])
            if isinstance(holder, dict):
                holder.pop(path[-1], None)
    for path in sorted(items, key=len, reverse=True):  # the innermost first, so that indexes of outer lists stay valid
        holder = _at(left, path)
        if isinstance(holder, _Items):
            holder.drop(items[path])


def _at(part: Any, path: Path) -> Any:
    for step in path:
        in_list = isinstance(part, list) and isinstance(step, int) and step < len(part)
        if not in_list and not (isinstance(part, dict) and step in part):
            return None
        part = part[step]
    return part


def _gaps(content: Mapping[str, Any], left: _Keys) -> Gaps:
    """Return what of the document's plugins and profiles is not left."""
    names: dict[str, str] = {}
    nameless = False
    plugins, kept = _before_and_after(content, left, "plugins")
    for index, entry in enumerate(plugins or ()):
        if index in kept:
            continue
        kind = entry.get("type") if isinstance(entry, dict) else entry
        name = entry.get("name") or kind if isinstance(entry, dict) else entry
        if isinstance(name, str):
            names[name] = kind if isinstance(kind, str) else ""
        else:
            nameless = True
    profiles, kept_profiles = _before_and_after(content, left, "schedulingProfiles")
    return Gaps(
        names,
        nameless=nameless or plugins is None,
        profiles=profiles is None or len(kept_profiles) < len(profiles),
        content=left,
    )


def _before_and_after(content: Mapping[str, Any], left: _Keys, key: str) -> tuple[list[Any] | None, list[int]]:
    """Return a list of the document, None where it is none, and the indexes of its items that are left."""
    before = content.get(left.written.get(key, key))
    after = left.get(key)
    return [] if before is None else before if isinstance(before, list) else None, (
        after.numbers if isinstance(after, _Items) else []
    )


def _model_within(annotation: Any) -> type[BaseModel]:
    """Return the model in `Model`, `Model | None` or `list[Model]`."""
    if get_origin(annotation) in {list, Union, types.UnionType}:
        return next(_model_within(inner) for inner in get_args(annotation) if inner is not types.NoneType)
    model: type[BaseModel] = annotation
    return model
