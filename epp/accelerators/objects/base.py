"""What all cluster objects share: metadata, conditions, and how plain data becomes one of them."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from epp.accelerators.objects.field_errors import explain
from epp.framework.quantities import exact_quantity

T = TypeVar("T")

_QUANTITY_CHARACTERS = 64
_QUANTITY_REMEDY = "write a number, with k, M, G, T, Ki, Mi, Gi or Ti if need be"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object: fields that are not known here are ignored."""


class OwnerReference(Part, frozen=True, kw_only=True, rename="camel"):
    """What made the object."""

    kind: str = ""
    name: str = ""


class Metadata(Part, frozen=True, kw_only=True, rename="camel"):
    """Name and labels."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(Part, frozen=True, kw_only=True, rename="camel"):
    """One condition of a status."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class Object(Part, frozen=True, kw_only=True, rename="camel"):
    """An object of the cluster."""

    metadata: Metadata

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def id(self) -> str:
        """`namespace/name`, or the name of an object that is in no namespace."""
        space = self.metadata.namespace
        return f"{space}/{self.metadata.name}" if space else self.metadata.name


class ClusterObject(Object, frozen=True, kw_only=True, rename="camel"):
    """An object that is in no namespace, whatever its author wrote."""

    @property
    def id(self) -> str:
        """Its name."""
        return self.metadata.name


def condition_of(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of that type."""
    return next((condition for condition in conditions if condition.type == kind), None)


def convert(data: object, cls: type[T], place: str = "") -> T:
    """Return the struct; null means absent, as in the cluster's API.

    Raises ValueError that names the field, as a path that begins with `place`, its value, and what to write instead.
    """
    plain = without_nulls(data)
    try:
        return _converted(plain, cls)
    except msgspec.ValidationError as error:
        raise ValueError(explain(error, plain, lambda part: _converted(part, cls), place)) from error


def _converted(data: object, cls: type[T]) -> T:
    return msgspec.convert(data, cls, dec_hook=_quantity)


def without_nulls(value: Any) -> Any:
    """Return the data without the entries whose value is null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [without_nulls(inner) for inner in value if inner is not None]
    return value


def quantity_of(text: str | float) -> Fraction:
    """Return the number that a quantity stands for; raises ValueError, also for one of more digits than sizes have."""
    if isinstance(text, str) and len(text) > _QUANTITY_CHARACTERS:
        raise ValueError(f"{text[:_QUANTITY_CHARACTERS]!r}... is too long for a quantity")
    return exact_quantity(text)


def _quantity(cls: type, value: object) -> object:
    """Read what is declared as a Fraction: a quantity, quoted or not; raises ValueError that says what to write."""
    if cls is Fraction and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = str(value)
        try:
            return quantity_of(text)
        except ValueError:
            if _is_quantity(text.removesuffix("B")):
                raise ValueError(f"write {text.removesuffix('B')}, without the B") from None
    raise ValueError(_QUANTITY_REMEDY)


def _is_quantity(text: str) -> bool:
    try:
        quantity_of(text)
    except ValueError:
        return False
    return True
