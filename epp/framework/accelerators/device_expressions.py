# SPDX-License-Identifier: Apache-2.0
"""CEL expressions that select devices, as in Kubernetes' dynamic resource allocation (DRA)."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from epp.framework.accelerators.tag import CAPACITY, DRIVER, AcceleratorTag
from epp.framework.messages import install_command
from epp.framework.quantities import parse_quantity

MAX_CHARACTERS = 4096
MAX_TOKENS = 512

_OPERATORS = ("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "!_", "@in", "_[_]", "_?_:_")
_FUNCTIONS = ("startsWith", "endsWith", "contains", "matches")
# Without macros that loop, each part of an expression is evaluated at most once, so its size limits its cost.
_LIBRARY = "stdlib:\n  include_macros: [has]\n  include_functions:\n" + "".join(
    f'    - name: "{name}"\n' for name in (*_OPERATORS, *_FUNCTIONS)
)
_TEXT = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
_TOKEN = re.compile(rf"{_TEXT}|[A-Za-z_]\w*|[\d.]+|&&|\|\||[=!<>]=|\S")
_INDEXED = re.compile(rf"\[\s*({_TEXT})\s*\]")
_SOUGHT = re.compile(rf"({_TEXT})\s+in\b")
_LITERAL = re.compile(rf"\b(quantity|semver)\(\s*({_TEXT})\s*\)")
_PLACE = re.compile(r"<input>:(\d+):(\d+): (.*)")
_SEMVER = re.compile(r"\d+(?:\.\d+){0,2}")


class DeviceExpression:
    """A compiled expression, whose evaluation time is bounded by its length.

    It supports `device.driver`, `device.attributes["domain"].name`, `device.capacity["domain"].name`, the operators
    `&& || ! == != < <= > >= in ?:`, `has()`, `quantity("40Gi")` and `semver("9.0.0")` with `compareTo`, `isLessThan`
    and `isGreaterThan`, and for strings `lowerAscii`, `startsWith`, `endsWith`, `contains` and `matches`.
    """

    def __init__(self, source: str, *, place: str) -> None:
        """Compile; raises ValueError with the place, and the position of unsupported parts."""
        self.source = source
        _check_size(source, place)
        _check_literals(source, place)
        cel = _library(place)
        self._bool = cel.Type.BOOL
        try:
            self._program = _environment(cel).compile(source)
        except RuntimeError as error:
            raise ValueError(f"{place}: unsupported expression{_position(str(error))}") from error
        gives = self._program.return_type()
        if not (gives == cel.Type.BOOL or gives == cel.Type.DYN):  # noqa: PLR1714  its types cannot be hashed
            raise ValueError(f"{place} returns {gives.name()}; it must return true or false")
        # As in Kubernetes, an unknown domain is empty when indexed, and absent for `in`.
        self._domains = {text[1:-1] for text in {*_INDEXED.findall(source)} - {*_SOUGHT.findall(source)}}

    def holds(self, tag: AcceleratorTag) -> bool | None:
        """Return the result for an accelerator; None if the accelerator lacks an attribute in the expression."""
        found = self._program.eval(data=self._variables(tag))
        return bool(found.plain_value()) if found.type() == self._bool else None

    def _variables(self, tag: AcceleratorTag) -> Mapping[str, object]:
        driver = str(tag.attributes.get(DRIVER, ""))
        attributes: dict[str, dict[str, object]] = {domain: {} for domain in self._domains}
        capacity: dict[str, dict[str, object]] = {domain: {} for domain in self._domains}
        for key, value in tag.attributes.items():
            within = capacity if key.startswith(CAPACITY) else attributes
            domain, slash, name = key.removeprefix(CAPACITY).rpartition("/")
            within.setdefault(domain if slash else driver, {})[name] = (
                list(value) if isinstance(value, tuple) else value
            )
        return {"device.driver": driver, "device.attributes": attributes, "device.capacity": capacity}


def _library(place: str) -> Any:
    try:
        return import_module("cel_expr_python.cel")
    except ImportError as error:
        raise ValueError(f"{place} needs the package cel-expr-python: {install_command('cel')}") from error


def _environment(cel: Any) -> Any:
    kind = cel.Type
    version = kind.List(kind.INT)
    values = kind.Map(kind.STRING, kind.Map(kind.STRING, kind.DYN))
    capacities = kind.Map(kind.STRING, kind.Map(kind.STRING, kind.INT))

    def function(name: str, *overloads: tuple[Any, list[Any], Any]) -> Any:
        member = name not in {"quantity", "semver"}
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(f"{name}_{number}", return_type=gives, parameters=takes, is_member=member, impl=impl)
                for number, (gives, takes, impl) in enumerate(overloads)
            ],
        )

    def comparison(name: str, gives: Any, impl: Any) -> Any:
        return function(name, (gives, [kind.INT, kind.INT], impl), (gives, [version, version], impl))

    return cel.NewEnv(
        variables={"device.driver": kind.STRING, "device.attributes": values, "device.capacity": capacities},
        functions=[
            function("quantity", (kind.INT, [kind.STRING], parse_quantity)),
            function("semver", (version, [kind.STRING], _semver)),
            function("lowerAscii", (kind.STRING, [kind.STRING], _lower_ascii)),
            comparison("compareTo", kind.INT, _compare),
            comparison("isLessThan", kind.BOOL, lambda one, other: _compare(one, other) < 0),
            comparison("isGreaterThan", kind.BOOL, lambda one, other: _compare(one, other) > 0),
        ],
        config=cel.NewEnvConfigFromYaml(_LIBRARY),
    )


def _check_size(source: str, place: str) -> None:
    if len(source) > MAX_CHARACTERS:
        raise ValueError(f"{place} has {len(source)} characters; the maximum is {MAX_CHARACTERS}: make it shorter")
    tokens = sum(1 for _ in _TOKEN.finditer(source))
    if tokens > MAX_TOKENS:
        raise ValueError(
            f"{place} has {tokens} names, values and operators; the maximum is {MAX_TOKENS}: make it simpler"
        )


def _check_literals(source: str, place: str) -> None:
    for found in _LITERAL.finditer(source):
        try:
            parse_quantity(found[2][1:-1]) if found[1] == "quantity" else _semver(found[2][1:-1])
        except ValueError as error:
            at = found.start()
            line, column = source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)
            raise ValueError(f"{place}: unsupported expression at line {line}, column {column}: {error}") from error


def _position(message: str) -> str:
    """Return the problems that the library reports, each with its position."""
    found = [f"at line {line}, column {column}: {problem}" for line, column, problem in _PLACE.findall(message)]
    return " " + "; ".join(dict.fromkeys(found)) if found else f": {message}"


def _semver(text: str) -> list[int]:
    if not _SEMVER.fullmatch(text):
        raise ValueError(f"{text!r} is not a version: write one such as 9.0.0")
    return _padded(list(map(int, text.split("."))))


def _padded(version: list[int]) -> list[int]:
    return version + [0] * (3 - len(version))


def _compare(one: int | list[int], other: int | list[int]) -> int:
    if isinstance(one, list) and isinstance(other, list):
        one, other = _padded(one), _padded(other)
    return (one > other) - (one < other)  # type: ignore[operator]  # overloads never mix


def _lower_ascii(text: str) -> str:
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text)
