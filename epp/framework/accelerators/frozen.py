# SPDX-License-Identifier: Apache-2.0
"""Endpoints whose model is frozen to memory or disk, and must be woken up before it answers."""

import numpy as np

from epp.framework.accelerators.tag import FROZEN, AcceleratorTag
from epp.framework.arrays import Floats, any_true
from epp.framework.candidates import Candidates
from epp.framework.records import Records
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING

WAKE_UP_INPUTS = (ACCELERATOR, RUNNING, IN_FLIGHT)
"""What the cost is computed of; a plugin that uses it reads them."""


class WakeUpCost:
    """`memory` or `disk` for each candidate that is frozen there, 0 for the others.

    An endpoint with requests in flight or running is awake, or about to be.
    """

    __slots__ = ("_costs", "_disk", "_memory", "_tags")

    def __init__(self, memory: float, disk: float) -> None:
        self._memory = memory
        self._disk = disk
        self._tags: Records[AcceleratorTag] | None = None
        self._costs: Floats | None = None

    def of(self, candidates: Candidates) -> Floats | None:
        """Return the cost of each candidate; None if no endpoint is frozen."""
        tags = candidates.snapshot.records(ACCELERATOR)
        if tags is not self._tags:
            costs = tags.derive_numbers(_cost, self._memory, self._disk)
            self._tags, self._costs = tags, costs if any_true(costs > 0.0) else None
        if self._costs is None:
            return None
        busy = (candidates.values(IN_FLIGHT) > 0) | (candidates.values(RUNNING) > 0)
        return np.where(busy, 0.0, self._costs[candidates.slots])


def _cost(tag: AcceleratorTag, memory: float, disk: float) -> float:
    match tag.attributes.get(FROZEN):
        case "memory":
            return memory
        case "disk":
            return disk
        case _:
            return 0.0
