# SPDX-License-Identifier: Apache-2.0
"""Sizes of accelerator memory, with a tolerance for nominal sizes, which are a little too large."""

from epp.framework.quantities import parse_quantity

GIB = 2**30
NOMINAL_TOLERANCE = 0.03
"""Relative tolerance: a device with nominally 80 GiB reports 79.6."""

_BARE_LIMIT = 2**20


def parse_memory(value: str | float) -> int:
    """Return bytes: of a quantity such as `40Gi`, or of a plain number below 2^20, which is in GiB.

    Raises ValueError for anything else, zero and negative numbers included.
    """
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
        size = parse_quantity(value.strip())
    else:
        number = float(value)
        if not 0 < number < 2**63:
            raise ValueError(f"{value} is no memory size: write a quantity such as 40Gi, or a number of GiB above 0")
        size = round(number * GIB) if number < _BARE_LIMIT else round(number)
    if size < 1:
        raise ValueError(f"{value!r} is no memory size: write a quantity such as 40Gi, or a number of GiB above 0")
    return size


def memory_suffices(have_bytes: float, need_bytes: float) -> bool:
    """Return whether the size suffices, within the tolerance."""
    return have_bytes >= need_bytes * (1 - NOMINAL_TOLERANCE)
