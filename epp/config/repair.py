# SPDX-License-Identifier: Apache-2.0
"""A model of a document with mistakes, as far as it goes, so that all other mistakes can be found in the same round."""

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
    """Parts of the document that its model leaves out."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Types by name of the plugins that it leaves out; an empty type for one that is not known."""
    nameless: bool = False
    """Whether it leaves out plugins whose names are not known."""
    profiles: bool = False
    """Whether it leaves out profiles."""
    content: object = None
    """What the model was read from; None for the whole document."""

    def in_document(self, path: Path) -> Path:
        """Return the path in the document of a path in the model."""
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
    """A model of what is left without the values at fault, or with the values that they were meant for.

    Quotes around numbers are removed, and misspelt keys taken for the keys that they are like.
    """

    model: EndpointPickerConfig
    gaps: Gaps
    further: tuple[tuple[Path, ErrorDetails], ...]
    """Errors in the values of misspelt keys, with their paths in the document."""


def repaired(content: dict[str, Any], errors: Iterable[ErrorDetails]) -> Repaired:
    """Return what is left of a document that has these errors."""
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
    """Return whether an error is in the value of one of these keys."""
    path = tuple(error["loc"])
    return any(
        step == key and _at(left, path[:depth]) is holder for depth, step in enumerate(path) for holder, key in renamed
    )


def keys_at(path: Path) -> list[str]:
    """Return the keys that the mapping at this path takes."""
    model: Any = EndpointPickerConfig
    for step in path:
        if isinstance(step, str):
            fields = {one.alias or name: one.annotation for name, one in model.model_fields.items()}
            model = _model_within(fields.get(step))
    return [one.alias or name for name, one in model.model_fields.items()]


def meant_by(key: str, path: Path, present: Iterable[str]) -> str | None:
    """Return the missing key that is closest in spelling to an unknown one."""
    return nearest(key, set(keys_at(path)).difference(present))


def unquoted(error: ErrorDetails) -> object:
    """Return the value that an input of the wrong type stands for; None for none."""
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
    """A list that knows the index of each item in the document."""

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
    """A mapping that knows the keys that the document has in the place of others."""

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
    """Change what an error is about, or take it out; yield the path of an item of a list that has to go."""
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
    for path in sorted(items, key=len, reverse=True):  # the innermost first: indexes on the way to others stay
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
