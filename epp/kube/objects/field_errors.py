# SPDX-License-Identifier: Apache-2.0
"""Errors of conversion in the form `field is value: remedy`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_WITH_PLACE = re.compile(r"(.*) - at (`key` in )?`\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `([a-z]+)(?: \| null)?`.*", re.DOTALL)
_BOUND = re.compile(r"` ([<>]=) (-?[0-9]+)(\.0)?$")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_REMEDIES = {
    "str": "write a string",
    "int": "write a whole number",
    "float": "write a number",
    "bool": "write true or false",
    "array": "write a list",
    "object": "write a mapping",
}
_SHOWN_CHARACTERS = 60

Convert = Callable[[Any], object]


def explain(error: msgspec.ValidationError, data: object, convert: Convert, place: str) -> str:
    """Return `field is value: remedy`, the path of the field beginning with `place`.

    msgspec writes `[...]` for any key of a mapping: the key is found by `convert`, which raised the error for `data`.
    """
    found = _WITH_PLACE.fullmatch(str(error))
    message, of_key, steps = (found[1], found[2], found[3]) if found else (str(error), None, "")
    path = _path(error, data, convert, steps)
    value = data
    for step in path:
        value = value[step]  # type: ignore[index]  # the path is that of msgspec
    field = place
    for step in path:
        field = with_step(field, step)
    if of_key and isinstance(value, Mapping):
        key = next((key for key in value if not isinstance(key, str)), "")
        return f"{field or 'the object'} has the key {_shown(key)}: write it in quotes"
    if missing := _MISSING.fullmatch(message):
        return f"{field}.{missing[1]}".removeprefix(".") + " is missing: add it"
    if expected := _EXPECTED.fullmatch(message):
        message = _REMEDIES.get(expected[1], f"write a value of type {expected[1]}")
        if bound := _BOUND.search(expected[0]):
            message = f"{message} of at {'least' if bound[1] == '>=' else 'most'} {bound[2]}"
        if expected[1] == "str" and isinstance(value, (int, float)):
            message = "write it in quotes"
    return f"{field or 'the object'} is {_shown(value)}: {message}"


def with_step(place: str, step: str | int) -> str:
    """Return the place of a field or an entry within a place: `spec.cost`, `limits[nvidia.com/gpu]`."""
    if isinstance(step, int) or not step.replace("-", "").replace("_", "").isalnum():
        return f"{place}[{step}]"  # an index, or a key such as `nvidia.com/gpu`, which contains a dot
    return f"{place}.{step}" if place else step


def _path(error: msgspec.ValidationError, data: Any, convert: Convert, steps: str) -> list[str | int]:
    """Return the path to the invalid value."""
    path: list[str | int] = []
    value = data
    for name, index in _STEP.findall(steps):
        step: str | int = name or index
        if index == "...":
            keys = (key for key in value if _fails_alike(error, convert, _with_one_key(data, path, key)))
            if (step := next(keys, "")) == "":
                break
        elif index:
            step = int(index)
        path.append(step)
        value = value[step]
    return path


def _fails_alike(error: msgspec.ValidationError, convert: Convert, data: object) -> bool:
    try:
        convert(data)
    except msgspec.ValidationError as other:
        return str(other) == str(error)
    return False


def _with_one_key(data: Any, path: list[str | int], key: str) -> Any:
    """Return the data, reduced to one key in the mapping at this path."""
    if not path:
        return {key: data[key]}
    copy = dict(data) if isinstance(data, Mapping) else list(data)
    copy[path[0]] = _with_one_key(data[path[0]], path[1:], key)  # type: ignore[index]  # a key or an index, as it is
    return copy


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
