# SPDX-License-Identifier: Apache-2.0
"""Corrects values that llm-d-router corrects, and spellings that it takes, in the parameters of a plugin."""

import types
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from epp.framework.limits import Corrected, described, metas_of


class Correction(NamedTuple):
    """A parameter that counts as something else than the file says."""

    path: tuple[str | int, ...]
    """Leads from the parameters to the one that is corrected."""
    message: str


def correct(cls: type[msgspec.Struct], data: Mapping[str, object]) -> tuple[dict[str, object], list[Correction]]:
    """Return the plain data of a struct as it counts, and what was corrected.

    A value out of limits that are marked `Corrected` is replaced; a key in other capitals stands for the parameter; a
    whole number may be written `5.0`; and an empty value counts as left out.
    """
    found: list[Correction] = []
    return _correct_struct(cls, data, (), found), found


def as_written(path: Iterable[str | int], data: object) -> tuple[str | int, ...]:
    """Return where in the data stands what `correct` returns at a path."""
    found: list[str | int] = []
    for step in path:
        if isinstance(data, Mapping) and step not in data:
            step = next((key for key in data if str(key).lower() == str(step).lower()), step)  # noqa: PLW2901  the step as written
        found.append(step)
        try:
            data = data[step]  # type: ignore[index]  # caught where it is no index
        except (LookupError, TypeError):
            data = None
    return tuple(found)


def fits(annotation: Any, value: object) -> bool:
    """Return whether a value is of a type and within its limits."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def struct_within(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in `Struct`, `Struct | None`, or a list of or mapping to structs; None for none."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next(filter(None, map(struct_within, get_args(annotation))), None)


def _correct_struct(
    cls: type[msgspec.Struct], data: Mapping[str, object], path: tuple[str | int, ...], found: list[Correction]
) -> dict[str, object]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    by_small_letters = {name.lower(): name for name in fields}
    corrected: dict[str, object] = {}
    for key, value in data.items():
        name = key if key in fields else by_small_letters.get(str(key).lower(), key)
        if name != key:
            if name in data:
                name = key
            else:
                found.append(Correction((*path, key), f"{key} is taken for {name}: write it in these capitals"))
        field = fields.get(name)
        if field is None:
            corrected[name] = value
        elif value is not None or field.required or fits(field.type, None):
            corrected[name] = _correct_value(field, value, (*path, key), found)
    return corrected


def _correct_value(
    field: msgspec.structs.FieldInfo, value: object, path: tuple[str | int, ...], found: list[Correction]
) -> object:
    inner = struct_within(field.type)
    if inner is not None and isinstance(value, Mapping):
        if get_origin(field.type) in {dict, Mapping}:
            return {
                key: _correct_struct(inner, one, (*path, key), found) if isinstance(one, Mapping) else one
                for key, one in value.items()
            }
        return _correct_struct(inner, value, path, found)
    if inner is not None and isinstance(value, list) and value:
        return [
            _correct_struct(inner, one, (*path, index), found) if isinstance(one, Mapping) else one
            for index, one in enumerate(value)
        ]
    if isinstance(value, float) and value.is_integer() and not fits(_without_limits(field.type), value):
        value = int(value)
    mark = next(iter(_marks(field.type)), None)
    if mark is None or not mark.applies_to(value) or fits(field.type, value):
        return value
    if not fits(_without_limits(field.type), value) or (isinstance(value, float) and not isfinite(value)):  # errors
        return value
    instead = _default(field) if mark.by is None else mark.by(value)
    found.append(Correction(path, _sentence(field, mark, value, instead)))
    return instead


def _sentence(field: msgspec.structs.FieldInfo, mark: Corrected, value: object, instead: object) -> str:
    name = field.encode_name
    counts = f"{_written(instead)} counts instead" if instead is not None else "it counts as left out"
    if value in ("", []):
        return f"{name} is empty: {counts}"
    words = mark.words or next((words for meta in metas_of(field.type) if (words := described(meta))), "")
    return f"{name} is {_written(value)}; it must be {words}: {counts}"


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else msgspec.json.encode(value).decode()


def _default(field: msgspec.structs.FieldInfo) -> object:
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    plain: object = msgspec.to_builtins(default)
    return plain


def _marks(annotation: Any) -> list[Corrected]:
    if get_origin(annotation) is Annotated:
        return [extra for extra in get_args(annotation)[1:] if isinstance(extra, Corrected)]
    return []


def _without_limits(annotation: Any) -> Any:
    """Return the type that a value has to be of, whatever its limits."""
    if get_origin(annotation) is Annotated:
        return _without_limits(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return Union[tuple(map(_without_limits, get_args(annotation)))]  # noqa: UP007  of types known at run time only
    return annotation
