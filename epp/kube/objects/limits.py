# SPDX-License-Identifier: Apache-2.0
"""Limits of the values in objects, and removal of values beyond them, which no device can have."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from epp.framework.input_errors import with_step
from epp.kube.objects.base import Object

BARE_GB_BELOW = 2**20
"""A memory size below this number of bytes is in GiB."""
GIB = 2**30

UNKNOWN_AMOUNT = Fraction(1, 3)
"""Replacement for an impossible requested amount. No quantity is exactly one third."""

_MOST_DEVICES = 65_536
_NOT_COUNTED = re.compile(r"mem|core|byte|storage|bandwidth")
"""Words in names of extended resources that are not numbers of devices."""
_DOLLARS = "write US dollars, 0 or more"
_DEVICES = "write a whole number of devices, 0 or more"
_SIZE = "write the size of one device, such as 80Gi"
S = TypeVar("S", bound=msgspec.Struct)
_MOST_ISSUES = 100
"""Maximum number of messages for one object; further values are removed without a message."""


class Limit(msgspec.Struct, frozen=True):
    remedy: str
    least: float = 0
    most: float = float("inf")
    above: bool = False
    is_size: bool = False
    instead: Fraction | None = None
    """Replacement for an impossible value, for entries of mappings that must not disappear."""

    def fault(self, value: Fraction | float, key: str = "") -> str:  # noqa: ARG002  subclasses use it
        """Return `is -3: write ...` for a value beyond the limits, else an empty text; `key` names the value."""
        written = shown_size if self.is_size else shown
        if not isfinite(value) or value < self.least or (self.above and value == self.least):
            return f"is {written(value)}: {self.remedy}"
        if value > self.most:
            return f"is {written(value)}, more than {written(self.most)}: {self.remedy}"
        return ""


class MemoryLimit(Limit, frozen=True):
    """Limit of the memory of a device; a small number is in GiB."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        in_bytes = value * GIB if 0 < value < BARE_GB_BELOW else value
        return f"is {shown_size(value)}: {self.remedy}" if super().fault(in_bytes, key) else ""


class CapacityLimit(MemoryLimit, frozen=True):
    """Limit of the capacities of a device by name; only memory has a known maximum."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        if key.rpartition("/")[2] == "memory":
            return super().fault(value)
        return f"is {shown(value)}: write 0 or more" if value < 0 else ""


class ResourceLimit(Limit, frozen=True):
    """Limit of the amounts of resources by name; extended resources, `domain/name`, are whole numbers."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        if value == UNKNOWN_AMOUNT:
            return ""
        is_extended = "/" in key
        if value < 0 or (is_extended and value != int(value)):
            return f"is {shown(value)}: {self.remedy}"
        return super().fault(value) if is_extended and not _NOT_COUNTED.search(key) else ""


def memory_bytes(size: Fraction | None) -> int | None:
    """Return the memory of a device in bytes, None if unknown; a number too small for bytes is in GiB."""
    if size is None or size <= 0:
        return None
    return int(size * GIB if size < BARE_GB_BELOW else size)


def shown(value: Fraction | float) -> str:
    """Return the number in decimal notation."""
    try:
        return f"{float(value):.10g}"
    except OverflowError:
        return f"{value:.3e}" if isinstance(value, int) else "beyond all numbers"


def shown_size(value: Fraction | float) -> str:
    """Return the size with the largest binary unit for which it is a whole number."""
    for power, unit in ((50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi")):
        if value and isfinite(value) and value % 2**power == 0:
            return f"{shown(value / 2**power)}{unit}"
    return shown(value)


Price: TypeAlias = Annotated[Fraction | None, Limit(_DOLLARS, most=10_000)]
"""US dollars for an hour of one device."""
RequiredPrice: TypeAlias = Annotated[Fraction, Limit("write a price of 0 or more", most=1_000_000)]
LargePrice: TypeAlias = Annotated[Fraction | None, Limit("write a price of 0 or more", most=1_000_000)]
"""Price of an hour of a machine, or of a workload, in dollars or cents."""
TokenPrice: TypeAlias = Annotated[Fraction | None, Limit(_DOLLARS, most=100_000)]
DeviceMemory: TypeAlias = Annotated[Fraction | None, MemoryLimit(_SIZE, most=2**46, above=True)]
Memory: TypeAlias = Annotated[
    Fraction | None, Limit("write bytes of 0 or more, such as 80Gi", most=2**56, is_size=True)
]
"""Memory of several devices, or of a part of one."""
Figure: TypeAlias = Annotated[float | None, Limit("write the TFLOPS of one device, above 0", most=1_000_000)]
"""TFLOPS or TOPS of one device; 0 if unknown."""
Bandwidth: TypeAlias = Annotated[Fraction | None, Limit("write GB/s, above 0", most=100_000_000)]
Tflops: TypeAlias = Annotated[Fraction | None, Limit("write TFLOPS of 0 or more", most=1_000_000_000)]
"""TFLOPS of several devices, or of a part of one."""
Percent: TypeAlias = Annotated[Fraction | None, Limit("write a percentage of 0 or more", most=10_000_000)]
"""Percent of one device; the sum for several devices."""
LinkBandwidth: TypeAlias = Annotated[Fraction | None, Limit("write MB/s, 0 or more", most=100_000_000)]
LinkTier: TypeAlias = Annotated[int, Limit("write 0, 1, 2 or 3", most=3)]
"""0 direct link, 1 same NUMA node, 2 across NUMA nodes, 3 unknown."""
AlertPercent: TypeAlias = Annotated[int, Limit("write 0 to 100 in place of the default, 95", most=100)]
"""Use of a quota that triggers an alert."""
Number: TypeAlias = Annotated[int | None, Limit("write a whole number of 0 or more", most=1_000_000)]
GPUS_OF_ALLOCATION = 128
"""Maximum number of GPUs that TensorFusion allocates to one workload."""
GpuCount: TypeAlias = Annotated[int | None, Limit("write the GPUs of one workload, 0 to 128", most=GPUS_OF_ALLOCATION)]
Start: TypeAlias = Annotated[int, Limit("write the first memory slot, 0 to 7", most=7)]
Size: TypeAlias = Annotated[int, Limit("write the number of memory slots, 1 to 8", least=1, most=8)]
Amount: TypeAlias = Annotated[Fraction, Limit("write 0 or more")]
OptionalAmount: TypeAlias = Annotated[Fraction | None, Limit("write 0 or more")]
AllocatableAmount: TypeAlias = Annotated[Fraction, ResourceLimit(_DEVICES, most=_MOST_DEVICES)]
RequestedAmount: TypeAlias = Annotated[Fraction, ResourceLimit(_DEVICES, most=_MOST_DEVICES, instead=UNKNOWN_AMOUNT)]
"""Amount of a resource of a container; an impossible number counts as an unknown amount."""
Capacity: TypeAlias = Annotated[Fraction, CapacityLimit(_SIZE, most=2**46, above=True)]


class _Impossible(Exception):  # noqa: N818  control flow: removes the struct with a required value
    def __init__(self, instead: Any = None) -> None:
        super().__init__()
        self.instead = instead
        """Replacement for the entry of a mapping; None to remove it."""


_Check: TypeAlias = Callable[[Any, str, str, list[str]], Any]
"""Returns the possible part of a value, given the value, its place, its name and the list of issues.

Raises _Impossible if the whole value is impossible.
"""


class _Field(NamedTuple):
    name: str
    place: str
    check: _Check
    default: Any
    """Replacement for an impossible value; NODEFAULT for a required field."""


def sanitized(each: Object) -> tuple[Object, tuple[str, ...]]:
    """Return the object without impossible values, and field, value and remedy of each of them.

    The types of the fields have the limits, `contradiction` finds values that exclude each other, and `faults` has the
    values that decoding removed. An impossible required value removes the struct or entry that contains it, but never
    the whole object.
    """
    issues = list(each.faults)
    found: Object = _with_possible_fields(_fields_of(type(each)), each, "", "", issues)
    while (contradiction := found.contradiction()) is not None:
        sentence, found = contradiction
        issues.append(sentence)
    return found, tuple(issues[:_MOST_ISSUES])


@lru_cache(maxsize=256)  # one entry for each type of struct
def _fields_of(cls: type[msgspec.Struct]) -> tuple[_Field, ...]:
    found = []
    for field in msgspec.structs.fields(cls):
        if (check := _check_of(field.type)) is not None:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found.append(_Field(field.name, field.encode_name, check, default))
    return tuple(found)


def _check_of(annotation: Any) -> _Check | None:
    """Return the check for values of a type; None for a type without limits."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limit = next((extra for extra in inner[1:] if isinstance(extra, Limit)), None)
        return None if limit is None else partial(_possible, limit)
    if isinstance(annotation, type):
        fields = _fields_of(annotation) if issubclass(annotation, msgspec.Struct) else ()
        return partial(_with_possible_fields, fields) if fields else None
    check = next((check for each in inner if (check := _check_of(each)) is not None), None)
    is_collection = isinstance(origin, type) and issubclass(origin, (tuple, Mapping))
    return check if check is None or not is_collection else partial(_with_possible_entries, check)


def _possible(limit: Limit, value: Any, place: str, key: str, issues: list[str]) -> Any:
    if fault := limit.fault(value, key):
        issues.append(f"{place} {fault}")
        raise _Impossible(limit.instead)
    return value


def _with_possible_fields(fields: tuple[_Field, ...], value: S, place: str, _key: str, issues: list[str]) -> S:
    changes: dict[str, Any] = {}
    for name, step, check, default in fields:
        before = getattr(value, name)
        if before is None:
            continue
        try:
            after = check(before, f"{place}.{step}" if place else step, step, issues)
        except _Impossible:
            if default is not msgspec.NODEFAULT:
                after = default
            elif place:
                raise
            else:
                continue
        if after is not before:
            changes[name] = after
    return msgspec.structs.replace(value, **changes) if changes else value


def _with_possible_entries(check: _Check, value: Any, place: str, _key: str, issues: list[str]) -> Any:
    is_mapping = isinstance(value, Mapping)
    entries = list(value.items() if is_mapping else enumerate(value))
    kept = []
    for step, each in entries:
        try:
            kept.append((step, check(each, with_step(place, step), str(step), issues)))
        except _Impossible as impossible:
            if impossible.instead is not None:
                kept.append((step, impossible.instead))
    if len(kept) == len(entries) and all(one is other for (_, one), (_, other) in zip(kept, entries, strict=True)):
        return value
    return dict(kept) if is_mapping else tuple(each for _, each in kept)
