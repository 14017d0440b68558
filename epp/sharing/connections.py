# SPDX-License-Identifier: Apache-2.0
"""Connections of gateways: the main process accepts each one and passes it to a worker, which adopts it."""

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import structlog

from epp.extproc.http2.limits import Budget, Rate
from epp.extproc.http2.protocol import GrpcProtocol
from epp.extproc.http2.server import GrpcServer, accepted
from epp.extproc.open_streams import OpenStreams
from epp.runtime.supervisor import first_of

_RETRY_SECONDS: Final = 0.02
_MEASURE_SECONDS: Final = 0.1
"""Time between two measurements of a worker's load; the worker reports changes."""
_FEW_CONNECTIONS: Final = 256
"""Number of connections above which the load is measured less often."""
_REPORT_SECONDS: Final = 1.0
"""Longest time between two reports."""
_PAUSE_SECONDS: Final = 1.0
_YOUNG_SECONDS: Final = 1.0
"""Age up to which a connection without a call counts: a gateway opens a connection for a request that waits."""
_SMOOTHING_SECONDS: Final = 5.0
_MOST_RATES: Final = 32
_RELEASE_SECONDS: Final = 2.0
"""Time between two releases: by then, the gateway has connected again, and the new connection has a rate."""
_RELEASES: Final = Rate(32, 0.2)
"""Burst and rate per second of releases: a client with changing rates cannot move connections for ever."""
_UNEVEN_RATIO, _UNEVEN_RATE = 1.5, 50.0
"""Two workers are uneven if their calls per second differ by at least this factor and this number."""
_EVEN_RATIO, _EVEN_RATE = 1.25, 25.0
"""Two workers are even if their calls per second differ by less than this factor or this number.

Workers that are neither even nor uneven do not exchange connections because of their rates.
"""
_MOST_REMAINING: Final = 0.75
"""Largest share of the difference in rates that may remain after a move, unless the workers are even then."""

_log = structlog.get_logger()


class Load(NamedTuple):
    """Connections and calls of a worker.

    A connection is working from its first call other than a health check until it is released.
    """

    received: int = 0
    """Connections received since the start of the worker."""
    connections: int = 0
    """Working connections, and young ones without a call."""
    working: int = 0
    streams: int = 0
    """Open streams of all connections."""
    begun: int = 0
    """Calls since the start, except health checks."""
    rate: float = 0.0
    """Calls per second of the working connections, smoothed over 5 s."""
    rates: tuple[float, ...] = ()
    """Rates of the working connections, in ascending order; a sample if there are many."""


@dataclass(slots=True)
class _Worker:
    number: int
    sock: socket.socket
    reported_at: float
    passed: int = 0
    load: Load = field(default_factory=Load)

    @property
    def connections(self) -> int:
        """Number of its connections, including passed ones that it has not reported yet."""
        return self.load.connections + self.passed - self.load.received

    def hangs(self, now: float) -> bool:
        return now - self.reported_at >= 2 * _REPORT_SECONDS


class _Move(NamedTuple):
    rank: tuple[float, int, float]
    """Gain in evenness if the rates are uneven; surplus of connections; minus the difference that remains."""
    source: int
    target: int
    rate: float


class Connections:
    """Accepts connections in the main process, and passes each one to the worker with the fewest connections.

    While no worker takes connections, they wait in the backlog of the listening socket. A gateway keeps its
    connections, so a worker with too many must release one: the gateway then opens another.
    """

    def __init__(self, release: Callable[[int, float], None], clock: Callable[[], float]) -> None:
        """Prepare; `release` makes a worker release the connection whose rate is closest to the given one."""
        self.streams = OpenStreams()
        """Open streams of all workers."""
        self._release = release
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._rebalance_at = clock() + _RELEASE_SECONDS
        self._releases = Budget(_RELEASES, "releases")
        self._reserved_for = 0
        """Number of the worker that gets the connection that replaces a released one."""
        self._reserved_until = -math.inf
        self._sock: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        self._sock = sock
        self._accepting = asyncio.create_task(self._accept(sock))

    async def stop(self, grace_seconds: float) -> None:  # noqa: ARG002  workers end the streams
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._sock is not None:
            self._sock.close()

    def add(self, worker: int, sock: socket.socket) -> None:
        """Pass connections to this worker too, through a SOCK_SEQPACKET socket, which the caller closes.

        Call this once the worker serves: gateways do not wait long for a TLS handshake.
        """
        sock.setblocking(False)  # noqa: FBT003
        self._workers[worker] = _Worker(worker, sock, self._clock())

    def remove(self, worker: int) -> None:
        """Stop passing connections to this worker; does nothing for an unknown worker."""
        if self._workers.pop(worker, None) is not None:
            self._count_streams(arrived=False)

    def report(self, worker: int, load: Load) -> None:
        """Record the load of a worker, and move a connection if that makes the workers more even."""
        known = self._workers.get(worker)
        if known is None:
            return
        now = known.reported_at = self._clock()
        arrived = load.begun != known.load.begun
        known.load = load
        self._count_streams(arrived=arrived)
        if now >= self._rebalance_at:
            self._rebalance_at = now + _RELEASE_SECONDS
            self._rebalance(now)

    def hand_over(self, connection: socket.socket) -> bool:
        """Pass a connection to a worker; return whether a worker took it. The caller closes its own copy."""
        for worker in sorted(self._workers.values(), key=self._rank):
            try:
                socket.send_fds(worker.sock, [b"c"], [connection.fileno()])
            except OSError:  # the socket is full, or the process has ended
                continue
            worker.passed += 1
            self._reserved_until = -math.inf
            return True
        return False

    async def _accept(self, sock: socket.socket) -> None:
        async for connection in accepted(sock):
            with connection:
                while not self.hand_over(connection):  # noqa: ASYNC110  a worker that reads again sends no event
                    await asyncio.sleep(_RETRY_SECONDS)

    def _rank(self, worker: _Worker) -> tuple[bool, bool, int, int, int]:
        now = self._clock()
        is_reserved = worker.number == self._reserved_for and now < self._reserved_until
        return worker.hangs(now), not is_reserved, worker.connections, worker.load.streams, worker.passed

    def _count_streams(self, *, arrived: bool) -> None:
        self.streams.replace(sum(worker.load.streams for worker in self._workers.values()), arrived=arrived)

    def _rebalance(self, now: float) -> None:
        moves = [
            move
            for source in self._workers.values()
            if source.load.working > 1 and not source.hangs(now)
            for target in self._workers.values()
            if target is not source and (move := _best_move(source, target)) is not None
        ]
        if not moves or not self._releases.allows(now):
            return
        move = max(moves, key=attrgetter("rank"))
        self._reserved_for, self._reserved_until = move.target, now + _RELEASE_SECONDS
        _log.info("connection moves to another worker", source=move.source, target=move.target)
        self._release(move.source, move.rate)


def _best_move(source: _Worker, target: _Worker) -> _Move | None:
    """Return the best move from one worker to another.

    A move is necessary if the rates are uneven, or if the source has at least two more connections. Returns None if no
    move is necessary, or if every move would make the rates less even.
    """
    high, low = source.load.rate, target.load.rate
    is_uneven = high - low >= _UNEVEN_RATE and high > low * _UNEVEN_RATIO
    surplus = source.load.working - target.connections
    if not is_uneven and surplus <= 1:
        return None
    before = high - low
    most = before if surplus > 1 else _MOST_REMAINING * before
    moves = [
        _Move((before - after if is_uneven else 0.0, surplus, -after), source.number, target.number, rate)
        for rate in source.load.rates
        if (after := abs(before - 2 * rate)) <= most or _are_even(high - rate, low + rate)
    ]
    return max(moves, key=attrgetter("rank"), default=None)


def _are_even(rate: float, other: float) -> bool:
    return abs(rate - other) < _EVEN_RATE or max(rate, other) <= min(rate, other) * _EVEN_RATIO


class _Calls:
    """The calls of one connection, and their rate."""

    __slots__ = ("_at", "_begun", "_calls", "_seconds")

    def __init__(self, opened_at: float) -> None:
        self._at = opened_at
        self._begun = 0
        self._calls = self._seconds = 0.0  # both decay, so that the rate of young connections has no bias

    @property
    def per_second(self) -> float:
        """Smoothed rate; too low in the first second."""
        return self._calls / max(self._seconds, _YOUNG_SECONDS)

    def update(self, begun: int, now: float) -> int:
        """Set the number of calls so far; return the number of new calls."""
        fresh, seconds = begun - self._begun, now - self._at
        kept = math.exp(-seconds / _SMOOTHING_SECONDS)
        self._calls = self._calls * kept + fresh
        self._seconds = self._seconds * kept + seconds
        self._begun, self._at = begun, now
        return fresh


class ConnectionReceiver:
    """Adopts the connections that the main process passes to a worker, and reports the load."""

    def __init__(self, server: GrpcServer, sock: socket.socket, report: Callable[[Load], object]) -> None:
        """Prepare; `sock` is the worker's end of the socket pair, `server` has started without a listener."""
        self._server = server
        self._sock = sock
        self._report = report
        self._received = 0
        self._begun = 0
        self._calls: dict[GrpcProtocol, _Calls] = {}  # of connections that had a call

    async def run(self) -> None:
        """Adopt and report until the main process closes its end of the socket pair."""
        await first_of(self._receive(), self._keep_reporting())

    def release(self, rate: float) -> None:
        """Ask the client of the working connection with the rate closest to this one to connect again.

        Its open streams are served to their end. The last working connection is kept.
        """
        working = self._working()
        if len(working) > 1:
            min(working, key=lambda each: abs(self._calls[each].per_second - rate)).go_away()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        self._sock.setblocking(False)  # noqa: FBT003
        loop.add_reader(self._sock, readable.set)
        try:
            while await self._adopt_next():
                readable.clear()
                await readable.wait()
        finally:
            loop.remove_reader(self._sock)

    async def _adopt_next(self) -> bool:
        """Adopt a connection if one waits; return False once the main process has closed its end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, 1, 1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += len(data)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            connection.set_inheritable(False)  # recv_fds leaves it inheritable
            connection.setblocking(False)  # noqa: FBT003
            await self._server.adopt(connection)
        if data and not descriptors:
            _log.warning("connection lost: no descriptor left")
            await asyncio.sleep(_PAUSE_SECONDS)
        return bool(data)

    async def _keep_reporting(self) -> None:
        loop = asyncio.get_running_loop()
        last: tuple[int, ...] = ()
        reported_at = -math.inf
        while True:
            now = loop.time()
            load = self._measure(now)
            if load[:5] != last or now - reported_at >= _REPORT_SECONDS:
                last, reported_at = load[:5], now
                self._report(load)
            many = len(self._server.connections) // _FEW_CONNECTIONS  # each connection takes up to 2 us
            await asyncio.sleep(min(_MEASURE_SECONDS * (1 + many), _REPORT_SECONDS))

    def _measure(self, now: float) -> Load:
        before, self._calls = self._calls, {}
        streams = young = 0
        for each in self._server.connections:
            streams += each.open_streams
            begun = each.begun
            if begun:
                self._calls[each] = calls = before.get(each) or _Calls(each.opened_at)
                self._begun += calls.update(begun, now)
            else:
                young += now - each.opened_at < _YOUNG_SECONDS
        working = self._working()
        rates = sorted(self._calls[each].per_second for each in working)
        return Load(
            received=self._received,
            connections=len(working) + young + self._server.handshakes,
            working=len(working),
            streams=streams,
            begun=self._begun,
            rate=sum(rates),
            rates=tuple(rates[:: 1 + len(rates) // _MOST_RATES]),
        )

    def _working(self) -> list[GrpcProtocol]:
        return [each for each in self._calls if not each.is_leaving]
