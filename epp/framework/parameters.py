"""Reads the parameters of a plugin out of plain data, and says what is wrong with them and where."""

import re
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.plugins import Parameters

S = TypeVar("S", bound=msgspec.Struct)

_WITH_PLACE = re.compile(r"(.*) - at (`key` in )?`\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")


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
        raise _explained(cls, str(error)) from error


def _explained(cls: type[msgspec.Struct], text: str) -> ParameterError:
    found = _WITH_PLACE.fullmatch(text)
    message, of_key, place = (found[1], found[2], found[3]) if found else (text, None, "")
    if of_key:
        message = f"a key: {message}"
    path = tuple(name or (int(index) if index.isdecimal() else index) for name, index in _STEP.findall(place))
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown:
        return ParameterError(f"unknown key; {hint_at(unknown[1], _keys(cls, path))}", (*path, unknown[1]))
    return ParameterError(message, path)


def _keys(cls: type[msgspec.Struct], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the object at this path takes."""
    struct: Any = cls
    for step in path:
        if isinstance(step, str) and step != "...":
            names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
            hint = get_type_hints(struct).get(names.get(step, ""))
            struct = _struct_within(hint)
        if struct is None:
            return []
    return list(struct.__struct_encode_fields__)


def _struct_within(annotation: Any) -> Any:
    """Return the struct in `Struct`, `Struct | None`, `tuple[Struct, ...]` or a mapping to structs, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    if get_origin(annotation) in {tuple, list, dict, Mapping, Union, types.UnionType}:
        found = (_struct_within(inner) for inner in get_args(annotation))
        return next((inner for inner in found if inner is not None), None)
    return None
