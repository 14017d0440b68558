# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to the KV events of engines, over ZeroMQ, in a thread of their own."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import wait
from typing import Any, NamedTuple

import msgspec
import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from epp.pool.kv_events.events import Event, decode_events

MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""A prompt of a million tokens, in one message; ZeroMQ ends the connection of an engine that sends a longer one."""
_QUEUED_MESSAGES = 256
"""Messages of one engine that wait; ZeroMQ drops further ones, which shows as a gap."""
_MESSAGES_AT_A_TIME = 32
_MOST_BYTES_AT_A_TIME = 4 * 1024 * 1024
_PAUSE_SECONDS = 0.01
"""Events are collected for so long, so that many are applied at once."""
_POLL_MILLISECONDS = 200
_RECONNECT_MILLISECONDS, _LONGEST_RECONNECT_MILLISECONDS = 100, 5_000
_SEQUENCE_BYTES = 8
_log = structlog.get_logger()


class Received(NamedTuple):
    """What one engine sent."""

    engine: int
    model: str
    events: Sequence[Event]
    is_complete: bool
    """Whether all messages before it were received; if not, the known contents of the engine's cache may be wrong."""


class EventCounts:
    """Counters, written by one thread and read by any."""

    def __init__(self) -> None:
        self.messages = self.malformed = self.gaps = self.restarts = self.disconnections = 0

    def by_result(self) -> Sequence[tuple[str, int]]:
        """Return the messages, and what made the contents of a cache unknown."""
        return (
            ("received", self.messages),
            ("malformed", self.malformed),
            ("after a gap", self.gaps),
            ("after a restart", self.restarts),
            ("connection lost", self.disconnections),
        )


class _Subscription:
    """One engine: its socket, and the number of its last message."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", engine: int, address: str, topic: bytes) -> None:
        self.engine, self.address = engine, address
        self.last: int | None = None
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IPV6, 1)
        self.socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MILLISECONDS)
        self.socket.subscribe(topic)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self.socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class Subscriber:
    """Receives the events of engines, and hands them to the event loop in batches.

    A batch is handed over when the one before has been applied: an event loop that is busy gets fewer, larger batches,
    and messages that ZeroMQ then drops show as gaps.
    """

    def __init__(self, topic: str, apply: Callable[[Sequence[Received]], Coroutine[Any, Any, None]]) -> None:
        """Subscribe to topics that begin with `topic`; call `apply` in the event loop."""
        self._topic = topic.encode()
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self.counts = EventCounts()
        self._orders: deque[tuple[int, str | None]] = deque()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def connect(self, engine: int, address: str) -> None:
        """Subscribe to the events of an engine, under a number of its own."""
        self._orders.append((engine, address))

    def disconnect(self, engine: int) -> None:
        """End the subscription of an engine."""
        self._orders.append((engine, None))

    async def close(self) -> None:
        """End all subscriptions and the thread."""
        self._is_ending = True
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        found: dict[int, _Subscription] = {}
        poller = zmq.Poller()
        try:
            while not self._is_ending:
                self._follow_orders(context, found, poller)
                ready = {socket for socket, _ in poller.poll(_POLL_MILLISECONDS)}
                batch: list[Received] = []
                for subscription in found.values():
                    if subscription.monitor in ready:
                        batch += self._disconnections(subscription)
                    if subscription.socket in ready:
                        batch += self._messages(subscription)
                if batch:
                    self._hand_over(batch)
                    time.sleep(_PAUSE_SECONDS)
        finally:
            for subscription in found.values():
                subscription.close()
            context.destroy(0)

    def _follow_orders(
        self, context: "zmq.Context[zmq.Socket[bytes]]", found: dict[int, _Subscription], poller: zmq.Poller
    ) -> None:
        while self._orders:
            engine, address = self._orders.popleft()
            if (former := found.pop(engine, None)) is not None:
                poller.unregister(former.socket)
                poller.unregister(former.monitor)
                former.close()
            if address is None:
                continue
            try:
                subscription = found[engine] = _Subscription(context, engine, address, self._topic)
            except zmq.ZMQError as error:
                _log.warning("no subscription to KV events", address=address, reason=str(error))
                continue
            poller.register(subscription.socket, zmq.POLLIN)
            poller.register(subscription.monitor, zmq.POLLIN)

    def _disconnections(self, subscription: _Subscription) -> list[Received]:
        """Return that the engine's cache is unknown, for each connection that ended: messages may be lost."""
        ended = 0
        while subscription.monitor.poll(0):
            ended += recv_monitor_message(subscription.monitor)["event"] == zmq.EVENT_DISCONNECTED
        self.counts.disconnections += ended
        subscription.last = None
        return [Received(subscription.engine, "", (), is_complete=False)] if ended else []

    def _messages(self, subscription: _Subscription) -> list[Received]:
        received: list[Received] = []
        size = 0
        while len(received) < _MESSAGES_AT_A_TIME and size < _MOST_BYTES_AT_A_TIME:
            try:
                parts = subscription.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            size += sum(map(len, parts))
            if (message := self._read(subscription, parts)) is not None:
                received.append(message)
        return received

    def _read(self, subscription: _Subscription, parts: Sequence[bytes]) -> Received | None:
        """Return the events of a message; None for one that was received before."""
        self.counts.messages += 1
        match parts:
            case [topic, sequence, payload] if len(sequence) >= _SEQUENCE_BYTES:
                pass
            case _:
                return self._malformed(subscription, "a message does not have the parts topic, sequence and payload")
        number, last = int.from_bytes(sequence[:_SEQUENCE_BYTES], "big"), subscription.last
        if number == last:
            return None
        subscription.last = number
        is_complete = last is None or number == last + 1
        if last is not None and number < last:
            self.counts.restarts += 1
        elif not is_complete:
            self.counts.gaps += 1
        try:
            events = decode_events(payload)
        except msgspec.DecodeError as error:
            return self._malformed(subscription, str(error))
        _, _, model = topic.decode(errors="replace").partition("@")[2].partition("@")
        return Received(subscription.engine, "" if "@" in model else model, events, is_complete)

    def _malformed(self, subscription: _Subscription, reason: str) -> Received:
        """Return that the engine's cache is unknown, as it changed in a way that could not be read."""
        if not self.counts.malformed:
            _log.warning("malformed KV events", address=subscription.address, reason=reason)
        self.counts.malformed += 1
        return Received(subscription.engine, "", (), is_complete=False)

    def _hand_over(self, batch: Sequence[Received]) -> None:
        """Have the event loop apply a batch, and wait until it has."""
        applying = self._apply(batch)
        try:
            applied = asyncio.run_coroutine_threadsafe(applying, self._loop)
        except RuntimeError:  # the loop is closed
            applying.close()
            self._is_ending = True
            return
        while not (self._is_ending or applied.done()):
            wait((applied,), _POLL_MILLISECONDS / 1000)
