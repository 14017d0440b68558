"""Reads the parameters of a plugin from plain data; errors name the parameter, its value and the remedy."""

import re
import types
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

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
    """Return the typed parameters; raises ParameterError."""
    return read_struct(cls, data)


def read_struct(cls: type[S], data: Mapping[str, object]) -> S:
    """Return any struct, read from plain data; raises ParameterError."""
    try:
        return msgspec.convert(dict(data), cls)
    except msgspec.ValidationError as error:
        raise _explained(cls, str(error), data) from error


def _explained(cls: type[msgspec.Struct], text: str, data: Mapping[str, object]) -> ParameterError:
    found = _WITH_PLACE.fullmatch(text)
    message, of_key, place = (found[1], found[2], found[3]) if found else (text, None, "")
    if of_key:
        message = f"a key: {message}"
    path, annotation, value = _at(cls, data, place)
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown:
        struct = _struct_within(annotation)
        keys = [] if struct is None else struct.__struct_encode_fields__
        return ParameterError(f"unknown key; {hint_at(unknown[1], keys)}", (*path, unknown[1]))
    other = _UNKNOWN_CHOICE.fullmatch(message)
    if other and (choices := _choices_within(annotation)):
        return ParameterError(f"{other[1]} is not known; use {', '.join(map(repr, choices))}", path)
    if _OUT_OF_LIMITS.match(message):
        return ParameterError(_limits(annotation, value, path) or message, path)
    return ParameterError(message, path)


def _limits(annotation: Any, value: object, path: tuple[str | int, ...]) -> str:
    """Return a sentence on a value that is out of the limits of its type; empty where they cannot be told."""
    name = next((step for step in reversed(path) if isinstance(step, str)), "")
    if value == "":
        return f"{name} is empty; give a name, or leave it out"
    if isinstance(value, (list, tuple)) and not value:
        return f"{name} is empty; list at least one entry, or leave it out"
    words = next((words for meta in metas_of(annotation) if (words := described(meta))), "")
    return words and f"{name} is {value}; it must be {words}"


def _at(cls: type[msgspec.Struct], data: Any, place: str) -> tuple[tuple[str | int, ...], Any, Any]:
    """Return the path of a place as msgspec writes it, and the type and the value there."""
    path: list[str | int] = []
    annotation: Any = cls
    for field, index in _STEP.findall(place):
        step: str | int = field
        if field:
            struct = _struct_within(annotation)
            names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)) if struct else {}
            annotation = get_type_hints(struct, include_extras=True)[names[field]] if field in names else None
        elif index == "...":
            annotation = _values_within(annotation)
            step = _misfit(annotation, data)
        else:
            step = int(index)
        path.append(step)
        data = data[step] if isinstance(step, int) else (data or {}).get(step)
    return tuple(path), annotation, data


def _misfit(annotation: Any, entries: Any) -> str:
    """Return the first key whose value does not fit, which msgspec does not name; `...` where none is found."""
    return next((key for key, value in entries.items() if not _fits(annotation, value)), "...")


def _fits(annotation: Any, value: object) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


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


def _struct_within(annotation: Any) -> Any:
    """Return the struct in `Struct`, `Struct | None`, `tuple[Struct, ...]` or a mapping to structs, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    if get_origin(annotation) in {tuple, list, dict, Mapping, Union, types.UnionType, Annotated}:
        found = (_struct_within(inner) for inner in get_args(annotation))
        return next((inner for inner in found if inner is not None), None)
    return None
