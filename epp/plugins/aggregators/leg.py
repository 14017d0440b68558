"""One leg of a request in a joint choice: the endpoints it may get and what each is worth to its profile."""

from dataclasses import dataclass

import numpy as np

from epp.framework import ProfileResult, Request, Topology
from epp.framework.snapshot import LAST_PICKED, TOPOLOGY


@dataclass(frozen=True, slots=True)
class Option:
    """One endpoint that a leg may get."""

    position: int
    """Among the profile's candidates."""
    slot: int
    score: float
    """The profile's total over the sum of its positive weights: in [0, 1] where no weight is negative."""
    topology: Topology
    kind: str
    """The kind of its accelerator; empty for not known."""


def options(request: Request, result: ProfileResult, count: int, label_key: str) -> list[Option]:
    """Return the profile's own first pick, then the highest totals beside it, `count` in all at most.

    Equals are ordered by least recently picked; the rest takes turns, by the request's seed.
    """
    candidates, totals = result.candidates, result.totals
    own = int(result.picked[0])
    count = min(count, len(totals))
    floor = np.partition(totals, -count)[-count]
    contenders = np.flatnonzero(totals >= floor)
    contenders = contenders[contenders != own]
    slots = candidates.slots[contenders]
    capacity = candidates.snapshot.capacity
    turn = request.seed % capacity
    last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
    order = np.lexsort(((slots + turn) % capacity, last_picked, -totals[contenders]))
    ranked = [own, *contenders[order[: count - 1]].tolist()]
    full = sum(trace.weight for trace in result.scores if trace.weight > 0) or 1.0
    places = candidates.snapshot.records(TOPOLOGY).values
    return [
        Option(
            position=position,
            slot=(slot := int(candidates.slots[position])),
            score=float(totals[position]) / full,
            topology=places[slot],
            kind=candidates[position].labels.get(label_key, ""),
        )
        for position in ranked
    ]
