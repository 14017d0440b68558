# SPDX-License-Identifier: Apache-2.0
"""How close candidates stand to one endpoint: on its host, in its rack, zone, region or cluster, or nowhere near."""

from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Positions
from epp.framework.candidates import Candidates
from epp.framework.snapshot import TOPOLOGY, Topology

LEVELS = ("host", "rack", "zone", "region", "cluster")
"""Closest first; also the names of the fields of a `Topology`."""
FAR = len(LEVELS)
"""The closeness of an endpoint that shares no level."""

_UNKNOWN = hash("")


def closeness(candidates: Candidates, slot: int) -> Positions:
    """Return for each candidate the index in LEVELS of the closest level it shares with the slot's endpoint, or FAR.

    A level is shared where both name the same place. What is not known is never shared, not even with itself; the
    levels are compared one by one; places need not nest.
    """
    places = candidates.snapshot.records(TOPOLOGY).derive(_places)
    there = places[:, slot, None]
    shared = (places[:, candidates.slots] == there) & (there != _UNKNOWN)
    return np.where(shared.any(axis=0), shared.argmax(axis=0), FAR)


def _places(topologies: tuple[Topology, ...]) -> NDArray[np.int64]:
    """Return a key for each place, equal ones for equal places: one row for each level, one column for each slot."""
    count = len(topologies)
    return np.array([np.fromiter(map(hash, map(attrgetter(level), topologies)), np.int64, count) for level in LEVELS])
