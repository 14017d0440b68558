# SPDX-License-Identifier: Apache-2.0
"""The side of a worker: how it is told that it is one, and its connection to the main process."""

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
from epp.routing.outliers.record import Told, Verdict
from epp.sharing.channel import Channel, ChannelClosedError, Handler
from epp.sharing.mirror import PoolMirror
from epp.sharing.rings import Rings

VARIABLE: Final = "EPP_WORKER"
"""Environment variable of a worker: its number, its descriptors of channel, connections and rings, and the key."""
_ASK_SECONDS = 10.0


class ConfigInEffect(NamedTuple):
    """The content of the configuration file that the main process uses: the file may have a later, broken version."""

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
        """Prepare; the sockets are ends of pairs, and `key` is the same for all workers."""
        super().__init__(name="main-process")
        self.number = number
        self.key = key
        """Key of the prompt hashes in records of decisions."""
        self.config = config
        """None if the main process follows no file."""
        self.connections = connections
        """Gives accepted connections."""
        self.rings = rings
        """Batches of all processes."""
        self._sock = channel
        self._channel: Channel | None = None
        self.filled = asyncio.Event()
        """Set once the endpoints of the main process are here."""
        self.ended = asyncio.Event()
        """Set when the main process lets this one end, or has ended itself."""
        self._asking: set[asyncio.Task[None]] = set()

    def attach(self, store: Datastore, handlers: Mapping[str, Handler]) -> None:
        """Prepare to fill a datastore, and to call these for further messages of the main process."""
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
        """Tell the main process that this worker, with this id among pickers, takes messages."""
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

    async def follow(self, pool: Pool) -> None:  # noqa: ARG002  likewise
        """Do nothing: messages change the pool."""
        await self.ended.wait()

    def ask(self, endpoint: Endpoint, tell: Told) -> None:
        """Let the main process poll an endpoint urgently, and call `tell` with the verdict."""
        task = asyncio.create_task(self._ask(endpoint, tell))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, endpoint: Endpoint, tell: Told) -> None:
        try:
            verdict = Verdict(await self.channel.call("ask", endpoint.id, most_seconds=_ASK_SECONDS))
        except ChannelClosedError:
            verdict = Verdict.SILENT
        tell(verdict)


def link_of_environment(variables: Mapping[str, str] = os.environ) -> Link | None:
    """Return the connection to the main process; None in a process that is no worker. Raises ConfigurationError.

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
        raise ConfigurationError(f"{VARIABLE} is set, which epp does for its workers alone: unset it") from error
    try:
        config = pickle.load(sys.stdin.buffer)  # noqa: S301  of this program
    except EOFError as error:
        for each in sockets:
            each.close()
        raise ConfigurationError("the main process of this worker has ended") from error
    return Link(number, *sockets, rings, key=bytes.fromhex(key), config=config)


def number_of_environment(variables: Mapping[str, str] = os.environ) -> str:
    """Return the number of this worker; empty in a process that is none."""
    return variables.get(VARIABLE, "").partition(",")[0]
