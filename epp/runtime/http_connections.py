# SPDX-License-Identifier: Apache-2.0
"""Connections of an HTTP server: how they are accepted, counted and, where there are too many, closed."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import structlog

from epp.runtime.supervisor import NO_DESCRIPTOR

_RETRY_SECONDS: Final = 0.5
"""Time until the next try without a free descriptor."""
_FULL_SECONDS: Final = 0.001
"""Pause after each connection while the limit is reached, so that a flood takes little of the processor."""

Contexts: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
"""Returns the TLS context of a connection that is accepted now."""

_log = structlog.get_logger()


class Cut(StrEnum):
    """Why the server closed a connection or refused a request."""

    MADE_ROOM = "made_room"
    NO_DESCRIPTOR = "no_descriptor"
    REQUEST_TIMEOUT = "request_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    BUSY = "busy"
    TLS = "tls"


class ConnectionCounts:
    """Counts the connections of one port. This base class counts nothing."""

    def opened(self) -> None:
        """Count a connection."""

    def closed(self) -> None:
        """Count its end."""

    def cut(self, cause: Cut) -> None:
        """Count a connection that was closed, or a request that was refused."""


class Closable(Protocol):
    host: str
    busy: bool
    """Whether a request is being answered."""
    since: float
    """When a request last began or ended, or the connection was made; monotonic seconds."""

    def abort(self) -> None:
        """Close the connection at once."""


C = TypeVar("C", bound=Closable)


class OpenConnections(Generic[C]):
    """Open connections by host, busy and idle, in the order of their last change."""

    def __init__(self) -> None:
        self._by_host: dict[str, tuple[dict[C, None], dict[C, None]]] = {}
        """For each host the idle connections, then the busy ones."""
        self.count = 0

    @property
    def all(self) -> list[C]:
        return [each for kinds in self._by_host.values() for kind in kinds for each in kind]

    def add(self, connection: C) -> None:
        """Add a connection that has just changed."""
        self._by_host.setdefault(connection.host, ({}, {}))[connection.busy][connection] = None
        self.count += 1

    def discard(self, connection: C) -> None:
        """Remove a connection, if it is there. Call this before `busy` changes."""
        kinds = self._by_host.get(connection.host)
        if kinds is None or connection not in kinds[connection.busy]:
            return
        del kinds[connection.busy][connection]
        self.count -= 1
        if not any(kinds):
            del self._by_host[connection.host]

    def close_one(self) -> bool:
        """Close the oldest connection of the host with most, idle before busy ones; return whether there was any."""
        if not self._by_host:
            return False
        most = max(sum(map(len, kinds)) for kinds in self._by_host.values())
        greatest = (kinds for kinds in self._by_host.values() if sum(map(len, kinds)) == most)
        oldest = (next(iter(idle or busy)) for idle, busy in greatest)
        found = min(oldest, key=lambda each: (each.busy, each.since))
        self.discard(found)
        found.abort()
        return True


class Accepting:
    """Accepts connections one at a time, so that the limit on their number is exact."""

    def __init__(
        self,
        connections: OpenConnections[C],
        counts: ConnectionCounts,
        *,
        most: int,
        name: str,
        tls: Contexts | None = None,
        handshake_seconds: float = 10.0,
    ) -> None:
        """Prepare. `name` is for log lines; without `tls`, connections are plaintext."""
        self._connections = connections
        self._counts = counts
        self._most = most
        self._name = name
        self._out_of_descriptors = False
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Unfinished TLS handshakes, the oldest first."""

    async def run(
        self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], stop: asyncio.Event
    ) -> None:
        """Accept connections until `stop` is set. By then each accepted connection has its protocol."""
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(stop.wait())
        while not stop.is_set():
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                await _readable(listener, stopping)
            except OSError as error:  # usually the client has left
                out_of_descriptors = error.errno in NO_DESCRIPTOR
                if out_of_descriptors:
                    self._make_room(Cut.NO_DESCRIPTOR)
                    if not self._out_of_descriptors:
                        _log.warning(f"{self._name} out of file descriptors", error=str(error))
                    self._out_of_descriptors = True
                await asyncio.wait({stopping}, timeout=_RETRY_SECONDS if out_of_descriptors else _FULL_SECONDS)
            else:
                await self._serve(client, protocol)
        await stopping
        for handshake in self._handshakes:
            handshake.cancel()

    async def _serve(self, client: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._out_of_descriptors = False
        is_full = self._connections.count >= self._most
        if is_full:
            self._make_room(Cut.MADE_ROOM)
        client.setblocking(False)  # noqa: FBT003  the socket API has it so
        if self._tls is not None:
            self._begin_handshake(client, protocol, self._tls)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, client)
        except OSError:  # the client has left
            client.close()
        if is_full:
            await asyncio.sleep(_FULL_SECONDS)

    def _begin_handshake(
        self, client: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], tls: Contexts
    ) -> None:
        """Start a TLS handshake; cancel the oldest one if there are too many."""
        if len(self._handshakes) >= self._most:
            next(iter(self._handshakes)).cancel()
            self._counts.cut(Cut.MADE_ROOM)
        task = asyncio.get_running_loop().create_task(self._shake_hands(client, protocol, tls))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(
        self, client: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], tls: Contexts
    ) -> None:
        try:
            context = await tls()
        except BaseException:
            client.close()
            raise
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, client, ssl=context, ssl_handshake_timeout=self._handshake_seconds
            )
        except OSError:  # not TLS, no valid client certificate, or the client has left
            self._counts.cut(Cut.TLS)

    def _make_room(self, cause: Cut) -> None:
        if self._connections.close_one():
            self._counts.cut(cause)


async def _readable(listener: socket.socket, stopping: asyncio.Future[Any]) -> None:
    """Wait until a connection can be accepted, or until the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Any] = loop.create_future()
    loop.add_reader(listener, lambda: None if ready.done() else ready.set_result(None))
    try:
        await asyncio.wait({ready, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        with contextlib.suppress(ValueError):  # the listener is closed
            loop.remove_reader(listener)
