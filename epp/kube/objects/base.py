# SPDX-License-Identifier: Apache-2.0
"""Base of cluster objects: metadata, conditions, quantities, conversion from plain data, and its errors.

A field with a dotted name, such as `spec.nodeName`, is read from that place in the document.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeVar, cast

import msgspec

from epp.framework.input_errors import mistakes_in, shown
from epp.framework.quantities import exact_quantity

T = TypeVar("T")
P = TypeVar("P", bound="Part")

_MOST_FAULTS = 20
_QUANTITY_CHARACTERS = 64
_QUANTITY_REMEDY = "write a number, optionally with k, M, G, T, Ki, Mi, Gi or Ti"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all parts of an object; undeclared fields are ignored."""


class OwnerReference(Part, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""


class Metadata(Part, frozen=True, kw_only=True):
    """Fields of type Any accept any value: an invalid one does not invalidate the object."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: Any = None
    deletion_timestamp: Any = None

    @property
    def created(self) -> datetime | None:
        """Time of creation; None if unknown, as in a hand-written object."""
        return date_of(self.creation_timestamp)

    @property
    def is_terminating(self) -> bool:
        return bool(self.deletion_timestamp)


class Condition(Part, frozen=True, kw_only=True):
    type: str
    status: str = ""
    reason: str = ""


class ObjectKey(NamedTuple):
    """Identity of an object."""

    group: str
    kind: str
    namespace: str
    name: str


class Object(Part, frozen=True, kw_only=True):
    """Base of all objects; `decode_object` sets `key`, `unknown_fields`, `issues` and `invalid`."""

    metadata: Metadata
    key: ObjectKey = msgspec.field(default=ObjectKey("", "", "", ""), name=" key")
    unknown_fields: tuple[str, ...] = msgspec.field(default=(), name=" unknownFields")
    issues: tuple[str, ...] = msgspec.field(default=(), name=" issues")
    """Field, value and remedy of each impossible value; the object is used without it."""
    invalid: str = msgspec.field(default="", name=" invalid")
    """Field, value and remedy of each invalid value; such a version does not replace a valid one."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def id(self) -> str:
        """`namespace/name`, or the name without a namespace."""
        space = self.metadata.namespace
        return f"{space}/{self.metadata.name}" if space else self.metadata.name

    @property
    def faults(self) -> tuple[str, ...]:
        """Field, value and remedy of each impossible value that decoding removed."""
        return ()

    def replaces(self, earlier: "Object | None") -> bool:
        """Return whether this version takes effect: an invalid version does not replace a valid one of the same object.

        An object that was deleted and created again has another uid, and is another object.
        """
        if not self.invalid or earlier is None or earlier.invalid:
            return True
        return self.metadata.uid != earlier.metadata.uid

    def contradiction(self) -> tuple[str, Self] | None:
        """Return field, value and remedy of a value that contradicts others, and the object without it; else None."""
        return None


class ClusterObject(Object, frozen=True, kw_only=True):
    """An object of cluster scope: a namespace in its metadata is ignored."""

    @property
    def id(self) -> str:
        return self.metadata.name


def _utc(text: str) -> datetime:
    """Return a time in ISO format, in UTC by default; raises ValueError."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def condition_of(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def convert(data: object, cls: type[T], place: str = "") -> T:
    """Return the struct; null means absent, as in the Kubernetes API.

    Raises ValueError with the field, as a path that begins with `place`, its value and the remedy.
    """
    plain = without_nulls(data)
    if isinstance(plain, Mapping) and (dotted := _dotted_fields(cast("Hashable", cls))):
        plain = {**plain, **dict(_values_at(plain, dotted))}
    try:
        return msgspec.convert(plain, cls, dec_hook=_quantity)
    except msgspec.ValidationError as error:
        raise ValueError(mistakes_in(cls, plain, _quantity)[0].at(place)) from error


def valid(annotation: Any, value: object, place: str, faults: list[str]) -> Any:
    """Convert a value to a type; return None if it does not fit, with place, value and remedy added to `faults`.

    Only the first twenty faults are explained.
    """
    try:
        return msgspec.convert(value, annotation, dec_hook=_quantity)
    except msgspec.ValidationError:
        if len(faults) < _MOST_FAULTS:
            faults.append(mistakes_in(annotation, value, _quantity)[0].at(place))
        elif len(faults) == _MOST_FAULTS:
            faults.append("further values do not fit either: correct them as well")
        return None


def valid_entries(cls: type[T], values: Iterable[object], place: str, faults: list[str]) -> tuple[T, ...]:
    """Convert the entries of a list to a type; entries that do not fit are left out, and added to `faults`."""
    found = (valid(cls, value, f"{place}[{index}]", faults) for index, value in enumerate(values))
    return tuple(each for each in found if each is not None)


def decoded(content: bytes, cls: type[T]) -> T:
    """Return the struct in a JSON text; raises ValueError."""
    try:
        return convert(msgspec.json.decode(content), cls)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def with_fields(cls: type[P], raw: "Part", **fields: object) -> P:
    """Return an object of this class with the given fields, and the other fields of `raw`."""
    return cls(**{**{name: getattr(raw, name) for name in raw.__struct_fields__}, **fields})


@lru_cache(maxsize=256)  # one entry for each type of struct
def _dotted_fields(cls: Hashable) -> tuple[str, ...]:
    if not (isinstance(cls, type) and issubclass(cls, msgspec.Struct)):
        return ()
    return tuple(field.encode_name for field in msgspec.structs.fields(cls) if "." in field.encode_name)


def _values_at(data: Mapping[str, object], names: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield each dotted name that is in the data, with its value; raises ValueError if a parent is not a mapping."""
    for name in names:
        value: object = data
        place = ""
        for step in name.split("."):
            if not isinstance(value, Mapping):
                raise ValueError(f"{place} is {shown(value)}: write a mapping")  # noqa: TRY004  of a document
            if step not in value:
                break
            value, place = value[step], f"{place}.{step}".removeprefix(".")
        else:
            yield name, value


def without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [without_nulls(inner) for inner in value if inner is not None]
    return value


def date_of(value: object) -> datetime | None:
    """Return the date in a text, in UTC if it names no time zone; None if it is not one."""
    try:
        date = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return date if date is None or date.tzinfo else date.replace(tzinfo=UTC)


def quantity_of(text: str | float) -> Fraction:
    """Return the value of a quantity; raises ValueError, also for one of more than 64 characters."""
    if isinstance(text, str) and len(text) > _QUANTITY_CHARACTERS:
        raise ValueError(f"{text[:_QUANTITY_CHARACTERS]!r}... is too long for a quantity")
    return exact_quantity(text)


def _quantity(cls: type, value: object) -> object:
    """Convert a quantity, quoted or not, to a Fraction; raises ValueError with the remedy."""
    remedy = _QUANTITY_REMEDY
    if cls is Fraction and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = str(value)
        with suppress(ValueError):
            return quantity_of(text)
        with suppress(ValueError):
            quantity_of(text.removesuffix("B"))
            remedy = f"write {text.removesuffix('B')}, without the B"
    raise ValueError(remedy)
