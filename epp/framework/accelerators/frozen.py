# SPDX-License-Identifier: Apache-2.0
"""Endpoints whose model is frozen to memory or disk, and must be woken up before it answers."""

import numpy as np

from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.accelerators.tag import FROZEN, AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING

WAKE_UP_INPUTS = (ACCELERATOR, RUNNING, IN_FLIGHT)
"""What the cost is computed of; a plugin that calls this reads them."""


def wake_up_cost(candidates: Candidates, memory: float, disk: float) -> Floats:
    """Return `memory` or `disk` for each candidate that is frozen there, 0 for the others.

    An endpoint with requests in flight or running is awake, or about to be.
    """
    cost = tag_numbers(candidates, _cost, memory, disk)
    busy = (candidates.values(IN_FLIGHT) > 0) | (candidates.values(RUNNING) > 0)
    return np.where(busy, 0.0, cost)


def _cost(tag: AcceleratorTag, memory: float, disk: float) -> float:
    match tag.attributes.get(FROZEN):
        case "memory":
            return memory
        case "disk":
            return disk
        case _:
            return 0.0
