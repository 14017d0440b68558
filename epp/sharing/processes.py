# SPDX-License-Identifier: Apache-2.0
"""The main process's side: starts workers, keeps their pools up to date, and replaces a worker that ends."""

import asyncio
import os
import pickle
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from secrets import token_bytes

import structlog

from epp.routing.datastore import Datastore
from epp.runtime.supervisor import first_of
from epp.sharing.channel import Channel, Handler
from epp.sharing.connections import Connections
from epp.sharing.healthz import Processes
from epp.sharing.link import VARIABLE, ConfigInEffect
from epp.sharing.local import Relay
from epp.sharing.mirror import PoolCopies

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Pauses before a worker that ended is replaced; the pause doubles if a worker ends before it has served."""
_START_SECONDS = 120.0
"""Time limit for the start of a worker, until it takes messages; after that, it is replaced."""
_SILENCE_SECONDS = 10.0
"""Time without a message after which a worker is replaced."""
_STOP_SECONDS = 5.0
"""Time limit for the end of a worker; after that, it is killed."""

_log = structlog.get_logger()


class Worker:
    """A worker number, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.channel: Channel | None = None
        self.picker = ""
        """Id among pickers; empty before the process takes messages."""
        self.is_serving = False
        self.replaced = 0
        """Number of processes that ended before this one."""


class Workers:
    """The workers of a picker, between `start` and `stop`."""

    def __init__(
        self,
        count: int,
        store: Datastore,
        relay: Relay,
        gate: Connections,
        memory: int,
        *,
        handlers: Callable[[Worker], Mapping[str, Handler]],
        greeting: Callable[[], Iterable[tuple[str, object]]],
        config: Callable[[], ConfigInEffect | None],
    ) -> None:
        """Prepare; `memory` is the descriptor of the rings.

        `handlers` returns the handlers of messages and calls of one worker, `greeting` the messages to a new worker,
        `config` the configuration with which a worker starts.
        """
        self.members = [Worker(number) for number in range(1, count + 1)]
        self._store = store
        self._relay = relay
        self._gate = gate
        self._memory = memory
        self._handlers = handlers
        self._greeting = greeting
        self._config = config
        self._starts = asyncio.Semaphore(os.cpu_count() or 1)
        """Limits concurrent starts: a start takes a core for a second."""
        self._key = token_bytes(32)
        self._tasks: list[asyncio.Task[None]] = []
        self._served = asyncio.Event()
        self._is_stopping = False
        self._copies = PoolCopies(store)
        self._copying: asyncio.Task[None] | None = None

    @property
    def serving(self) -> Sequence[Worker]:
        """Workers that serve; may be read in any thread."""
        return [worker for worker in self.members if worker.is_serving]

    @property
    def counts(self) -> Processes:
        """Number of processes, by state; may be read in any thread."""
        serving = len(self.serving)
        replaced = sum(worker.replaced for worker in self.members)
        return Processes(serving, len(self.members) - serving, replaced)

    @property
    def channels(self) -> Mapping[int, Channel]:
        return {worker.number: worker.channel for worker in self.serving if worker.channel is not None}

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep(worker), name=f"worker {worker.number}") for worker in self.members
        ]
        self._copying = asyncio.create_task(self._copies.run(), name="copies of the pool")

    async def started(self, *, all_seconds: float, first_seconds: float) -> bool:
        """Wait until all workers serve, or for a further time until one does; return whether any worker serves."""
        for count, seconds in ((len(self.members), all_seconds), (1, first_seconds)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while len(self.serving) < count:
                        self._served.clear()
                        await self._served.wait()
        return bool(self.serving)

    def send(self, kind: str, content: object = None) -> None:
        for worker in self.members:
            if worker.channel is not None:
                worker.channel.send(kind, content)

    def send_to(self, number: int, kind: str, content: object) -> None:
        channel = self.members[number - 1].channel
        if channel is not None:
            channel.send(kind, content)

    async def stop(self) -> None:
        """Stop all processes; kill those that take no messages yet."""
        self._is_stopping = True
        self.send("stop")
        started = [task for worker, task in zip(self.members, self._tasks, strict=True) if worker.picker]
        if started:
            await asyncio.wait(started, timeout=_STOP_SECONDS + 1)
        for worker in self.members:
            if worker.process is not None:
                with suppress(ProcessLookupError):
                    worker.process.kill()
        tasks = [*self._tasks, *(() if self._copying is None else (self._copying,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, worker: Worker) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                has_served = await self._run(worker)
            except OSError as error:
                has_served = False
                _log.warning("a worker cannot be started", worker=worker.number, problem=error.strerror)
            except Exception:  # noqa: BLE001  the worker is replaced after any failure
                has_served = False
                _log.exception("a worker failed", worker=worker.number)
            if self._is_stopping:
                return
            worker.replaced += 1
            pause = _FIRST_PAUSE_SECONDS if has_served else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _run(self, worker: Worker) -> bool:
        """Run one process until it ends; return whether it served."""
        with ExitStack() as start:
            await self._starts.acquire()
            start.callback(self._starts.release)
            return await self._run_process(start, worker)

    async def _run_process(self, start: ExitStack, worker: Worker) -> bool:
        """Run one process; close `start` once another process may start."""
        own_end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        own_gate, gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        takes_messages = asyncio.Event()
        config = self._config()

        def hello(picker: str) -> None:
            worker.picker = picker
            takes_messages.set()
            start.close()

        def started(_: object) -> None:
            worker.is_serving = True
            for message in self._greeting():
                channel.send(*message)
            if self._config() != config:
                channel.send("reload")
            self._gate.add(worker.number, own_gate)
            self._served.set()

        channel = Channel(own_end, {"hello": hello, "started": started, **self._handlers(worker)})
        with own_end, own_gate:
            with end, gate:
                process = await _start(worker.number, end, gate, self._memory, key=self._key, config=config)
            worker.process = process
            try:
                await channel.open()
                worker.channel = channel
                copy = self._copy(worker, channel, takes_messages)
                await first_of(channel.run(), copy, _until_silent(channel, takes_messages))
            finally:
                has_served, worker.is_serving = worker.is_serving, False
                worker.channel = None
                self._gate.remove(worker.number)
                channel.close()
                if worker.picker:
                    self._relay.leave(worker.picker)
                    worker.picker = ""
            await _end(process)
            worker.process = None
        if not self._is_stopping:
            _log.warning("a worker ended, and is replaced", worker=worker.number, exit_code=process.returncode)
        return has_served

    async def _copy(self, worker: Worker, channel: Channel, takes_messages: asyncio.Event) -> None:
        """Send the pool and its changes to a worker, once it takes messages."""

        def filled() -> None:
            self._relay.join(worker.picker, channel.send)
            channel.send("filled")

        await takes_messages.wait()
        await self._copies.give(channel, filled)


async def _start(
    number: int, channel: socket.socket, gate: socket.socket, memory: int, *, key: bytes, config: ConfigInEffect | None
) -> Process:
    """Start this command again as a worker, with the same flags; it inherits the sockets and the memory."""
    descriptors = channel.fileno(), gate.fileno(), memory
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # this program, not one in the current directory
        "-m",
        "epp",
        *sys.argv[1:],
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, VARIABLE: ",".join(map(str, (number, *descriptors, key.hex())))},
        pass_fds=descriptors,
        start_new_session=True,  # only the main process handles signals of a terminal
    )
    assert process.stdin is not None  # noqa: S101  a pipe
    with suppress(RuntimeError):  # raised by uvloop if the process has ended already
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()
    return process


async def _until_silent(channel: Channel, takes_messages: asyncio.Event) -> None:
    """Wait until a process stops sending messages: once it has started, it reports its connections each second."""
    if not await first_of(takes_messages.wait(), most_seconds=_START_SECONDS):
        return
    channel.has_received = True
    while channel.has_received:
        channel.has_received = False
        await asyncio.sleep(_SILENCE_SECONDS)


async def _end(process: Process) -> None:
    """Wait for the end of a process that has closed its channel; kill it if that takes long."""
    if not await first_of(process.wait(), most_seconds=_STOP_SECONDS):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
