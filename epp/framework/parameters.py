# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of a plugin from plain data; errors name the parameter, its value and the remedy."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from epp.framework.corrections import correct, fits, struct_within
from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.limits import described, metas_of
from epp.framework.plugin import Parameters

S = TypeVar("S", bound=msgspec.Struct)

_WITH_PLACE = re.compile(r"(.*) - at (`key` in )?`\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
_OUT_OF_LIMITS = re.compile(r"Expected `[a-z]+` (?:[<>]=?|of length)")
_UNKNOWN_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)


class ParameterError(ConfigurationError):
    """Parameters that do not fit; `path` leads from the parameters to the one at fault."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


def read_parameters(cls: type[Parameters], data: Mapping[str, object]) -> Parameters:
    """Return the typed parameters, with corrections; raises ParameterError."""
    return read_struct(cls, correct(cls, data)[0])


def read_struct(cls: type[S], data: Mapping[str, object]) -> S:
    """Return any struct, read from plain data; raises ParameterError."""
    try:
        return msgspec.convert(dict(data), cls)
    except msgspec.ValidationError as error:
        raise _explained(cls, str(error), data) from error


class _Spot(NamedTuple):
    """One value within parameters."""

    path: tuple[str | int, ...]
    annotation: Any
    value: Any
    required: bool


def _explained(cls: type[msgspec.Struct], text: str, data: Mapping[str, object]) -> ParameterError:
    found = _WITH_PLACE.fullmatch(text)
    message, of_key, place = (found[1], found[2], found[3]) if found else (text, None, "")
    if of_key:
        message = f"a key: {message}"
    spot = _spot(cls, data, place)
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown:
        known = list(_fields_within(spot.annotation))
        return ParameterError(f"unknown key; {hint_at(unknown[1], known)}", (*spot.path, unknown[1]))
    other = _UNKNOWN_CHOICE.fullmatch(message)
    if other and (choices := _choices_within(spot.annotation)):
        message = f"{other[1]} is not known; use {', '.join(map(repr, choices))}"
    elif _OUT_OF_LIMITS.match(message):
        message = _limits(spot) or message
    return ParameterError(message, spot.path)


def _limits(spot: _Spot) -> str:
    """Return a sentence on a value that is out of the limits of its type; empty where they cannot be told."""
    name = ""
    for step in spot.path:
        name = step if isinstance(step, str) else f"{name}[{step}]"
    if spot.value in ("", [], ()):
        remedy = "give a name" if spot.value == "" else "list at least one entry"
        return f"{name} is empty; {remedy}" + ("" if spot.required else ", or leave it out")
    words = next((words for meta in metas_of(spot.annotation) if (words := described(meta))), "")
    return words and f"{name} is {spot.value}; it must be {words}"


def _spot(cls: type[msgspec.Struct], data: Any, place: str) -> _Spot:
    """Return what stands at a place as msgspec writes it."""
    path: list[str | int] = []
    annotation: Any = cls
    required = False
    for name, index in _STEP.findall(place):
        step: str | int = name
        required = False
        if name:
            field = _fields_within(annotation)[name]
            annotation, required = field.type, field.required
        elif index == "...":
            annotation = _values_within(annotation)
            step = _misfit(annotation, data)
        else:
            step = int(index)
        path.append(step)
        data = data[step] if isinstance(step, int) else (data or {}).get(step)
    return _Spot(tuple(path), annotation, data, required)


def _misfit(annotation: Any, entries: Any) -> str:
    """Return the first key whose value does not fit, which msgspec does not name; `...` where none is found."""
    return next((key for key, value in entries.items() if not fits(annotation, value)), "...")


def _values_within(annotation: Any) -> Any:
    """Return the type of the values of the mapping in such a type."""
    if get_origin(annotation) in {dict, Mapping}:
        return get_args(annotation)[1]
    return next(filter(None, map(_values_within, get_args(annotation))), None)


def _choices_within(annotation: Any) -> tuple[object, ...]:
    """Return the values of the `Literal` or enumeration in such a type; none where there is neither."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(member.value for member in annotation)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next(filter(None, map(_choices_within, get_args(annotation))), ())


def _fields_within(annotation: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return the fields, by key, of the struct in such a type."""
    struct = struct_within(annotation)
    return {} if struct is None else {field.encode_name: field for field in msgspec.structs.fields(struct)}
