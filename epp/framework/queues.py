# SPDX-License-Identifier: Apache-2.0
"""How long requests wait for a place in the batch of each endpoint."""

from typing import NamedTuple

import numpy as np

from epp.framework.arrays import Floats, Positions, read_only

_ZERO, _ONE, _INFINITE = (read_only(np.array(number)) for number in (0.0, 1.0, np.inf))
"""Arrays of no dimension: NumPy works with them at half the cost of floats."""


class Queues(NamedTuple):
    """Wait for a place: `max(waiting, in_flight - room) * turn_seconds`; one number for each endpoint.

    A place is free once in `output tokens * ITL / batch` seconds. The batch of an engine with a queue is full, and that
    of one with as many requests as it has places, where these are known. Requests that wait for a place are those
    reported, or those in flight that have no place where they are more: what was just sent counts at once.
    """

    waiting: Floats
    """Requests that wait by what is reported, this one included where the places are known; 0 or more."""
    room: Floats
    """Requests in flight beyond which each waits; infinite where no queue and no places are known."""
    turn_seconds: Floats
    """Time until the next place is free."""

    @classmethod
    def of(cls, running: Floats, waiting: Floats, turn_seconds: Floats, places: Floats | None) -> "Queues":
        """Return the queues of endpoints with such batches, and such queues where known.

        `running` are 1 or more, `places` infinite where not known; None if not known of any.
        """
        is_queue = waiting > _ZERO  # not so for NaN
        least, room = np.where(is_queue, waiting, _ZERO), np.where(is_queue, running, _INFINITE)
        if places is not None:
            least = np.maximum(least, running + np.fmax(waiting, _ZERO) + _ONE - places)
            room = np.minimum(room, places - _ONE)
        return cls(least, room, turn_seconds)

    def at(self, slots: Positions) -> "Queues":
        """Return the queues of some of the endpoints."""
        return Queues(self.waiting[slots], self.room[slots], self.turn_seconds[slots])

    def seconds(self, in_flight: Floats) -> Floats:
        """Return the time that the next request waits where so many are in flight."""
        seconds = in_flight - self.room
        np.maximum(seconds, self.waiting, out=seconds)
        seconds *= self.turn_seconds
        return seconds

    def seconds_at(self, slot: int, in_flight: float) -> float:
        """Return the same for one of the endpoints."""
        return max(in_flight - self.room.item(slot), self.waiting.item(slot)) * self.turn_seconds.item(slot)
