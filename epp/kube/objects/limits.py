# SPDX-License-Identifier: Apache-2.0
"""Limits of the values in objects: a value beyond them was written by mistake, since no device has it."""

import re
from fractions import Fraction
from math import isfinite
from typing import Annotated, TypeAlias

import msgspec

BARE_GB_BELOW = 2**20
"""A memory size below this many bytes is a number of GiB."""
GIB = 2**30

UNKNOWN_AMOUNT = Fraction(1, 3)
"""In place of an impossible amount of a resource that a container requests all the same; nobody can write a third."""

_MOST_DEVICES = 65_536
_NOT_COUNTED = re.compile(r"mem|core|byte|storage|bandwidth")
"""In names of extended resources that count something smaller than devices."""


class Limit(msgspec.Struct, frozen=True):
    """Least and most that a number can be."""

    remedy: str
    """What to write instead."""
    least: float = 0
    most: float = float("inf")
    above: bool = False
    """Whether the number must be above `least`."""
    is_size: bool = False
    """Whether it is a number of bytes."""
    instead: Fraction | None = None
    """In place of an impossible value, where the entry for it has a meaning of its own."""

    def fault(self, value: Fraction | float, key: str = "") -> str:  # noqa: ARG002  for limits that depend on the key
        """Return `is -3: write ...` for a value beyond the limits, otherwise an empty text; `key` is its name."""
        written = shown_size if self.is_size else shown
        if not isfinite(value) or value < self.least or (self.above and value == self.least):
            return f"is {written(value)}: {self.remedy}"
        if value > self.most:
            return f"is {written(value)}, more than {written(self.most)}: {self.remedy}"
        return ""


class MemoryLimit(Limit, frozen=True):
    """Limit of the memory of a device, of which a small number is in GiB."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        """Return the fault of the size that the value stands for."""
        in_bytes = value * GIB if 0 < value < BARE_GB_BELOW else value
        return f"is {shown_size(value)}: {self.remedy}" if super().fault(in_bytes, key) else ""


class CapacityLimit(MemoryLimit, frozen=True):
    """Limit of the capacities of a device by name, of which only the memory has a known maximum."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        """Return the fault; a capacity other than the memory may be any number of 0 and more."""
        if key.rpartition("/")[2] == "memory":
            return super().fault(value)
        return f"is {shown(value)}: write 0 or more" if value < 0 else ""


class ResourceLimit(Limit, frozen=True):
    """Limit of the amounts of resources by name: extended resources, `domain/name`, are whole numbers."""

    def fault(self, value: Fraction | float, key: str = "") -> str:
        """Return the fault of the amount of the resource with that name."""
        if value == UNKNOWN_AMOUNT:
            return ""
        is_extended = "/" in key
        if value < 0 or (is_extended and value != int(value)):
            return f"is {shown(value)}: {self.remedy}"
        return super().fault(value) if is_extended and not _NOT_COUNTED.search(key) else ""


def memory_bytes(size: Fraction | None) -> int | None:
    """Return the bytes of a device, None for an unknown size; a number too small for bytes is in GiB."""
    if size is None or size <= 0:
        return None
    return int(size * GIB if size < BARE_GB_BELOW else size)


def shown(value: Fraction | float) -> str:
    """Return the number as people write it."""
    try:
        return f"{float(value):.10g}"
    except OverflowError:
        return f"{value:.3e}" if isinstance(value, int) else "beyond all numbers"


def shown_size(value: Fraction | float) -> str:
    """Return the size with the largest binary unit that does not make it a fraction."""
    for power, unit in ((50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi")):
        if value and isfinite(value) and value % 2**power == 0:
            return f"{shown(value / 2**power)}{unit}"
    return shown(value)


_DOLLARS = "write US dollars, 0 or more"
_DEVICES = "write a whole number of devices, 0 or more"
_SIZE = "write the size of one device, such as 80Gi"

Price: TypeAlias = Annotated[Fraction | None, Limit(_DOLLARS, most=10_000)]
"""US dollars for an hour of one device."""
RequiredPrice: TypeAlias = Annotated[Fraction, Limit("write a price of 0 or more", most=1_000_000)]
LargePrice: TypeAlias = Annotated[Fraction | None, Limit("write a price of 0 or more", most=1_000_000)]
"""Price of an hour of a machine, or of a workload, in dollars or cents."""
TokenPrice: TypeAlias = Annotated[Fraction | None, Limit(_DOLLARS, most=100_000)]
"""US dollars for a million tokens."""
DeviceMemory: TypeAlias = Annotated[Fraction | None, MemoryLimit(_SIZE, most=2**46, above=True)]
"""Memory of one device."""
Memory: TypeAlias = Annotated[
    Fraction | None, Limit("write bytes of 0 or more, such as 80Gi", most=2**56, is_size=True)
]
"""Memory of several devices, or of a part of one."""
Figure: TypeAlias = Annotated[float | None, Limit("write the TFLOPS of one device, above 0", most=1_000_000)]
"""TFLOPS or TOPS of one device; 0 stands for unknown."""
Bandwidth: TypeAlias = Annotated[Fraction | None, Limit("write GB/s, above 0", most=100_000_000)]
"""Memory bandwidth of one device."""
Tflops: TypeAlias = Annotated[Fraction | None, Limit("write TFLOPS of 0 or more", most=1_000_000_000)]
"""TFLOPS of several devices, or of a part of one."""
Percent: TypeAlias = Annotated[Fraction | None, Limit("write a percentage of 0 or more", most=10_000_000)]
"""Percent of one device; those of several add up."""
LinkBandwidth: TypeAlias = Annotated[Fraction | None, Limit("write MB/s, 0 or more", most=100_000_000)]
"""Bandwidth between two devices."""
LinkTier: TypeAlias = Annotated[int, Limit("write 0, 1, 2 or 3", most=3)]
"""0 direct link, 1 same NUMA node, 2 across NUMA nodes, 3 unknown."""
AlertPercent: TypeAlias = Annotated[int, Limit("write 0 to 100 in place of the default, 95", most=100)]
"""Use of a quota from which on there is an alert."""
Number: TypeAlias = Annotated[int | None, Limit("write a whole number of 0 or more", most=1_000_000)]
Start: TypeAlias = Annotated[int, Limit("write the first memory slot, 0 to 7", most=7)]
"""First memory slot of a slice."""
Size: TypeAlias = Annotated[int, Limit("write the number of memory slots, 1 to 8", least=1, most=8)]
"""Memory slots of a slice."""
Amount: TypeAlias = Annotated[Fraction, Limit("write 0 or more")]
AllocatableAmount: TypeAlias = Annotated[Fraction, ResourceLimit(_DEVICES, most=_MOST_DEVICES)]
"""Amount of a resource of a node."""
RequestedAmount: TypeAlias = Annotated[Fraction, ResourceLimit(_DEVICES, most=_MOST_DEVICES, instead=UNKNOWN_AMOUNT)]
"""Amount of a resource of a container, which has some of it even if the number is impossible."""
Capacity: TypeAlias = Annotated[Fraction, CapacityLimit(_SIZE, most=2**46, above=True)]
"""Capacity of a device."""
