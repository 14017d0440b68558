# SPDX-License-Identifier: Apache-2.0
"""Modes in which AMD divides a device: `cpx_nps4` makes a device of each die."""

import re

from epp.framework.accelerators.tag import Partition, Sharing
from epp.hardware.catalogue.product import Product

_MODE = re.compile(r"(spx|dpx|tpx|qpx|cpx)(?:[_-]?nps[1248])?", re.IGNORECASE)
_DEVICES = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
_USUAL_DIES = 8


def devices_of_mode(mode: str, product: Product | None) -> int | None:
    """Return the number of devices that the mode makes of one; None for a text that is no mode."""
    match = _MODE.fullmatch(mode.strip())
    if match is None:
        return None
    dies = (product.parts if product is not None else None) or _USUAL_DIES
    return min(_DEVICES.get(match[1].lower(), dies), dies)


def partition_of_mode(mode: str, product: Product | None) -> Partition | None:
    """Return the share of one of these devices; the whole for mode SPX, None for a text that is no mode."""
    number = devices_of_mode(mode, product)
    if number is None or number == 1:
        return None if number is None else Partition()
    return Partition(
        kind=Sharing.AMD, profile=mode.strip().lower(), compute_fraction=1 / number, memory_fraction=1 / number
    )
