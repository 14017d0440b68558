# SPDX-License-Identifier: Apache-2.0
"""Targets for further tokens of the requests that run at each endpoint."""

from collections import deque
from collections.abc import Sequence
from math import inf

import numpy as np

from epp.framework import Floats, Positions

_MOST = 100_000
"""Requests; later ones do not count."""


class RunningTargets:
    """The strictest target of the requests with a target at each slot.

    A request counts until it ends, or for a limited time, as not every end is reported.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl = ttl_seconds
        self._targets: dict[int, dict[int, float]] = {}
        """By slot and number of the request."""
        self._expiry: deque[tuple[float, int, int]] = deque()
        self._number = 0
        self._strictest: Floats = np.zeros(0)

    def add(self, slot: int, target: float, now: float) -> int:
        """Add a request that is sent to the slot now; return its number, for `remove`."""
        self._number += 1
        if len(self._expiry) < _MOST:
            self._expiry.append((now + self._ttl, slot, self._number))
            self._targets.setdefault(slot, {})[self._number] = target
            self._reach(slot + 1)
            self._strictest[slot] = min(self._strictest[slot], target)
        return self._number

    def remove(self, slot: int, number: int) -> None:
        """Remove a request that has ended, if it is there."""
        targets = self._targets.get(slot)
        if targets is None or targets.pop(number, None) is None:
            return
        self._strictest[slot] = min(targets.values(), default=inf)
        if not targets:
            del self._targets[slot]

    def forget(self, slots: Sequence[int]) -> None:
        """Remove the requests of slots whose endpoint left."""
        for slot in slots:
            if self._targets.pop(slot, None) is not None:
                self._strictest[slot] = inf

    def strictest(self, slots: Positions) -> Floats | float:
        """Return the strictest target at each of these slots, infinite for none."""
        if not self._targets:
            return inf
        known = self._strictest
        missing = int(slots.max(initial=-1)) + 1 - len(known)
        return (np.pad(known, (0, missing), constant_values=inf) if missing > 0 else known)[slots]

    def expire(self, now: float) -> None:
        """Remove requests whose time is over."""
        while self._expiry and self._expiry[0][0] <= now:
            _, slot, number = self._expiry.popleft()
            self.remove(slot, number)

    def _reach(self, length: int) -> None:
        missing = length - len(self._strictest)
        if missing > 0:
            self._strictest = np.pad(self._strictest, (0, missing), constant_values=inf)
