# SPDX-License-Identifier: Apache-2.0
"""One socket that the engines of a pool connect to; a message belongs to the endpoint that its topic names."""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.pool.kv_events.order import EngineCounts, EventCounts, EventOrder, Received

_BIND_SECONDS = 1.0
"""Time between two attempts to listen."""
_MOST_LOGGED = 10
_PARTS = 3
_REMEDY = "free the port, or choose another one for zmqEndpoint; the picker tries again every second"
_log = structlog.get_logger()
_Socket: TypeAlias = "zmq.Socket[bytes]"


class Sender(NamedTuple):
    """An endpoint whose messages are believed."""

    engine: int
    names: frozenset[str]
    """Names in topics."""
    host: str
    """IP address from which it connects."""
    counts: EngineCounts


class CentralSocket:
    """A SUB socket that listens.

    A message is believed if the endpoint that its topic names is in the pool, and if it comes from the address of this
    endpoint. Without encryption, that is all that can be checked.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, topic: bytes, limit: Callable[[_Socket], None]
    ) -> None:
        """Prepare to listen; `limit` sets the options of the socket."""
        self.problem = ""
        """Why it does not listen; empty if it does."""
        self.orders: dict[int, EventOrder] = {}
        """Of endpoints that sent something."""
        self._address = address
        self._senders: dict[tuple[str, str], Sender] = {}
        """By name and address."""
        self._hosts: dict[int, str] = {}
        """Address of each connection, by its file descriptor; empty for unknown."""
        self._due = 0.0
        self.socket: _Socket = context.socket(zmq.SUB)
        limit(self.socket)
        self.socket.subscribe(topic)
        self.monitor: _Socket = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def admit(self, sender: Sender) -> None:
        """Believe an endpoint of the pool."""
        self._senders |= {(name, _canonical(sender.host)): sender for name in sender.names}

    def dismiss(self, engine: int) -> None:
        """Do not believe an endpoint that left the pool."""
        self._senders = {key: each for key, each in self._senders.items() if each.engine != engine}
        self.orders.pop(engine, None)

    def listen(self, now: float) -> None:
        """Try to listen, if it is time."""
        if now < self._due:
            return
        self._due = now + _BIND_SECONDS
        try:
            self.socket.bind(self._address)
            self._due, problem = float("inf"), ""
        except zmq.ZMQError as error:
            problem = f"cannot listen on {self._address}: {os.strerror(error.errno or 0)}; {_REMEDY}"
        if problem and problem != self.problem:
            _log.error("no KV events of engines that connect", reason=problem)
        self.problem = problem

    def message(
        self, frames: Sequence[Any], counts: EventCounts, now: float, ignored: Callable[[int], bool]
    ) -> list[Received]:
        """Return the changes by a message; none of an endpoint that is `ignored`, as it is subscribed to otherwise."""
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
        if ignored(sender.engine):
            return []
        order = self.orders.get(sender.engine)
        if order is None:
            order = self.orders[sender.engine] = EventOrder(sender.engine, name, counts, sender.counts)
        return order.published([frame.bytes for frame in frames], now)

    def connections(self) -> list[Received]:
        """Return that caches are unknown, for each connection that ended; call it when all messages are read."""
        found: list[Received] = []
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._hosts[event["value"]] = _peer_of(event["value"])
                continue
            host = self._hosts.pop(event["value"], "")
            connected = set(self._hosts.values())
            for sender in {each.engine: each for each in self._senders.values()}.values():
                of_sender = _canonical(sender.host)
                has_ended = of_sender == host if host else of_sender not in connected
                if has_ended and sender.engine in self.orders:
                    found.append(self.orders[sender.engine].disconnected())
        return found

    def close(self) -> None:
        """Stop listening."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


@lru_cache(1024)
def _canonical(host: str) -> str:
    """Return an IP address in its shortest form; IPv4 as such."""
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
