# SPDX-License-Identifier: Apache-2.0
"""Errors in the fields of an object, in the form `field is value: remedy`."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
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
_MOST_FAULTS = 20


def explain(error: msgspec.ValidationError, data: object, convert: Convert, place: str) -> str:
    """Return `field is value: remedy`; the path of the field begins with `place`.

    msgspec writes `[...]` for a key of a mapping. `convert`, which raised the error for `data`, finds the key.
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
        return f"{field or 'the object'} has the key {shown(key)}: write it in quotes"
    if missing := _MISSING.fullmatch(message):
        return f"{field}.{missing[1]}".removeprefix(".") + " is missing: add it"
    if expected := _EXPECTED.fullmatch(message):
        message = _REMEDIES.get(expected[1], f"write a value of type {expected[1]}")
        if bound := _BOUND.search(expected[0]):
            message = f"{message} of at {'least' if bound[1] == '>=' else 'most'} {bound[2]}"
        if expected[1] == "str" and isinstance(value, (int, float)):
            message = "write it in quotes"
    return f"{field or 'the object'} is {shown(value)}: {message}"


def with_step(place: str, step: str | int) -> str:
    """Return the path of a field or an entry: `spec.cost`, `limits[nvidia.com/gpu]`."""
    if isinstance(step, int) or not step.replace("-", "").replace("_", "").isalnum():
        return f"{place}[{step}]"  # an index, or a key with a dot such as `nvidia.com/gpu`
    return f"{place}.{step}" if place else step


def _path(error: msgspec.ValidationError, data: Any, convert: Convert, steps: str) -> list[str | int]:
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
    """Return the data with a single key in the mapping at this path."""
    if not path:
        return {key: data[key]}
    copy = dict(data) if isinstance(data, Mapping) else list(data)
    copy[path[0]] = _with_one_key(data[path[0]], path[1:], key)  # type: ignore[index]  # a key or an index
    return copy


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


class Faults:
    """Impossible values of one object: field, value and remedy of each."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._left_out = 0

    @property
    def found(self) -> tuple[str, ...]:
        """All faults: the first twenty as text, then the number of further ones."""
        more = (f"{self._left_out} further values are impossible as well",) if self._left_out else ()
        return (*self._found, *more)

    def add(self, field: str, value: object, remedy: str) -> None:
        """Record a fault."""
        if len(self._found) < _MOST_FAULTS:
            self._found.append(f"{field} is {shown(value)}: {remedy}")
        else:
            self._left_out += 1

    def number(self, field: str, value: object, low: float, high: float) -> float | None:
        """Return a number within limits; record a fault and return None for any other value."""
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if usable and isinstance(value, (int, float)) and low <= value <= high:
            return float(value)
        self.add(field, value, f"write a number from {low:g} to {high:g}")
        return None

    def count(self, field: str, value: object, least: int = 0) -> int | None:
        """Return a whole number; record a fault and return None for any other value."""
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31:
            return value
        self.add(field, value, f"write a whole number of at least {least}")
        return None

    def time(self, field: str, value: object) -> float | None:
        """Return seconds since the epoch; None without a value. Record a fault and return None for an invalid date."""
        if value is None or value == "":
            return None
        if isinstance(value, str):
            try:
                found = datetime.fromisoformat(value)
                return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                pass
        self.add(field, value, "write a date such as 2030-01-01T00:00:00Z")
        return None

    def choice(self, field: str, value: object, choices: tuple[str, ...]) -> str | None:
        """Return one of the choices; record a fault and return None for any other value."""
        if isinstance(value, str) and value in choices:
            return value
        self.add(field, value, f"write {' or '.join(choices)}")
        return None
