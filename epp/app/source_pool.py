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
"""Endpoints that join at once; tagging one can take half a millisecond."""
_MANY = 64
"""Number of changed endpoints from which they join in steps of the event loop."""
_VERY_MANY = 512
"""Number of changed endpoints from which the search for them is done in steps, too."""
_LEAVING = 16
"""Endpoints that leave at once, where many do."""


class SourcePool(Pool):
    """Withheld until `open`, without effect after `close`; in between endpoints leave at once, and join in batches.

    An endpoint is in the pool with its tags, or not at all. One that is replaced by another leaves at once, in a very
    large pool as soon as that is noticed. While some wait to join, the event loop serves requests; so it does while
    many are to leave.
    """

    def __init__(self, store: Datastore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_open = False
        self._is_closed = False
        self._waiting: dict[str, Endpoint] = {}
        """Endpoints that are to join, or to take other labels."""
        self._unread: dict[str, Endpoint] = {}
        """The endpoints of a large pool, of which some may be new or have new labels."""
        self._leaving: dict[str, None] = {}
        """Ids of endpoints that are to leave, where they are many."""
        self._any_waiting = asyncio.Event()

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Make these the endpoints of the pool; raises ValueError for two of one id."""
        wanted = by_id(endpoints)
        if not self._is_open:
            self._waiting = wanted
            return
        known = {endpoint.id: endpoint for endpoint in self._store.endpoints} | self._waiting | self._unread
        others = {identity: one for identity, one in wanted.items() if known.get(identity) is not one}
        gone = known.keys() - wanted.keys()
        for identity in self._leaving.keys() & wanted.keys():
            del self._leaving[identity]
        if len(others) <= _VERY_MANY and not self._unread:
            self.update([one for identity, one in others.items() if known.get(identity) != one], gone)
            return
        self.update((), gone)
        if not self._is_closed:
            self._unread.update(others)
            self._any_waiting.set()

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> None:
        """Take out some endpoints, and add or replace others; raises ValueError for two of one id."""
        wanted, gone = by_id(changed), set(removed)
        if self._is_closed:
            return
        idle = not (self._waiting or self._leaving or self._unread)
        for identity in gone:
            self._waiting.pop(identity, None)
            self._unread.pop(identity, None)
        if self._unread:
            for identity in wanted:
                self._unread.pop(identity, None)
        self._waiting.update(wanted)
        if not self._is_open:
            return
        gone = {identity for identity in gone if self._store.endpoint(identity) is not None}
        gone.update(endpoint.id for endpoint in wanted.values() if self._replaces(endpoint))
        if len(gone) > _MANY or self._leaving:
            self._leaving.update(dict.fromkeys(gone))
            if idle:
                self._join_for_a_stretch()  # so that there is one at any moment
            self._any_waiting.set()
            return
        self._store.update(self._next_batch() if idle else (), gone)
        if idle and len(self._waiting) <= _MANY:
            self._join_for_a_stretch()
        if self._waiting:
            self._any_waiting.set()

    async def open(self) -> None:
        """Put the withheld endpoints into the pool, and return when all are in it."""
        self._is_open = True
        await self._join()

    @property
    def withheld(self) -> Collection[Endpoint]:
        """The endpoints that `open` will let join."""
        return self._waiting.values()

    def opened(self) -> None:
        """Let changes through from now on, and replace the pool by the withheld endpoints."""
        self._is_open = True
        self._waiting = {}

    def close(self) -> None:
        """Ignore further calls: a source may write once more after its task was cancelled."""
        self._is_open, self._is_closed = False, True
        self._waiting, self._leaving, self._unread = {}, {}, {}

    async def follow(self) -> None:
        """Let waiting endpoints join, until cancelled."""
        while True:
            await self._any_waiting.wait()
            await self._join()
            self._any_waiting.clear()

    async def _join(self) -> None:
        while self._waiting or self._leaving or self._unread:
            if self._unread:
                self._read_for_a_stretch()
            else:
                self._join_for_a_stretch()
            await pause(STRETCH_SECONDS)

    def _read_for_a_stretch(self) -> None:
        """Sort out which endpoints take other labels, and which are replaced: those leave at once."""
        until = self._clock.now() + STRETCH_SECONDS
        while self._unread:
            for identity in tuple(islice(self._unread, _LEAVING)):
                endpoint = self._unread.pop(identity)
                if self._replaces(endpoint):
                    self._leaving[identity] = None
                if self._waiting.get(identity, self._store.endpoint(identity)) != endpoint or identity in self._leaving:
                    self._waiting[identity] = endpoint
            if self._clock.now() >= until:
                return

    def _join_for_a_stretch(self) -> None:
        until = self._clock.now() + STRETCH_SECONDS
        while self._waiting or self._leaving:  # one batch at least, however busy the machine is
            batch = self._next_batch()
            self._store.update(batch, self._next_leaving(batch))
            if self._clock.now() >= until:
                return

    def _next_leaving(self, joining: Iterable[Endpoint]) -> list[str]:
        """Return the ids that leave now, those first whose places are taken."""
        taken = [endpoint.id for endpoint in joining if endpoint.id in self._leaving]
        batch = [*taken, *islice(self._leaving, _LEAVING)]
        for identity in batch:
            self._leaving.pop(identity, None)
        return batch

    def _next_batch(self) -> list[Endpoint]:
        batch = list(islice(self._waiting.values(), _BATCH))
        for endpoint in batch:
            del self._waiting[endpoint.id]
        return batch

    def _replaces(self, endpoint: Endpoint) -> bool:
        """Return whether another endpoint of this id is in the pool."""
        current = self._store.endpoint(endpoint.id)
        return current is not None and endpoint.identity.is_another_than(current.identity)
