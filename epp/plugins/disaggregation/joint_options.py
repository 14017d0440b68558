# SPDX-License-Identifier: Apache-2.0
"""The endpoints of one leg considered in a joint choice."""

from dataclasses import dataclass

import numpy as np

from epp.framework import ACCELERATOR, LAST_PICKED, TOPOLOGY, ProfileResult, Request, Topology
from epp.framework.accelerators.sites import NO_SURROUNDINGS, Surroundings
from epp.plugins.disaggregation.joint_parameters import Pairing


@dataclass(frozen=True, slots=True)
class Option:
    """One endpoint considered for a leg."""

    position: int
    """Among the profile's candidates."""
    slot: int
    score: float
    """The profile's total over the sum of its positive weights: in [0, 1] where no weight is negative."""
    topology: Topology
    kind: str
    """Kind of its accelerator; empty if unknown."""
    devices: Surroundings = NO_SURROUNDINGS
    """Places of its devices."""


def options(request: Request, result: ProfileResult, count: int, pairing: Pairing) -> list[Option]:
    """Return the profile's own first pick, then the highest other totals, at most `count` in all.

    Equal totals are ordered by least recently picked, then in rotation by the request's seed.
    """
    candidates, totals = result.candidates, result.totals
    own = int(result.picked[0])
    count = min(count, len(totals))
    floor = np.partition(totals, -count)[-count]
    contenders = np.flatnonzero(totals >= floor)
    contenders = contenders[contenders != own]
    slots = candidates.slots[contenders]
    capacity = candidates.snapshot.capacity
    offset = request.seed % capacity
    last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
    order = np.lexsort(((slots + offset) % capacity, last_picked, -totals[contenders]))
    ranked = [own, *contenders[order[: count - 1]].tolist()]
    full = sum(trace.weight for trace in result.scores if trace.weight > 0) or 1.0
    tags = candidates.snapshot.records(ACCELERATOR).values
    topologies = candidates.snapshot.records(TOPOLOGY).values
    return [
        Option(
            position=position,
            slot=(slot := int(candidates.slots[position])),
            score=float(totals[position]) / full,
            topology=topologies[slot],
            kind=pairing.kind_of(candidates[position], tags[slot]),
            devices=tags[slot].surroundings,
        )
        for position in ranked
    ]
