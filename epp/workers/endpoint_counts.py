# SPDX-License-Identifier: Apache-2.0
"""Picks and ended requests of each endpoint: workers count them, and tell the main process each second."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from epp.framework.arrays import Floats
from epp.framework.snapshot import FAILED, SERVED
from epp.routing.datastore import Change, Datastore

_SECONDS = 1.0


class Counted(NamedTuple):
    """The counts of a worker since its last message."""

    picks: Mapping[str, int]
    """By id of the endpoint."""
    ended: Sequence[str]
    """Ids of endpoints."""
    numbers: Floats
    """Served and failed requests in two rows, with a column for each of these."""


class EndpointCounter:
    """Tells what one worker counts."""

    def __init__(
        self, store: Datastore, picks: Callable[[], Mapping[str, int]], send: Callable[[Counted], object]
    ) -> None:
        """Prepare; `picks` returns how often each endpoint was picked, by id."""
        self._store = store
        self._picks = picks
        self._send = send
        self._told_picks: Mapping[str, int] = {}
        self._told = np.zeros((2, 0))
        """Served and failed requests by slot."""
        store.subscribe(self._pool_changed)

    async def run(self) -> None:
        """Tell each second, until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            self.tell()

    def tell(self) -> None:
        """Send the counts since the last message, if there are any."""
        snapshot = self._store.snapshot()
        now = np.stack((snapshot.column(SERVED), snapshot.column(FAILED)))
        self._told = np.pad(self._told, ((0, 0), (0, now.shape[1] - self._told.shape[1])))
        fresh, self._told = now - self._told, now
        slots = np.flatnonzero(fresh.any(axis=0))
        ended = [(slot, each.id) for slot in slots.tolist() if (each := snapshot.endpoints.values[slot]) is not None]
        before, picks = self._told_picks, self._picks()
        self._told_picks = picks
        # of an endpoint that left and came back, fewer are counted than were told
        more = {
            name: count if count < before.get(name, 0) else count - before.get(name, 0)
            for name, count in picks.items()
            if count != before.get(name, 0)
        }
        if more or ended:
            self._send(Counted(more, [name for _, name in ended], fresh[:, [slot for slot, _ in ended]]))

    def _pool_changed(self, change: Change) -> None:
        self._told[:, [slot for slot, _ in change.removed if slot < self._told.shape[1]]] = 0


class EndpointCounts:
    """The sums of all workers in the main process: ended requests in its datastore, and picks."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self.picks: Counter[str] = Counter()
        """How often each endpoint of the pool was picked, by id."""
        store.subscribe(self._pool_changed)

    def add(self, counted: Counted) -> None:
        """Add the counts of a worker; endpoints that have left are ignored."""
        self._store.count_ended(counted.ended, counted.numbers)
        self.picks.update(
            {name: more for name, more in counted.picks.items() if self._store.slot_named(name) is not None}
        )

    def _pool_changed(self, change: Change) -> None:
        for _, endpoint in change.removed:
            self.picks.pop(endpoint.id, None)
