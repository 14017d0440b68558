# SPDX-License-Identifier: Apache-2.0
"""Starts of worker processes."""

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable

import pytest

from epp.framework.clock import ManualClock
from epp.routing.datastore import Datastore
from epp.sharing import processes
from epp.sharing.channel import packed
from epp.sharing.exchange import Exchange
from epp.sharing.link import ConfigInEffect
from epp.sharing.local import Relay
from epp.sharing.processes import Workers
from epp.sharing.rings import Rings, shared_memory
from tests.support.waiting import until


class Gate:
    def add(self, worker: int, sock: socket.socket) -> None:
        """Give it no connections."""

    def remove(self, worker: int) -> None:
        """Likewise."""


class Started:
    """Processes that sleep in place of workers."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.processes: list[Process] = []
        self.configs: list[ConfigInEffect | None] = []

    async def start(
        self,
        _number: int,
        channel: socket.socket,
        _gate: socket.socket,
        _memory: int,
        *,
        key: bytes,
        config: ConfigInEffect | None,
    ) -> Process:
        assert key
        self.sockets.append(channel.dup())
        self.configs.append(config)
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "import time; time.sleep(600)")
        self.processes.append(process)
        return process

    def say(self, worker: int, *kinds: str) -> None:
        """Send messages as a worker does."""
        for kind in kinds:
            message = packed(kind, "worker")
            self.sockets[worker].sendall(len(message).to_bytes(4) + message)


@pytest.fixture
async def started(monkeypatch) -> AsyncIterator[Started]:
    found = Started()
    monkeypatch.setattr(processes, "_start", found.start)
    monkeypatch.setattr(processes, "_STOP_SECONDS", 0.01)  # they do not end when told to
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    yield found
    for each in found.sockets:
        each.close()
    for each in found.processes:
        await each.wait()  # killed by `stop`


@contextlib.asynccontextmanager
async def running(count: int, config: Callable[[], ConfigInEffect | None] = lambda: None) -> AsyncIterator[Workers]:
    store, memory, clock = Datastore(ManualClock()), shared_memory(1), ManualClock()
    relay = Relay(Exchange("main", tuple, store.snapshot, clock, 1), clock, Rings(memory, 0))
    workers = Workers(count, store, relay, Gate(), memory, handlers=lambda _: {}, greeting=tuple, config=config)
    workers.start()
    try:
        yield workers
    finally:
        await workers.stop()


async def test_as_many_processes_start_at_once_as_there_are_cores(started):
    async with running(5):
        for ready in range(4):
            await until(lambda: len(started.sockets) == ready + 2, "two processes start")  # noqa: B023  awaited
            started.say(ready, "hello")


async def test_process_that_hangs_as_it_starts_is_replaced(started, monkeypatch):
    monkeypatch.setattr(processes, "_START_SECONDS", 0.01)
    async with running(1) as workers:
        await until(lambda: workers.counts.replaced == 2, "the second one hangs, too")
        assert len(started.sockets) >= 2


async def test_worker_whose_start_fails_is_replaced_whatever_the_failure(started, monkeypatch):
    failures: list[Exception] = [OSError(24, "no descriptors"), RuntimeError("the pipe is closed")]

    async def start(*given, **more) -> Process:
        if failures:
            raise failures.pop()
        return await started.start(*given, **more)

    monkeypatch.setattr(processes, "_start", start)
    async with running(1) as workers:
        await until(lambda: started.sockets, "the third start succeeds")
        assert workers.counts.replaced == 2


async def test_picker_waits_for_all_workers_for_a_while_and_then_only_for_the_first(started):
    async with running(2) as workers:
        assert not await workers.started(all_seconds=0.01, first_seconds=0.01)
        await until(lambda: len(started.sockets) == 2, "both processes start")
        started.say(0, "hello", "started")
        assert await workers.started(all_seconds=0.01, first_seconds=60.0)
        assert workers.counts.starting == 1


async def test_worker_starts_with_the_configuration_in_effect_and_looks_again_if_another_one_is_by_then(started):
    configs = [ConfigInEffect("first", 1)]
    async with running(1, lambda: configs[-1]):
        await until(lambda: started.sockets, "the process starts")
        assert started.configs == configs
        configs.append(ConfigInEffect("second", 2))
        started.say(0, "hello", "started")
        received = b""
        started.sockets[0].setblocking(False)  # noqa: FBT003
        while b"reload" not in received:
            received += await asyncio.get_running_loop().sock_recv(started.sockets[0], 65536)
