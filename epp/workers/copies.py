# SPDX-License-Identifier: Apache-2.0
"""The pool of the main process, sent to its workers: whole to a new one, and then its changes to all of them."""

import asyncio
from collections.abc import Callable

import structlog

from epp.routing.datastore import Datastore
from epp.workers.channel import Channel, packed
from epp.workers.mirror import PoolSource

_COPY_SECONDS = 0.02
"""Time between two looks at changes of the pool."""

_log = structlog.get_logger()


class PoolCopies:
    """Compares the pool and packs its changes once for all workers."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._source = PoolSource(store)
        """Compares the pool with what the workers have that are filled."""
        self._filled: set[Channel] = set()
        self._filling: set[Channel] = set()
        self._is_copying = False
        """Whether the filled workers have only a part of the newest changes."""

    async def give(self, channel: Channel, filled: Callable[[], None]) -> None:
        """Send the pool as the other workers have it, call `filled`, and send changes until cancelled."""
        source = PoolSource(self._store)
        self._filling.add(channel)
        try:
            while self._is_copying or source.told.generation != self._source.told.generation:
                if not channel.is_open:
                    return
                for part in source.differences(self._source.told):
                    channel.send("pool", part)
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
            self._filled.add(channel)
            filled()
            await asyncio.Event().wait()
        finally:
            self._filling.discard(channel)
            self._filled.discard(channel)

    async def run(self) -> None:
        """Send changes until cancelled.

        If the pool cannot be compared, it is unknown what the workers have: their channels are closed, so that each is
        replaced and gets the whole pool.
        """
        while True:
            self._is_copying = True
            try:
                for part in self._source.differences():
                    data = packed("pool", part)
                    for channel in tuple(self._filled):
                        channel.send_packed(data)
                    await asyncio.sleep(0)
            except Exception:  # noqa: BLE001  as said above
                _log.exception("the pool cannot be copied to the workers")
                for channel in tuple(self._filling):
                    channel.close()
                self._filled.clear()
                self._source = PoolSource(self._store)
            self._is_copying = False
            await asyncio.sleep(_COPY_SECONDS)
