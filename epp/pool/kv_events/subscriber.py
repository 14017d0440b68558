# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to the KV events of engines, over ZeroMQ, in a thread of their own."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from typing import Any, NamedTuple, TypeAlias

import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from epp.pool.kv_events.central import CentralSocket, Sender
from epp.pool.kv_events.order import SEQUENCE_BYTES, EngineCounts, EventCounts, EventOrder, Received, message_of

MOST_MESSAGE_BYTES = 1024 * 1024
"""A prompt of 180,000 tokens or more, stored in one step of the engine; ZeroMQ ends the connection of an engine that
sends a longer message. Decoding holds the interpreter lock for 10 ms of CPU time, for 20 ms with unusual extra keys."""
_QUEUED_MESSAGES = 32
"""Messages of one engine that wait here; further ones wait in the engine, which drops some if there are too many."""
_MESSAGES_AT_A_TIME = 32
_MOST_BYTES_AT_A_TIME = 1024 * 1024
_READING_SECONDS = 0.02
"""Time in which messages are decoded before they are handed over; then, there is a pause of the same length."""
MOST_WAITING_MESSAGES = 256
"""Messages of all engines that are handed over at a time."""
_PAUSE_SECONDS = 0.01
"""Events are collected for so long, so that many are applied at once."""
_POLL_MILLISECONDS = 200
_RECONNECT_MILLISECONDS, _LONGEST_RECONNECT_MILLISECONDS = 100, 5_000
_END = b"\xff" * SEQUENCE_BYTES
"""Number of the message that ends a replay."""
_MOST_REPLAYS = 8
_SILENCE_SECONDS = 2.0
"""Time without a message after which an attempt of a replay ends."""
_log = structlog.get_logger()
_Socket: TypeAlias = "zmq.Socket[bytes]"
_Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


class Addresses(NamedTuple):
    """The sockets of one engine."""

    events: str
    replay: str = ""
    """Empty if the engine does not repeat events."""


def _limit(socket: _Socket) -> None:
    """Bound the memory of a socket, and find out when a peer has vanished."""
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IPV6, 1),
        (zmq.RCVHWM, _QUEUED_MESSAGES),
        (zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 30),
        (zmq.TCP_KEEPALIVE_INTVL, 10),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS),
        (zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MILLISECONDS),
    ):
        socket.setsockopt(option, value)


class _Subscription:
    """One engine: its sockets, and the order of its messages."""

    def __init__(self, context: _Context, addresses: Addresses, topic: bytes, order: EventOrder) -> None:
        self._context, self._addresses = context, addresses
        self.order = order
        self.replaying: _Socket | None = None
        self.heard = 0.0
        """Time of the last message of the replay."""
        self.socket: _Socket = context.socket(zmq.SUB)
        _limit(self.socket)
        self.socket.subscribe(topic)
        self.monitor: _Socket = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            self.socket.connect(addresses.events)
        except zmq.ZMQError:
            self.close()
            raise

    @property
    def sockets(self) -> Iterator[_Socket]:
        """The sockets that are read now: live messages wait for the end of a replay."""
        yield self.monitor
        if self.order.replay is None:
            yield self.socket
        elif self.replaying is not None:
            yield self.replaying

    def ask(self, now: float) -> None:
        """Begin an attempt of a replay."""
        self.heard = now
        self.replaying = self._context.socket(zmq.DEALER)
        _limit(self.replaying)
        start = self.order.attempt(now)
        try:
            self.replaying.connect(self._addresses.replay)
            self.replaying.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.order.own.errors["replay-connect"] += 1

    def end_attempt(self) -> None:
        """Close the socket of a replay."""
        if self.replaying is not None:
            self.replaying.close(0)
            self.replaying = None

    def close(self) -> None:
        self.end_attempt()
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class Subscriber:
    """Receives the events of engines, and hands them to the event loop in batches.

    A batch is handed over when the one before has been applied: an event loop that is busy gets fewer, larger batches,
    and messages that engines then drop show as gaps.
    """

    def __init__(
        self,
        topic: str,
        apply: Callable[[Sequence[Received]], Coroutine[Any, Any, None]],
        counts: EventCounts,
        *,
        listen: str = "",
    ) -> None:
        """Subscribe to topics that begin with `topic`; call `apply` in the event loop.

        Engines may connect to the address `listen`; empty for none.
        """
        self._topic = topic.encode()
        self._listen = listen
        self.central: CentralSocket | None = None
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self.counts = counts
        self.waiting = 0
        """Messages that are handed over, and not applied yet."""
        self._found: dict[int, _Subscription] = {}
        self._read_seconds = 0.0
        self._ended: list[Received] = []
        """Subscriptions that were replaced."""
        self._orders: deque[Callable[[_Context], None]] = deque()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def connect(self, engine: int, addresses: Addresses, counts: EngineCounts) -> None:
        """Subscribe to the events of an engine, under a number of its own; a former subscription of it ends."""

        def follow(context: _Context) -> None:
            if (former := self._found.pop(engine, None)) is not None:
                counts.is_connected = False
                self._ended.append(former.order.disconnected())
                former.close()
            order = EventOrder(engine, addresses.events, self.counts, counts, can_replay=bool(addresses.replay))
            try:
                self._found[engine] = _Subscription(context, addresses, self._topic, order)
            except zmq.ZMQError as error:
                counts.errors["connect"] += 1
                _log.warning("no subscription to KV events", address=addresses.events, reason=str(error))

        self._orders.append(follow)

    def admit(self, sender: Sender) -> None:
        """Believe an engine that connects."""

        def follow(_context: _Context) -> None:
            if self.central is not None:
                self.central.admit(sender)

        self._orders.append(follow)

    def disconnect(self, engine: int) -> None:
        """End the subscription of an engine, and do not believe it when it connects."""

        def follow(_context: _Context) -> None:
            if self.central is not None:
                self.central.dismiss(engine)
            if (former := self._found.pop(engine, None)) is not None:
                former.close()

        self._orders.append(follow)

    async def close(self) -> None:
        """End all subscriptions and the thread."""
        self._is_ending = True
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        context: _Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 65_535)
        try:
            if self._listen:
                self.central = CentralSocket(context, self._listen, self._topic, _limit)
            while not self._is_ending:
                while self._orders:
                    self._orders.popleft()(context)
                if self.central is not None:
                    self.central.listen(time.monotonic())
                if batch := self._receive():
                    self._hand_over(batch)
                    time.sleep(max(_PAUSE_SECONDS, self._read_seconds))
        finally:
            for subscription in self._found.values():
                subscription.close()
            if self.central is not None:
                self.central.close()
            context.destroy(0)

    def _receive(self) -> list[Received]:
        """Return what engines have sent, those first that were not read last time."""
        poller = zmq.Poller()
        for subscription in self._found.values():
            for socket in subscription.sockets:
                poller.register(socket, zmq.POLLIN)
        if self.central is not None:
            poller.register(self.central.socket, zmq.POLLIN)
            poller.register(self.central.monitor, zmq.POLLIN)
        ready = {socket for socket, _ in poller.poll(_POLL_MILLISECONDS)}
        started = time.monotonic()
        batch, self._ended = self._ended, []
        if self.central is not None:
            batch += self._from_central(self.central)
        for engine, subscription in tuple(self._found.items()):
            if len(batch) >= MOST_WAITING_MESSAGES or time.monotonic() - started >= _READING_SECONDS:
                break
            self._found[engine] = self._found.pop(engine)
            if subscription.monitor in ready:
                batch += self._connections(subscription)
            if subscription.order.replay is not None:
                batch += self._replayed(subscription, ready)
            elif subscription.socket in ready:
                batch += self._messages(subscription)
        self._read_seconds = time.monotonic() - started
        return batch

    def _connections(self, subscription: _Subscription) -> list[Received]:
        """Return that the engine's cache is unknown, for a connection that ended: messages may be lost."""
        found: list[Received] = []
        while subscription.monitor.poll(0):
            subscription.end_attempt()
            ended = recv_monitor_message(subscription.monitor)["event"] == zmq.EVENT_DISCONNECTED
            subscription.order.own.is_connected = not ended
            if ended:
                _discard(subscription.socket)
                found.append(subscription.order.disconnected())
                continue
            subscription.order.connected(time.monotonic())
            if self.central is not None and (other := self.central.orders.pop(subscription.order.engine, None)):
                found.append(other.disconnected())
        return found

    def _from_central(self, central: CentralSocket) -> list[Received]:
        """Return what engines that connected have sent; not if they are subscribed to as well."""
        found: list[Received] = []
        for number, frames in enumerate(_frames(central.socket), 1):
            found += central.message(frames, self.counts, time.monotonic(), self._is_connected)
            if number == _MESSAGES_AT_A_TIME:
                return found  # the messages of connections that ended are read first
        return found + central.connections()

    def _is_connected(self, engine: int) -> bool:
        return engine in self._found and self._found[engine].order.own.is_connected

    def _messages(self, subscription: _Subscription) -> list[Received]:
        found: list[Received] = []
        for parts in _parts(subscription.socket):
            found += subscription.order.published(parts, time.monotonic())
            if subscription.order.replay is not None:
                break
        return found

    def _replayed(self, subscription: _Subscription, ready: set[Any]) -> list[Received]:
        """Begin, continue or end an attempt of a replay; return the changes."""
        order, now = subscription.order, time.monotonic()
        assert order.replay is not None  # noqa: S101  the caller looks
        if subscription.replaying is None:
            if now < order.replay.due:
                return []
            if sum(each.replaying is not None for each in self._found.values()) < _MOST_REPLAYS:
                subscription.ask(now)
            return []
        found: list[Received] = []
        if subscription.replaying in ready:
            subscription.heard = now
            for parts in _parts(subscription.replaying):
                if parts[-1] == b"" or parts[-2:-1] == [_END]:
                    subscription.end_attempt()
                    return found + order.reply_ended(now)
                topic = parts[-3:-2] or [b""]  # older versions of vLLM repeat a message without it
                if (message := message_of([*topic, *parts[-2:]])) is not None:
                    found += order.replayed(message)
                else:
                    order.own.errors["replay-incomplete"] += 1
                    order.break_off()
        if now - subscription.heard >= _SILENCE_SECONDS or now >= order.replay.until:
            subscription.end_attempt()
            found += order.attempt_ended(now)
        return found

    def _hand_over(self, batch: Sequence[Received]) -> None:
        """Have the event loop apply a batch, and wait until it has."""
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


def _frames(socket: _Socket) -> Iterator[list[zmq.Frame]]:
    """Yield messages that are there, up to the limits."""
    size = 0
    for _ in range(_MESSAGES_AT_A_TIME):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        yield frames
        size += sum(map(len, frames))
        if size >= _MOST_BYTES_AT_A_TIME:
            return


def _parts(socket: _Socket) -> Iterator[list[bytes]]:
    for frames in _frames(socket):
        yield [frame.bytes for frame in frames]


def _discard(socket: _Socket) -> None:
    """Drop the messages of a connection that ended, so that they are not taken for those of the next one."""
    for _ in range(2 * _QUEUED_MESSAGES):
        if not any(True for _ in _parts(socket)):
            return
