# SPDX-License-Identifier: Apache-2.0
"""One socket that the engines of a pool connect to; a message belongs to the endpoint that its topic names."""

import ipaddress
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.pool.kv_events.events import rank_in
from epp.pool.kv_events.order import EngineCounts, EventCounts, EventOrder, Received
from epp.pool.kv_events.sockets import Context, Replays, Socket, limited

MOST_RANKS = 64
"""Most ports on which the picker listens, one for each data-parallel rank of a pod."""
_LAST_PORT = 65_535
_MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Most bytes of messages that wait for the end of a replay; further messages are dropped, which causes a gap."""
_BIND_SECONDS = 1.0
"""Time between two attempts to listen."""
_MOST_LOGGED = 10
_PARTS = 3
_REMEDY = "free the port, or choose another one for zmqEndpoint; the picker tries again every second"
_log = structlog.get_logger()


class Sender(NamedTuple):
    """An endpoint whose messages are accepted."""

    engine: int
    names: frozenset[str]
    """Names of the endpoint in topics."""
    host: str
    """IP address from which it connects."""
    counts: EngineCounts
    pod: str = ""
    rank: int = 0
    """Index among the endpoints of its pod."""
    replay: str = ""
    """Address at which it repeats messages; empty if it does not."""


class _Connected(NamedTuple):
    order: EventOrder
    replays: Replays
    waiting: deque[list[bytes]]
    """Messages that wait for the end of a replay."""


class CentralSocket:
    """A SUB socket that listens on the port of the address, and on the next ports for data-parallel ranks of pods.

    A message is accepted if the endpoint that its topic names is in the pool, and if it comes from the address of this
    endpoint. Without encryption, nothing else can be checked. Ranks of a pod may share the topic of the first rank.
    """

    def __init__(self, context: Context, address: str, topic: bytes) -> None:
        self.problem = ""
        """Reason that it does not listen; empty if it listens."""
        self.engines: dict[int, _Connected] = {}
        self._waiting_bytes = 0
        self._context, self._address = context, address
        self._ports, self._bound = 0, 0
        """Number of ports to listen on, and of those bound. Without endpoints, all senders would be unknown."""
        self._ranks: dict[tuple[str, int, str], Sender] = {}
        """Keyed by pod, rank and address."""
        self._senders: dict[tuple[str, str], Sender] = {}
        """Keyed by name and address."""
        self._hosts: dict[int, str] = {}
        """Address of each connection, by its file descriptor; empty for unknown."""
        self._due = 0.0
        self.socket = limited(context, zmq.SUB)
        self.socket.subscribe(topic)
        self._monitor: Socket = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def admit(self, sender: Sender) -> None:
        self.forget(sender.engine)  # its ports may have changed
        host = _canonical(sender.host)
        self._senders |= {(name, host): sender for name in sender.names}
        self._ranks[sender.pod, sender.rank, host] = sender
        ports = min(sender.rank + 1, MOST_RANKS, _LAST_PORT + 1 - int(self._address.rpartition(":")[2]))
        if ports > self._ports:
            self._ports, self._due = ports, 0.0

    def dismiss(self, engine: int) -> None:
        self._senders = {key: each for key, each in self._senders.items() if each.engine != engine}
        self._ranks = {key: each for key, each in self._ranks.items() if each.engine != engine}
        self.forget(engine)

    def forget(self, engine: int) -> list[Received]:
        """Return the change to an unknown cache, if the endpoint has sent messages."""
        changes = self._disconnected(engine)
        self.engines.pop(engine, None)
        return changes

    def _disconnected(self, engine: int) -> list[Received]:
        found = self.engines.get(engine)
        if found is None:
            return []
        found.replays.end_attempt()
        self._waiting_bytes -= sum(len(part) for parts in found.waiting for part in parts)
        found.waiting.clear()
        return [found.order.disconnected()]

    @property
    def sockets(self) -> Iterator[Socket]:
        yield self.socket
        yield self._monitor
        for each in self.engines.values():
            if each.replays.socket is not None:
                yield each.replays.socket

    def dial(self, now: float) -> None:
        """Try to listen, if an attempt is due."""
        if now < self._due:
            return
        self._due = now + _BIND_SECONDS
        host, _, first = self._address.rpartition(":")
        problem = ""
        try:
            while self._bound < self._ports:
                self.socket.bind(address := f"{host}:{int(first) + self._bound}")
                self._bound += 1
            self._due = float("inf")
        except zmq.ZMQError as error:
            problem = f"cannot listen on {address}: {os.strerror(error.errno or 0)}; {_REMEDY}"
        if problem and problem != self.problem:
            _log.error("no KV events of engines that connect", reason=problem)
        self.problem = problem

    def message(
        self, frames: Sequence[Any], counts: EventCounts, now: float, ignored: Callable[[int], bool]
    ) -> list[Received]:
        """Return the changes by a message; none for endpoints that are `ignored`, since they are subscribed to."""
        topic = frames[0].bytes.decode(errors="replace")
        parts = topic.split("@")
        name = parts[1] if len(parts) == _PARTS else topic
        host = _canonical(frames[0].get("Peer-Address"))
        sender = self._senders.get((name, host))
        if sender is None:
            counts.unknown_senders += 1
            if counts.unknown_senders <= _MOST_LOGGED:
                _log.warning("KV events of an unknown sender", name=name[:100], address=host)
            return []
        message = [frame.bytes for frame in frames]
        if sender.rank == 0 and (rank := rank_in(message[-1])):
            sender = self._ranks.get((sender.pod, rank, host), sender)
        if ignored(sender.engine):
            return []
        engine = self.engines.get(sender.engine)
        if engine is None:
            order = EventOrder(sender.engine, name, counts, sender.counts, can_replay=bool(sender.replay))
            engine = _Connected(order, Replays(self._context, sender.replay, order), deque())
            self.engines[sender.engine] = engine
        if engine.order.replay is None and not engine.waiting:
            return engine.order.published(message, now)
        size = sum(map(len, message))
        if self._waiting_bytes + size <= _MOST_WAITING_BYTES:
            self._waiting_bytes += size
            engine.waiting.append(message)
        return []

    def resume(self, ready: Container[object], may_begin: Callable[[], bool], until: float) -> list[Received]:
        """Return the changes by replays, and by the messages that waited for the end of one."""
        found: list[Received] = []
        for each in self.engines.values():
            if each.order.replay is not None:
                found += each.replays.resume(ready, may_begin)
            while each.waiting and each.order.replay is None and time.monotonic() < until:
                message = each.waiting.popleft()
                self._waiting_bytes -= sum(map(len, message))
                found += each.order.published(message, time.monotonic())
            if time.monotonic() >= until:
                break
        return found

    def connections(self) -> list[Received]:
        """Return a change to an unknown cache for each ended connection; call this after reading all messages."""
        found: list[Received] = []
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._hosts[event["value"]] = _peer_of(event["value"])
                continue
            host = self._hosts.pop(event["value"], "")
            connected = set(self._hosts.values())
            for sender in {each.engine: each for each in self._senders.values()}.values():
                of_sender = _canonical(sender.host)
                has_ended = of_sender == host if host else of_sender not in connected
                if has_ended:
                    found += self._disconnected(sender.engine)
        return found

    def close(self) -> None:
        for each in self.engines.values():
            each.replays.end_attempt()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)


@lru_cache(1024)
def _canonical(host: str) -> str:
    """Return an IP address in its shortest form; an IPv4-mapped address as IPv4."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _peer_of(descriptor: int) -> str:
    """Return the address of the other end of a connection; empty if it has ended."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return _canonical(connection.getpeername()[0])
    except OSError:
        return ""
