# SPDX-License-Identifier: Apache-2.0
"""Learns how many requests each engine runs at once, from where its queues begin."""

import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats

_SIGHTINGS = 5
"""Looks at a queue behind the largest batch that was ever seen, after which that batch is the limit: an engine with
room queues for a moment as well, while it computes a prompt."""


class PlacesLearner:
    """By slot, the largest batch seen so far, if there was a queue at several looks at it and no larger one since."""

    __slots__ = ("_largest", "_reported_at", "_sightings", "version")

    def __init__(self) -> None:
        self._largest: Floats = np.zeros(0)
        self._sightings: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._reported_at: Floats = np.zeros(0)
        self.version = 0
        """Increments when the places of any slot change."""

    def look(self, running: Floats, waiting: Floats, reported_at: Floats) -> None:
        """Take in the batches and queues of all slots, NaN for one that is not known; the same report counts once."""
        missing = len(running) - len(self._largest)
        if missing > 0:
            self._largest = np.pad(self._largest, (0, missing))
            self._sightings = np.pad(self._sightings, (0, missing))
            self._reported_at = np.pad(self._reported_at, (0, missing), constant_values=-np.inf)
        before = self._sightings >= _SIGHTINGS
        largest, sightings = self._largest[: len(running)], self._sightings[: len(running)]  # views: changed in place
        sightings[running > largest] = 0
        np.fmax(largest, running, out=largest)
        known_at = self._reported_at[: len(running)]
        is_new = reported_at > known_at
        np.fmax(known_at, reported_at, out=known_at)
        sightings[is_new & (waiting > 0) & (running > 0) & (running == largest)] += 1
        self.version += int(((self._sightings >= _SIGHTINGS) != before).any())

    def learned(self, capacity: int) -> Floats | None:
        """Return the places of the first `capacity` slots, infinite where not learned; None if none is."""
        known = self._sightings[:capacity] >= _SIGHTINGS
        if not known.any():
            return None
        places = np.full(capacity, np.inf)
        places[: len(known)][known] = self._largest[:capacity][known]
        return places

    def forget(self, *slots: int) -> None:
        """Drop what is known of slots whose endpoint or hardware changed."""
        left = np.array(slots, dtype=np.intp)
        known = left[left < len(self._largest)]
        self._largest[known] = 0.0
        self._sightings[known] = 0
        self.version += len(slots)
