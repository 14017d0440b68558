# SPDX-License-Identifier: Apache-2.0
"""The pool as one source of endpoints writes it."""

import asyncio
from collections.abc import Collection, Iterable
from itertools import islice

from epp.framework.clock import Clock
from epp.framework.datalayer import Pool
from epp.framework.endpoint import Endpoint
from epp.pool.collectors.tagging import STRETCH_SECONDS, pause
from epp.routing.datastore import Datastore, by_id

_BATCH = 2
"""Endpoints that are added in one step; tagging one can take half a millisecond."""
_MANY = 64
"""Number of changed endpoints above which they are added in several event-loop iterations; see `SourcePool`."""


class SourcePool(Pool):
    """Pool of a source of endpoints: withholds them until `open`, then adds them in batches; no effect after `close`.

    Endpoints are removed immediately, and added with their tags. Replaced endpoints are removed immediately too, but if
    they are many, each leaves when its replacement joins, so that the pool does not shrink. The event loop serves
    requests between the batches of a large change.
    """

    def __init__(self, store: Datastore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_open = False
        self._is_closed = False
        self._waiting: dict[str, Endpoint] = {}
        """Endpoints to add, or to update with other labels."""
        self._has_changes = asyncio.Event()

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace all endpoints of the pool; raises ValueError for a repeated id."""
        wanted = by_id(endpoints)
        if not self._is_open:
            self._waiting = wanted
            return
        known = {endpoint.id: endpoint for endpoint in self._store.endpoints} | self._waiting
        changed = [one for identity, one in wanted.items() if known.get(identity) != one]
        self.update(changed, known.keys() - wanted.keys())

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> None:
        """Remove some endpoints, and add or replace others; raises ValueError for a repeated id."""
        wanted, gone = by_id(changed), set(removed)
        if self._is_closed:
            return
        idle = not self._waiting
        for identity in gone:
            self._waiting.pop(identity, None)
        self._waiting.update(wanted)
        if not self._is_open:
            return
        replaced = [identity for identity, one in wanted.items() if self._replaces(one)]
        if len(replaced) <= _MANY:
            gone.update(replaced)
        self._store.update(self._next_batch() if idle else (), gone)  # at once: a pool that is replaced is never empty
        if idle and len(self._waiting) <= _MANY:
            self._add_batches()
        if self._waiting:
            self._has_changes.set()

    async def open(self) -> None:
        """Add the withheld endpoints; return when all are in the pool."""
        self._is_open = True
        await self._apply_all()

    @property
    def withheld(self) -> Collection[Endpoint]:
        """Endpoints that `open` adds."""
        return self._waiting.values()

    def opened(self) -> None:
        """Apply further changes; the caller has added the withheld endpoints itself."""
        self._is_open = True
        self._waiting = {}

    def close(self) -> None:
        """Ignore further calls: a source may send a last change after its task was cancelled."""
        self._is_open, self._is_closed = False, True
        self._waiting = {}

    async def follow(self) -> None:
        """Add waiting endpoints, until cancelled."""
        while True:
            await self._has_changes.wait()
            await self._apply_all()
            self._has_changes.clear()

    async def _apply_all(self) -> None:
        while self._waiting:
            self._add_batches()
            await pause(STRETCH_SECONDS)

    def _add_batches(self) -> None:
        until = self._clock.now() + STRETCH_SECONDS
        while self._waiting:  # at least one batch, even on a busy machine
            self._store.update(self._next_batch())
            if self._clock.now() >= until:
                return

    def _next_batch(self) -> list[Endpoint]:
        batch = list(islice(self._waiting.values(), _BATCH))
        for endpoint in batch:
            del self._waiting[endpoint.id]
        return batch

    def _replaces(self, endpoint: Endpoint) -> bool:
        """Return whether the pool has a different endpoint with this id."""
        current = self._store.endpoint(endpoint.id)
        return current is not None and endpoint.identity.is_another_than(current.identity)
