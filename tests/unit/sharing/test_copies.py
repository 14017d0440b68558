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


async def test_worker_gets_the_pool_and_then_the_changes_that_all_get():
    store = Store(SystemClock())
    store.replace([A])
    copies = PoolCopies(store)
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(copies.run())
        first = Worker(copies)
        group.create_task(first.run())
        await until(lambda: first.has("a"), "the first worker has the pool")
        second = Worker(copies)
        group.create_task(second.run())
        await until(lambda: second.has("a"), "the second worker has the pool")
        store.replace([A, B])
        await until(lambda: first.has("a", "b") and second.has("a", "b"), "both have the change")
        copying.cancel()
        first.own.close()
        second.own.close()


async def test_workers_end_to_be_replaced_if_the_pool_cannot_be_compared():
    store = Store(SystemClock())
    store.replace([A])
    copies = PoolCopies(store)
    with capture_logs() as logs:
        copying = asyncio.create_task(copies.run())
        worker = Worker(copies)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.has("a"), "the worker has the pool")
        store.fails = True
        async with asyncio.timeout(60):
            await running
    assert {each["event"] for each in logs} == {"the pool cannot be copied to the workers"}
    store.fails = False
    following = Worker(copies)
    running = asyncio.create_task(following.run())
    await until(lambda: following.has("a"), "the next process has the pool")
    copying.cancel()
    following.own.close()
    await running
