# SPDX-License-Identifier: Apache-2.0
"""The worker's side: its environment variable, and its connection to the main process."""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from epp.framework.datalayer import Discovery, Pool
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.routing.datastore import Datastore
from epp.routing.outliers.record import OnVerdict, Verdict
from epp.sharing.channel import Channel, ChannelClosedError, Handler
from epp.sharing.mirror import PoolMirror
from epp.sharing.rings import Rings

VARIABLE: Final = "EPP_WORKER"
"""Environment variable of a worker: number, descriptors of the channel, the connections and the rings, and key."""
_PROBE_SECONDS = 10.0


class ConfigInEffect(NamedTuple):
    """Content of the configuration file that the main process uses: the file may have a later, invalid version."""

    text: str
    generation: int


class Link(Discovery[Parameters]):
    """The connection of a worker to the main process, which is also the source of its endpoints."""

    def __init__(
        self,
        number: int,
        channel: socket.socket,
        connections: socket.socket,
        rings: Rings,
        *,
        key: bytes,
        config: ConfigInEffect | None = None,
    ) -> None:
        """Prepare; the sockets are ends of socket pairs, and `key` is the same for all workers."""
        super().__init__(name="main-process")
        self.number = number
        self.key = key
        """Key of the prompt hashes in records of decisions."""
        self.config = config
        """None if the main process follows no file."""
        self.connections = connections
        """Socket that delivers accepted connections."""
        self.rings = rings
        """Batches of all processes."""
        self._sock = channel
        self._channel: Channel | None = None
        self.filled = asyncio.Event()
        """Set once all endpoints of the main process have arrived."""
        self.ended = asyncio.Event()
        """Set when the main process stops this one, or has ended itself."""
        self._probes: set[asyncio.Task[None]] = set()

    def attach(self, store: Datastore, handlers: Mapping[str, Handler]) -> None:
        """Prepare to fill a datastore; `handlers` are for further messages of the main process."""
        own: dict[str, Handler] = {
            "pool": PoolMirror(store).apply,
            "filled": lambda _: self.filled.set(),
            "stop": lambda _: self.ended.set(),
        }
        self._channel = Channel(self._sock, {**own, **handlers})

    @property
    def channel(self) -> Channel:
        assert self._channel is not None  # noqa: S101  connected before
        return self._channel

    def send(self, kind: str, content: object = None) -> None:
        self.channel.send(kind, content)

    async def open(self, picker: str) -> None:
        """Report to the main process that this worker takes messages; `picker` is its id among pickers."""
        await self.channel.open()
        self.channel.send("hello", picker)

    async def run(self) -> None:
        try:
            await self.channel.run()
        finally:
            self.ended.set()

    async def start(self, pool: Pool) -> None:  # noqa: ARG002  the datastore is written directly
        """Wait for the endpoints of the main process."""
        await self.filled.wait()

    async def follow(self, pool: Pool) -> None:  # noqa: ARG002  the same
        """Wait for the end: messages change the pool."""
        await self.ended.wait()

    def ask(self, endpoint: Endpoint, report: OnVerdict) -> None:
        """Make the main process poll an endpoint urgently, and call `report` with the verdict."""
        task = asyncio.create_task(self._probe(endpoint, report))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint, report: OnVerdict) -> None:
        try:
            verdict = Verdict(await self.channel.call("ask", endpoint.id, most_seconds=_PROBE_SECONDS))
        except ChannelClosedError:
            verdict = Verdict.SILENT
        report(verdict)


def link_of_environment(variables: Mapping[str, str] = os.environ) -> Link | None:
    """Return the connection to the main process; None if this is not a worker. Raises ConfigurationError.

    Reads the configuration of the main process from standard input.
    """
    text = variables.get(VARIABLE)
    if text is None:
        return None
    try:
        *numbers, key = text.split(",")
        number, channel, connections, memory = map(int, numbers)
        sockets = socket.socket(fileno=channel), socket.socket(fileno=connections)
        rings = Rings(memory, number)
        os.close(memory)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{VARIABLE} is set, but only epp may set it, for its workers: unset it") from error
    try:
        config = pickle.load(sys.stdin.buffer)  # noqa: S301  of this program
    except EOFError as error:
        for each in sockets:
            each.close()
        raise ConfigurationError("the main process of this worker has ended") from error
    return Link(number, *sockets, rings, key=bytes.fromhex(key), config=config)


def number_of_environment(variables: Mapping[str, str] = os.environ) -> str:
    """Return the number of this worker; empty if this is not a worker."""
    return variables.get(VARIABLE, "").partition(",")[0]
