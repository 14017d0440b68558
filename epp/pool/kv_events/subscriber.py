# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to the KV events of engines over ZeroMQ, in a separate thread; the ports of the events."""

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from epp.framework.datalayer import NotAskedError, PageError, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.limits import AbsolutePath
from epp.pool.collectors.sources.http import HttpSource, HttpSourceParameters
from epp.pool.discovery.pods import KV_PORTS
from epp.pool.kv_events.central import CentralSocket, Sender
from epp.pool.kv_events.order import EngineCounts, EventCounts, EventOrder, Received
from epp.pool.kv_events.sockets import (
    MESSAGES_AT_A_TIME,
    Context,
    Curve,
    Replays,
    Socket,
    discard,
    frames_of,
    limited,
    parts_of,
)

_READING_SECONDS = 0.02
"""Time for which messages are decoded before they are handed over; a pause of the same length follows."""
MOST_WAITING_MESSAGES = 256
"""Most messages of all engines that are handed over at a time."""
_PAUSE_SECONDS = 0.01
"""Least pause between two batches, in which events are collected."""
_POLL_MILLISECONDS = 200
_REDIAL_SECONDS = 5.0
"""Time without a connection after which the picker connects again: after a message that is too long, or a failed
handshake, ZeroMQ does not reconnect."""
_MOST_REPLAYS = 8
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_log = structlog.get_logger()


class Addresses(NamedTuple):
    events: str
    replay: str = ""
    """Empty if the engine does not repeat events."""


class _Subscription:
    """One engine: its sockets, and the order of its messages."""

    def __init__(
        self, context: Context, addresses: Addresses, topic: bytes, order: EventOrder, curve: Curve | None
    ) -> None:
        self._address = addresses.events
        self._dialled_at = time.monotonic()
        self.order = order
        self.replays = Replays(context, addresses.replay, order, curve)
        self.socket = limited(context, zmq.SUB, curve)
        self.socket.subscribe(topic)
        self.monitor: Socket = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED
        )
        try:
            self.socket.connect(addresses.events)
        except zmq.ZMQError:
            self.close()
            raise

    @property
    def sockets(self) -> Iterator[Socket]:
        """Sockets that are read now: live messages wait for the end of a replay."""
        yield self.monitor
        if self.order.replay is None:
            yield self.socket
        elif self.replays.socket is not None:
            yield self.replays.socket

    def dial(self, now: float) -> None:
        """Connect again if there has been no connection for some time."""
        if self.order.own.is_connected:
            self._dialled_at = now
        elif now - self._dialled_at >= _REDIAL_SECONDS and not self.monitor.poll(0):
            self._dialled_at = now
            with suppress(zmq.ZMQError):  # ZeroMQ has closed the connection already
                self.socket.disconnect(self._address)
            with suppress(zmq.ZMQError):  # tried again later
                self.socket.connect(self._address)

    def close(self) -> None:
        self.replays.end_attempt()
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class Subscriber:
    """Receives the events of engines, and hands them to the event loop in batches.

    A batch is handed over when the previous one has been applied: a busy event loop gets fewer, larger batches, and
    messages that engines drop meanwhile are detected as gaps.
    """

    def __init__(
        self,
        topic: str,
        apply: Callable[[Sequence[Received]], Coroutine[Any, Any, None]],
        counts: EventCounts,
        *,
        listen: str = "",
        curve: Curve | None = None,
    ) -> None:
        """Subscribe to topics that begin with `topic`; call `apply` in the event loop.

        Engines may connect to the address `listen`, if it is not empty. `curve` encrypts connections to engines.
        """
        self._curve = curve
        self._topic = topic.encode()
        self._listen = listen
        self.central: CentralSocket | None = None
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self.counts = counts
        self.waiting = 0
        """Number of messages that are handed over, but not applied yet."""
        self._found: dict[int, _Subscription] = {}
        self._read_seconds = 0.0
        self._ended: list[Received] = []
        """Changes by the end of replaced subscriptions."""
        self._commands: deque[Callable[[Context], None]] = deque()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def connect(self, engine: int, addresses: Addresses, counts: EngineCounts) -> None:
        """Subscribe to the events of an engine under a unique number; its former subscription ends."""

        def run(context: Context) -> None:
            if (former := self._found.pop(engine, None)) is not None:
                counts.is_connected = False
                self._ended.append(former.order.disconnected())
                former.close()
            order = EventOrder(engine, addresses.events, self.counts, counts, can_replay=bool(addresses.replay))
            try:
                self._found[engine] = _Subscription(context, addresses, self._topic, order, self._curve)
            except zmq.ZMQError as error:
                counts.errors["connect"] += 1
                _log.warning("no subscription to KV events", address=addresses.events, reason=str(error))

        self._commands.append(run)

    def admit(self, sender: Sender) -> None:
        self._commands.append(lambda _: None if self.central is None else self.central.admit(sender))

    def disconnect(self, engine: int) -> None:
        """End the subscription of an engine, and ignore its messages if it connects."""

        def run(_context: Context) -> None:
            if self.central is not None:
                self.central.dismiss(engine)
            if (former := self._found.pop(engine, None)) is not None:
                former.close()

        self._commands.append(run)

    async def close(self) -> None:
        self._is_ending = True
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 65_535)
        try:
            if self._listen:
                self.central = CentralSocket(context, self._listen, self._topic)
            while not self._is_ending:
                while self._commands:
                    self._commands.popleft()(context)
                if batch := self._receive():
                    self._hand_over(batch)
                    time.sleep(max(_PAUSE_SECONDS, self._read_seconds))
        finally:
            for each in self._ends:
                each.close()
            context.destroy(0)

    @property
    def _ends(self) -> "Sequence[_Subscription | CentralSocket]":
        return (*self._found.values(), *(() if self.central is None else (self.central,)))

    def _receive(self) -> list[Received]:
        """Return the changes by messages that have arrived, beginning with engines that were not read last time."""
        poller = zmq.Poller()
        for each in self._ends:
            each.dial(time.monotonic())
            for socket in each.sockets:
                poller.register(socket, zmq.POLLIN)
        ready = {socket for socket, _ in poller.poll(_POLL_MILLISECONDS)}
        started = time.monotonic()
        batch, self._ended = self._ended, []
        if self.central is not None:
            batch += self._from_central(self.central)
            batch += self.central.resume(ready, self._may_begin_replay, started + _READING_SECONDS)
        for engine, subscription in tuple(self._found.items()):
            if len(batch) >= MOST_WAITING_MESSAGES or time.monotonic() - started >= _READING_SECONDS:
                break
            self._found[engine] = self._found.pop(engine)
            if subscription.monitor in ready:
                batch += self._connections(subscription)
            if subscription.order.replay is not None:
                batch += subscription.replays.resume(ready, self._may_begin_replay)
            elif subscription.socket in ready:
                batch += self._messages(subscription)
        self._read_seconds = time.monotonic() - started
        return batch

    def _connections(self, subscription: _Subscription) -> list[Received]:
        """Return a change to an unknown cache for each ended connection: messages may be lost."""
        order, found = subscription.order, list[Received]()
        while subscription.monitor.poll(0):
            event = recv_monitor_message(subscription.monitor)["event"]
            if event & _HANDSHAKE_FAILED:
                order.own.errors["handshake"] += 1
                continue
            subscription.replays.end_attempt()
            order.own.is_connected = event != zmq.EVENT_DISCONNECTED
            if not order.own.is_connected:
                discard(subscription.socket)
                found.append(order.disconnected())
                continue
            order.connected(time.monotonic())
            if self.central is not None:
                found += self.central.forget(order.engine)
        return found

    def _from_central(self, central: CentralSocket) -> list[Received]:
        """Return the changes by messages of engines that connected, except those that are subscribed to."""
        found: list[Received] = []
        for number, frames in enumerate(frames_of(central.socket), 1):
            found += central.message(frames, self.counts, time.monotonic(), self._is_connected)
            if number == MESSAGES_AT_A_TIME:
                return found  # further messages are read before the ends of connections
        return found + central.connections()

    def _is_connected(self, engine: int) -> bool:
        return engine in self._found and self._found[engine].order.own.is_connected

    def _messages(self, subscription: _Subscription) -> list[Received]:
        found: list[Received] = []
        for parts in parts_of(subscription.socket):
            found += subscription.order.published(parts, time.monotonic())
            if subscription.order.replay is not None:
                break
        return found

    def _may_begin_replay(self) -> bool:
        connected = () if self.central is None else self.central.engines.values()
        replays = (each.replays for each in (*self._found.values(), *connected))
        return sum(each.socket is not None for each in replays) < _MOST_REPLAYS

    def _hand_over(self, batch: Sequence[Received]) -> None:
        """Let the event loop apply a batch, and wait until it has done so."""
        applying = self._apply(batch)
        try:
            applied = asyncio.run_coroutine_threadsafe(applying, self._loop)
        except RuntimeError:  # the loop is closed
            applying.close()
            self._is_ending = True
            return
        self.waiting = len(batch)
        while not (self._is_ending or applied.done()):
            wait((applied,), _POLL_MILLISECONDS / 1000)
        self.waiting = 0


_RANK = re.compile(r"-rank-(\d+)$")
_PORT = re.compile(r"tcp://.*:(\d{1,5})")
_NUMBER = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65_535


class Ports(NamedTuple):
    """Ports of one rank of an engine."""

    events: int
    replay: int = 0
    """0 if the engine does not repeat events."""

    def addresses_at(self, endpoint: Endpoint) -> Addresses:
        """Return the addresses of these ports at the endpoint."""
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        return Addresses(f"tcp://{host}:{self.events}", f"tcp://{host}:{self.replay}" if self.replay else "")


def rank_of(endpoint: Endpoint) -> int:
    """Return the index of the endpoint in its pod."""
    found = _RANK.search(endpoint.name)
    return int(found[1]) if found else 0


def labelled_ports(endpoint: Endpoint, default: Ports) -> Ports:
    """Return the ports in the labels of an endpoint, by default `default`; raises ValueError."""
    rank, ports = rank_of(endpoint), list(default)
    for index, (label, lowest) in enumerate(zip(KV_PORTS, (1, 0), strict=True)):
        if (text := endpoint.labels.get(label)) is not None:
            if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= _LAST_PORT - rank:
                raise ValueError(f"{label} is {text[:100]!r}; write a port from {lowest} to {_LAST_PORT - rank}")
            ports[index] = int(text) and int(text) + rank
    return Ports(*ports)


class _Source(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    data_parallel_rank: int | None = None


_decode = msgspec.json.Decoder(dict[str, _Source] | list[_Source]).decode


def read_ports(page: bytes, rank: int) -> Ports:
    """Return the ports of a rank in an answer of `/kv_event_sources`; raises ValueError if the rank is missing.

    vLLM 0.32 returns an object by rank, later versions return a list. Hosts in the answer are ignored, so that model
    servers cannot direct the picker to another host.
    """
    answer = _decode(page)
    by_rank = answer if isinstance(answer, dict) else {str(each.data_parallel_rank or 0): each for each in answer}
    source = by_rank.get(str(rank)) or (next(iter(by_rank.values())) if len(by_rank) == 1 else None)
    if source is None:
        raise ValueError(f"the answer has no events of rank {rank}")
    return Ports(_port_in(source.endpoint), _port_in(source.replay_endpoint) if source.replay_endpoint else 0)


def _port_in(address: str) -> int:
    found = _PORT.fullmatch(address)
    if found is None or not 0 < int(found[1]) <= _LAST_PORT:
        raise ValueError(f"{address[:100]!r} is not an address with a TCP port")
    return int(found[1])


class _Parameters(HttpSourceParameters, frozen=True):
    path: AbsolutePath = "/kv_event_sources"


class EventSources(HttpSource[_Parameters]):
    """Requests the ports of events from a model server."""

    plugin_type = "kv-event-sources"
    accept = "application/json"
    most_bytes = 256 * 1024

    async def ports_of(self, endpoint: Endpoint) -> Ports | str:
        """Return the ports, or the reason that they are unknown."""
        try:
            return read_ports(await self.fetch(endpoint), rank_of(endpoint))
        except (UnreachableError, PageError, NotAskedError, msgspec.DecodeError, ValueError) as error:
            return str(error)
