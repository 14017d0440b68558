# SPDX-License-Identifier: Apache-2.0
"""Vetting of decoded objects: values beyond their limits are left out, and the rest of the object is kept."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from epp.kube.objects.base import Object
from epp.kube.objects.field_errors import with_step
from epp.kube.objects.limits import Limit

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_MOST_DOUBTS = 100
"""Sentences on one object; further values are left out without a word."""


class Vetted(NamedTuple):
    """An object without its impossible values."""

    object: Object
    doubts: tuple[str, ...] = ()
    """Field, value and remedy of each value that was left out."""


class _Impossible(Exception):  # noqa: N818  no error: it takes the struct around a required value along
    """A value is impossible."""

    def __init__(self, instead: Any = None) -> None:
        super().__init__()
        self.instead = instead
        """For the entry of a mapping; None to leave it out."""


_Check = Callable[[Any, str, str, list[str]], Any]
"""Takes a value, its place, its key and the doubts; returns the value to keep, or raises _Impossible."""


class _Field(NamedTuple):
    """A field of a struct that has limits in it."""

    name: str
    place: str
    """As the document spells it."""
    check: _Check
    default: Any
    """Instead of an impossible value; NODEFAULT where there is none."""


def vetted(each: Object) -> Vetted:
    """Return the object without impossible values.

    The limits are those in the types of its fields; `contradiction` finds values that do not go together; `faults` are
    of those that decoding left out. A required
    value that is impossible takes the struct or the entry around it along, but never the object.
    """
    doubts = list(each.faults)
    found: Object = _struct(type(each))(each, "", "", doubts) if _fields_of(type(each)) else each
    while (contradiction := found.contradiction()) is not None:
        sentence, found = contradiction
        doubts.append(sentence)
    return Vetted(found, tuple(doubts[:_MOST_DOUBTS])) if doubts else Vetted(each)


@lru_cache(maxsize=256)  # one entry for each type of struct
def _fields_of(cls: type[msgspec.Struct]) -> tuple[_Field, ...]:
    return tuple(_fields(cls))


def _fields(cls: type[msgspec.Struct]) -> Iterator[_Field]:
    for field in msgspec.structs.fields(cls):
        check = _check_of(field.type)
        if check is None:
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        yield _Field(field.name, field.encode_name, check, default)


def _check_of(annotation: Any) -> _Check | None:
    """Return the check of values of a type; None for one without limits."""
    if get_origin(annotation) is Annotated:
        limit = next((extra for extra in get_args(annotation)[1:] if isinstance(extra, Limit)), None)
        return None if limit is None else _number(limit)
    if isinstance(annotation, type):
        is_limited = issubclass(annotation, msgspec.Struct) and _fields_of(annotation)
        return _struct(annotation) if is_limited else None
    origin, inner = get_origin(annotation), get_args(annotation)
    checks = [check for each in inner if (check := _check_of(each)) is not None]
    if not checks:
        return None
    if origin is tuple:
        return _tuple(checks[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(checks[0])
    return checks[0]  # of `Struct | None`


def _number(limit: Limit) -> _Check:
    def check(value: Any, place: str, key: str, doubts: list[str]) -> Any:
        fault = "" if value is None else limit.fault(value, key)
        if not fault:
            return value
        doubts.append(f"{place} {fault}")
        raise _Impossible(limit.instead)

    return check


def _struct(cls: type[msgspec.Struct]) -> _Check:
    fields = _fields_of(cls)

    def check(value: Any, place: str, key: str, doubts: list[str]) -> Any:  # noqa: ARG001  as all checks
        if value is None:
            return None
        changes: dict[str, Any] = {}
        for field in fields:
            before = getattr(value, field.name)
            try:
                after = field.check(before, f"{place}.{field.place}".removeprefix("."), field.place, doubts)
            except _Impossible:
                if field.default is msgspec.NODEFAULT:
                    if not place:
                        continue
                    raise
                after = field.default
            if after is not before:
                changes[field.name] = after
        return msgspec.structs.replace(value, **changes) if changes else value

    return check


def _tuple(inner: _Check) -> _Check:
    def check(value: Any, place: str, key: str, doubts: list[str]) -> Any:  # noqa: ARG001  as all checks
        kept = []
        for index, each in enumerate(value):
            try:
                kept.append(inner(each, with_step(place, index), "", doubts))
            except _Impossible:
                continue
        is_same = len(kept) == len(value) and all(one is other for one, other in zip(kept, value, strict=True))
        return value if is_same else tuple(kept)

    return check


def _mapping(inner: _Check) -> _Check:
    def check(value: Any, place: str, key: str, doubts: list[str]) -> Any:  # noqa: ARG001  as all checks
        kept = {}
        for name, each in value.items():
            try:
                kept[name] = inner(each, with_step(place, name), name, doubts)
            except _Impossible as impossible:
                if impossible.instead is not None:
                    kept[name] = impossible.instead
        is_same = len(kept) == len(value) and all(kept[name] is each for name, each in value.items())
        return value if is_same else kept

    return check
