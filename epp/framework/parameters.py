# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of a plugin from plain data; errors name the parameter, its value and the remedy."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from reprlib import repr as shortened
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from epp.framework.errors import ConfigurationError
from epp.framework.limits import correct, described, metas_of
from epp.framework.messages import hint_at, nearest
from epp.framework.plugin import Parameters

S = TypeVar("S", bound=msgspec.Struct)

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes that lead from the parameters to one of them."""

_PLACE = re.compile(r" - at `.*`", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z]\w*(?:\.\w+|\[\d+\])*(?=[\s:]|$)")
_STEP = re.compile(r"(\d+)|(\w+)")
_OUT_OF_LIMITS = re.compile(r"Expected `[a-z]+` (?:[<>]=?|of length)")
_WRONG_TYPE = re.compile(r"Expected `.*`, got `.*`")
_SHAPES: Mapping[object, str] = types.MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        list: "a list",
        dict: "a mapping",
        type(None): "",
    }
)


class ParameterError(ConfigurationError):
    """Parameters that do not fit; `path` leads from the parameters to the one at fault."""

    def __init__(self, problem: str, path: Path = (), *, remedy: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.path = path


def read_parameters(cls: type[Parameters], data: Mapping[str, object]) -> Parameters:
    """Return the typed parameters, with corrections; raises the first ParameterError."""
    return read_struct(cls, correct(cls, data)[0])


def read_struct(cls: type[S], data: Mapping[str, object]) -> S:
    """Return any struct, read from plain data; raises the first ParameterError."""
    try:
        return msgspec.convert(dict(data), cls)
    except msgspec.ValidationError as error:
        raise mistakes_in(cls, data)[0] from error


def mistakes_in(cls: type[msgspec.Struct], data: Mapping[str, object]) -> tuple[ParameterError, ...]:
    """Return everything that does not fit, in the order of the data: keys, types and limits, at any depth.

    Then come the struct's own checks, unless another mistake may be why they fail.
    """
    return tuple(_of_struct(cls, data, ()))


def without_mistakes(data: Mapping[str, object], mistakes: Iterable[ParameterError]) -> Mapping[str, object]:
    """Return the data without the values at fault."""
    paths = {mistake.path for mistake in mistakes}

    def kept(value: object, path: Path) -> object:
        if isinstance(value, Mapping):
            return {key: kept(one, (*path, key)) for key, one in value.items() if (*path, key) not in paths}
        if isinstance(value, list):
            return [kept(one, (*path, i)) for i, one in enumerate(value) if (*path, i) not in paths]
        return value

    return {key: kept(value, (key,)) for key, value in data.items() if (key,) not in paths}


def named_at_the_start(message: str, data: Any) -> Path:
    """Return the path in the data that a message such as `limits.t4 is ...` begins with, as far as it is there."""
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


def _of(annotation: Any, value: object, path: Path, *, required: bool) -> Iterator[ParameterError]:
    """Yield the mistakes in one value."""
    error = _refusal(annotation, value)
    if error is None:
        return
    inner = _member(annotation, value)
    found: Iterable[ParameterError] = ()
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(value, Mapping):
        found = _of_struct(inner, value, path)
    elif get_origin(inner) in {dict, Mapping} and isinstance(value, Mapping):
        found = _of_mapping(inner, value, path)
    elif get_origin(inner) in {list, tuple, frozenset, set, Sequence} and isinstance(value, list):
        found = _of_list(inner, value, path)
    mistakes = list(found)
    yield from mistakes or [_Misfit(annotation, value, path, required).explained(error)]


def _of_struct(cls: type[msgspec.Struct], data: Mapping[Any, object], path: Path) -> Iterator[ParameterError]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    meant: dict[str, str] = {}
    usable: dict[str, object] = {}
    faulty: set[str] = set()
    for key, value in data.items():
        if not isinstance(key, str):
            yield ParameterError(f"key {key!r} is not a string", path, remedy="write it in quotes")
            continue
        field = fields.get(key)
        if field is None and cls.__struct_config__.forbid_unknown_fields:
            absent = [name for name in fields if name not in data and name not in meant]
            near = nearest(key, absent)
            yield ParameterError("unknown key", (*path, key), remedy=hint_at(key, absent if near else fields))
            if near is None:
                continue
            meant[near] = key
            field = None if value is None else fields[near]
        if field is None:
            continue
        mistakes = list(_of(field.type, value, (*path, key), required=field.required))
        yield from mistakes
        if mistakes:
            faulty.add(field.encode_name)
        else:
            usable[field.encode_name] = value
    missing = [name for name, field in fields.items() if field.required and name not in data and name not in meant]
    for name in missing:
        yield ParameterError(f"{name} is missing", (*path, name), remedy="add it")
    if not missing and not any(fields[name].required for name in faulty):
        yield from _of_whole(cls, usable, faulty, {near: (*path, key) for near, key in meant.items()}, path)


def _of_whole(
    cls: type[msgspec.Struct], usable: Mapping[str, object], left_out: set[str], renamed: Mapping[str, Path], path: Path
) -> Iterator[ParameterError]:
    """Yield mistakes found by the struct's own checks, except where omitted values may be the cause."""
    data = dict(usable)
    left_out = set(left_out)
    while (error := _refusal(cls, data)) is not None:
        message = _without_place(error)
        if not left_out.isdisjoint(re.findall(r"\w+", message)):
            return
        named = named_at_the_start(message, data)
        if not named and left_out:
            return
        begin = renamed.get(str(named[0]), (*path, named[0])) if named else path
        yield ParameterError(message, (*begin, *named[1:]))
        if not named:
            return
        left_out.add(str(named[0]))
        del data[str(named[0])]


def _of_mapping(annotation: Any, value: Mapping[Any, object], path: Path) -> Iterator[ParameterError]:
    key_type, value_type = get_args(annotation)
    for key, one in value.items():
        if (error := _refusal(key_type, key)) is not None:
            yield ParameterError(f"a key: {_without_place(error)}", path)
        else:
            yield from _of(value_type, one, (*path, key), required=False)


def _of_list(annotation: Any, value: list[object], path: Path) -> Iterator[ParameterError]:
    items = get_args(annotation)
    if get_origin(annotation) is tuple and Ellipsis not in items:
        if len(items) != len(value):
            return
    else:
        items = items[:1] * len(value)
    for index, (item, one) in enumerate(zip(items, value, strict=True)):
        yield from _of(item, one, (*path, index), required=False)


@dataclass(frozen=True, slots=True)
class _Misfit:
    """One value that its type refuses."""

    annotation: Any
    value: object
    path: Path
    required: bool

    def explained(self, error: msgspec.ValidationError) -> ParameterError:
        message = _without_place(error)
        limits = "" if not _OUT_OF_LIMITS.match(message) else self._limits()
        if self.value in ("", [], ()) and limits:
            left_out = "" if self.required else ", or leave it out"
            remedy = "give a name" if self.value == "" else "list at least one entry"
            return self._error("is empty", f"{remedy}{left_out}")
        if limits:
            return self._error(f"is {self.value}", f"it must be {limits}")
        choices = _choices_within(self.annotation)
        if choices and isinstance(self.value, str):
            return ParameterError(f"{self.value!r} is not known", self.path, remedy=f"use {_listed(choices)}")
        due = _shape(self.annotation)
        if not due or not _WRONG_TYPE.fullmatch(message):
            return ParameterError(message, self.path)
        remedy = _quotes(self.value, _plain_types(self.annotation))
        return self._error(f"is {shortened(self.value)}", remedy or f"it must be {due}")

    def _error(self, problem: str, remedy: str) -> ParameterError:
        name = ""
        for step in self.path:
            name = step if isinstance(step, str) else f"{name}[{step}]"
        return ParameterError(f"{name} {problem}".strip(), self.path, remedy=remedy)

    def _limits(self) -> str:
        return next((words for meta in metas_of(self.annotation) if (words := described(meta))), " ")


def _quotes(value: object, wanted: Iterable[object]) -> str:
    """Return the remedy for a value that only its quotes, or their absence, make unfit; empty for any other."""
    types_wanted = set(wanted)
    if isinstance(value, str):
        numeric = _as_number(value)
        if types_wanted & {int, float} and numeric is not None and (float in types_wanted or numeric == int(numeric)):
            return "remove the quotes"
        if bool in types_wanted and value in {"true", "false"}:
            return "remove the quotes"
    elif str in types_wanted and isinstance(value, (bool, int, float)):
        return "write it in quotes"
    return ""


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _refusal(annotation: Any, value: object) -> msgspec.ValidationError | None:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        return error
    return None


def _without_place(error: msgspec.ValidationError) -> str:
    return _PLACE.sub("", str(error))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types in `Annotated[...]` and `A | B`, without None."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(each for one in get_args(annotation) for each in _members(one))
    return () if annotation is type(None) else (annotation,)


def _plain_types(annotation: Any) -> Iterator[object]:
    """Yield the type of plain data that each member is read from."""
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
    """Return the member of a union that a value of this shape is meant for; None where that is not one."""
    members, shapes = _members(annotation), list(_plain_types(annotation))
    if len(members) != len(shapes):
        return None
    shape = dict if isinstance(value, Mapping) else list if isinstance(value, list) else type(value)
    fitting = [member for member, each in zip(members, shapes, strict=True) if each is shape]
    return fitting[0] if len(fitting) == 1 else None


def _shape(annotation: Any) -> str:
    """Return `a number or a mapping` for such a type; empty for one without a name for people."""
    shapes = dict.fromkeys(_plain_types(annotation))
    return " or ".join(_SHAPES[one] for one in shapes) if all(one in _SHAPES for one in shapes) else ""


def _choices_within(annotation: Any) -> tuple[object, ...]:
    """Return the values of the `Literal` or enumeration in such a type; none where there is neither."""
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Enum):
            return tuple(one.value for one in member)
        if get_origin(member) is Literal:
            return get_args(member)
    return ()


def _listed(choices: Iterable[object]) -> str:
    return ", ".join(map(repr, choices))
