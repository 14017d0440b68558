# SPDX-License-Identifier: Apache-2.0
"""Reads structs from plain data, and explains invalid data by place, value and remedy."""

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from epp.framework.errors import ConfigurationError
from epp.framework.limits import correct, described, metas_of
from epp.framework.plugin import Parameters
from epp.framework.suggestions import hint_at, nearest

S = TypeVar("S", bound=msgspec.Struct)

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the data to one of its parts."""
Hook: TypeAlias = Callable[[type, Any], object]
"""Function that converts values of types without support by msgspec; raises ValueError with the remedy."""

_PLACE = re.compile(r" - at `.*`", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z]\w*(?:\.\w+|\[\d+\])*(?=[\s:]|$)")
_STEP = re.compile(r"(\d+)|(\w+)")
_OUT_OF_LIMITS = re.compile(r"Expected `[a-z]+` [<>]=?")
_WRONG_LENGTH = re.compile(r"Expected `([a-z]+)` of length (?:([<>])= )?(\d+)")
_LEAST_OR_MOST = types.MappingProxyType({"<": "at most ", ">": "at least ", None: ""})
_WRONG_TYPE = re.compile(r"Expected `.*`, got `.*`")
_SHAPES: Mapping[object, str] = types.MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
)
_SHOWN_CHARACTERS = 60


class ParameterError(ConfigurationError):
    """Invalid data; `path` is that of the invalid part."""

    def __init__(self, problem: str, path: Path = (), *, remedy: str = "", finding: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.path = path
        self._finding = finding

    def at(self, place: str) -> str:
        """Return `field is value: remedy`, where `place` precedes the path of the field."""
        for step in self.path:
            place = with_step(place, step)
        found = f"{place or 'the object'} {self._finding}" if self._finding else place
        return f"{found}: {self.remedy or self.problem}".removeprefix(": ")


def with_step(place: str, step: str | int) -> str:
    """Return the path of a field or an entry: `spec.cost`, `limits[nvidia.com/gpu]`."""
    if isinstance(step, int) or not step.replace("-", "").replace("_", "").isalnum():
        return f"{place}[{step}]"  # an index, or a key with a dot such as `nvidia.com/gpu`
    return f"{place}.{step}" if place else step


def shown(value: object) -> str:
    """Return a value for a message, in at most 63 characters."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def remedy_for(value: object, wanted: Iterable[object]) -> str:
    """Return the remedy for a value of none of the wanted types; empty if a type has no human-readable name."""
    shapes = dict.fromkeys(wanted)
    if isinstance(value, str):
        numeric = _as_number(value)
        if shapes.keys() & {int, float} and numeric is not None and (float in shapes or numeric == int(numeric)):
            return "remove the quotes"
        if bool in shapes and value in {"true", "false"}:
            return "remove the quotes"
    elif str in shapes and isinstance(value, (bool, int, float)):
        return "write it in quotes"
    return f"write {' or '.join(_SHAPES[one] for one in shapes)}" if shapes.keys() <= _SHAPES.keys() else ""


def read_parameters(cls: type[Parameters], data: Mapping[str, object]) -> Parameters:
    """Return the typed parameters, with corrections; raises the first ParameterError."""
    return read_struct(cls, correct(cls, data)[0])


def read_struct(cls: type[S], data: Mapping[str, object]) -> S:
    """Return a struct read from plain data; raises the first ParameterError."""
    try:
        return msgspec.convert(dict(data), cls)
    except msgspec.ValidationError as error:
        raise mistakes_in(cls, data)[0] from error


def mistakes_in(annotation: Any, data: object, hook: Hook | None = None) -> tuple[ParameterError, ...]:
    """Return all mistakes in the order of the data: invalid keys, types and limits, at any depth.

    The mistake that `__post_init__` of a struct finds is reported only if all its fields are right.
    """
    return tuple(_Finder(hook).of(annotation, data, (), required=True))


def named_at_the_start(message: str, data: Any) -> Path:
    """Return the path at the start of a message such as `limits.t4 is ...`, as far as it exists in the data."""
    path: list[str | int] = []
    found = _NAMED.match(message)
    for index, key in _STEP.findall(found[0] if found else ""):
        if key and isinstance(data, Mapping) and key in data:
            path.append(key)
        elif index and isinstance(data, list) and int(index) < len(data):
            path.append(int(index))
        else:
            break
        data = data[path[-1]]
    return tuple(path)


class _Finder:
    """Finds the mistakes in values."""

    def __init__(self, hook: Hook | None) -> None:
        self._hook = hook

    def of(self, annotation: Any, value: object, path: Path, *, required: bool = False) -> Iterator[ParameterError]:
        message = self._refusal(annotation, value)
        if message is None:
            return
        inner = _member(annotation, value)
        found: Iterable[ParameterError] = ()
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(value, Mapping):
            found = list(self._of_fields(inner, value, path))
            if not found:  # the mistake is one that `__post_init__` finds
                found = [ParameterError(message, (*path, *named_at_the_start(message, value)))]
        elif get_origin(inner) in {dict, Mapping} and isinstance(value, Mapping):
            found = self._of_mapping(inner, value, path)
        elif get_origin(inner) in {list, tuple, frozenset, set, Sequence} and isinstance(value, list):
            found = self._of_list(inner, value, path)
        mistakes = list(found)
        yield from mistakes or [_misfit(annotation, value, path, message, required=required)]

    def _of_fields(self, cls: type[msgspec.Struct], data: Mapping[Any, object], path: Path) -> Iterator[ParameterError]:
        fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
        meant: set[str] = set()
        for key, value in data.items():
            if not isinstance(key, str):
                yield _bad_key(key, path)
                continue
            field = fields.get(key)
            if field is None and cls.__struct_config__.forbid_unknown_fields:
                absent = [name for name in fields if name not in data and name not in meant]
                near = nearest(key, absent)
                yield ParameterError("unknown key", (*path, key), remedy=hint_at(key, absent if near else fields))
                if near is not None:
                    meant.add(near)
                    field = None if value is None else fields[near]
            if field is not None:
                yield from self.of(field.type, value, (*path, *key.split(".")), required=field.required)
        for name, field in fields.items():
            if field.required and name not in data and name not in meant:
                place = (*path, *name.split("."))
                yield ParameterError(f"{name} is missing", place, remedy="add it", finding="is missing")

    def _of_mapping(self, annotation: Any, value: Mapping[Any, object], path: Path) -> Iterator[ParameterError]:
        key_type, value_type = get_args(annotation)
        for key, one in value.items():
            message = self._refusal(key_type, key)
            if message is None:
                yield from self.of(value_type, one, (*path, key))
            elif isinstance(key, str):
                yield ParameterError(f"a key: {message}", path)
            else:
                yield _bad_key(key, path)

    def _of_list(self, annotation: Any, value: list[object], path: Path) -> Iterator[ParameterError]:
        items = get_args(annotation)
        if get_origin(annotation) is tuple and Ellipsis not in items:
            if len(items) != len(value):
                return
        else:
            items = items[:1] * len(value)
        for index, (item, one) in enumerate(zip(items, value, strict=True)):
            yield from self.of(item, one, (*path, index))

    def _refusal(self, annotation: Any, value: object) -> str | None:
        """Return the reason that a value is not of a type; None if it is."""
        try:
            msgspec.convert(value, annotation, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            return _PLACE.sub("", str(error))
        return None


def _bad_key(key: object, path: Path) -> ParameterError:
    return ParameterError(
        f"key {key!r} is not a string", path, remedy="write it in quotes", finding=f"has the key {shown(key)}"
    )


def _misfit(annotation: Any, value: object, path: Path, message: str, *, required: bool) -> ParameterError:
    """Explain a message of msgspec about an invalid value."""
    finding, remedy = f"is {shown(value)}", ""
    choices = _choices_within(annotation)
    if _OUT_OF_LIMITS.match(message):
        limits = next((words for meta in metas_of(annotation) if (words := described(meta))), "")
        remedy = f"it must be {limits}"
    elif isinstance(value, Sized) and (length := _WRONG_LENGTH.match(message)):
        kind, bound, count = length.groups()
        if value:
            finding = f"has {len(value)} {'characters' if kind == 'str' else 'entries'}"
            remedy = f"give {_LEAST_OR_MOST[bound]}{count}"
        else:
            finding = "is empty"
            remedy = "give a name" if kind == "str" else "list at least one entry"
            remedy = remedy if required else f"{remedy}, or leave it out"
    elif choices and isinstance(value, str):
        remedy = f"use {', '.join(map(repr, choices))}"
        return ParameterError(f"{value!r} is not known", path, remedy=remedy, finding=finding)
    elif _WRONG_TYPE.fullmatch(message):
        remedy = remedy_for(value, _plain_types(annotation))
    if not remedy:
        return ParameterError(message, path, finding=finding)
    name = ""
    for step in path:
        name = step if isinstance(step, str) else f"{name}[{step}]"
    return ParameterError(f"{name} {finding}".strip(), path, remedy=remedy, finding=finding)


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types in `Annotated[...]` and `A | B`, without None."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(each for one in get_args(annotation) for each in _members(one))
    return () if annotation is type(None) else (annotation,)


def _plain_types(annotation: Any) -> Iterator[object]:
    """Yield the type of plain data from which each member is read."""
    for member in _members(annotation):
        origin = get_origin(member) or member
        if isinstance(origin, type) and issubclass(origin, (msgspec.Struct, Mapping)):
            yield dict
        elif origin in {list, tuple, frozenset, set, Sequence}:
            yield list
        elif origin is Literal:
            yield from map(type, get_args(member))
        elif isinstance(origin, type) and issubclass(origin, Enum):
            yield str
        else:
            yield origin


def _member(annotation: Any, value: object) -> Any:
    """Return the only member of a union that has the type of the value; None if none or several have."""
    members, shapes = _members(annotation), list(_plain_types(annotation))
    if len(members) != len(shapes):
        return None
    shape = dict if isinstance(value, Mapping) else list if isinstance(value, list) else type(value)
    fitting = [member for member, each in zip(members, shapes, strict=True) if each is shape]
    return fitting[0] if len(fitting) == 1 else None


def _choices_within(annotation: Any) -> tuple[object, ...]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Enum):
            return tuple(one.value for one in member)
        if get_origin(member) is Literal:
            return get_args(member)
    return ()
