# SPDX-License-Identifier: Apache-2.0
"""How close candidates stand to one endpoint: on its host, in its rack, zone, region or cluster, or nowhere near."""

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Positions
from epp.framework.candidates import Candidates
from epp.framework.snapshot import TOPOLOGY, Topology

LEVELS = ("host", "rack", "zone", "region", "cluster")
"""Closest first; also the names of the fields of a `Topology`."""
FAR = len(LEVELS)
"""The closeness of an endpoint that shares no level."""

_UNKNOWN = -1


def closeness(candidates: Candidates, slot: int) -> Positions:
    """Return for each candidate the index in LEVELS of the closest level it shares with the slot's endpoint, or FAR.

    A level is shared where both name the same place. What is not known is never shared, not even with itself; the
    levels are compared one by one, whether or not the places nest.
    """
    places = candidates.snapshot.records(TOPOLOGY).derive(_places)
    there = places[:, slot, None]
    shared = (places[:, candidates.slots] == there) & (there != _UNKNOWN)
    return np.where(shared.any(axis=0), shared.argmax(axis=0), FAR)


def _places(topologies: tuple[Topology, ...]) -> NDArray[np.int64]:
    """Give the places of each level numbers: one row for each level, one column for each slot."""
    rows: list[list[int]] = []
    for level in LEVELS:
        numbers = {"": _UNKNOWN}
        rows.append([numbers.setdefault(getattr(topology, level), len(numbers)) for topology in topologies])
    return np.array(rows, dtype=np.int64)
