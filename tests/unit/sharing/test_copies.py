# SPDX-License-Identifier: Apache-2.0
"""How workers get the changes of the pool, made once for all of them."""

import asyncio
import socket

from structlog.testing import capture_logs

from epp.framework import Endpoint, SystemClock
from epp.routing.datastore import Datastore
from epp.sharing.channel import Channel
from epp.sharing.mirror import PoolCopies, PoolMirror
from tests.support.waiting import until

A, B = Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000)


class Store(Datastore):
    """Fails to make a snapshot while a test tells it to."""

    fails = False

    def snapshot(self):
        if self.fails:
            raise RuntimeError("no snapshot")
        return super().snapshot()


class Worker:
    """The two ends of a channel to a worker, and its copy of the pool."""

    def __init__(self, copies: PoolCopies) -> None:
        self.copy = Datastore(SystemClock())
        own_end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.own = Channel(own_end, {})
        self._other = Channel(end, {"pool": PoolMirror(self.copy).apply})
        self._copies = copies
        self.is_filled = False

    async def run(self) -> None:
        """Get the pool and its changes until the channel is closed."""
        await self.own.open()
        await self._other.open()
        giving = asyncio.create_task(self._copies.give(self.own, self._filled))
        await self._other.run()
        giving.cancel()
        await asyncio.gather(giving, return_exceptions=True)

    def _filled(self) -> None:
        self.is_filled = True

    def has(self, *names: str) -> bool:
        return self.is_filled and sorted(each.name for each in self.copy.endpoints) == sorted(names)


async def test_workers_get_the_pool_and_its_changes_and_end_to_be_replaced_if_it_cannot_be_compared():
    store = Store(SystemClock())
    store.replace([A])
    copies = PoolCopies(store)
    copying = asyncio.create_task(copies.run())

    async def joined(*names: str) -> tuple[Worker, asyncio.Task]:
        worker = Worker(copies)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.has(*names), "the worker has the pool")
        return worker, running

    first, first_running = await joined("a")
    second, second_running = await joined("a")
    store.replace([A, B])
    await until(lambda: first.has("a", "b") and second.has("a", "b"), "both have the change")
    with capture_logs() as logs:
        store.fails = True
        async with asyncio.timeout(60):
            await asyncio.gather(first_running, second_running)
    assert {each["event"] for each in logs} == {"the pool cannot be copied to the workers"}
    store.fails = False
    following, running = await joined("a", "b")
    copying.cancel()
    following.own.close()
    await running
