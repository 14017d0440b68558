# SPDX-License-Identifier: Apache-2.0
"""Which worker gets a connection, and when one of them is told to release one, until all have their part."""

import contextlib
import socket
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from epp.framework import ManualClock
from epp.sharing.connections import Connections, Load


def load(*rates: float, received: int = 0, young: int = 0, streams: int = 0, begun: int = 0) -> Load:
    """Return the load of a worker with a working connection for each rate."""
    return Load(received, len(rates) + young, len(rates), streams, begun, sum(rates), tuple(sorted(rates)))


class Fleet:
    """Workers without processes: they count what they are passed, and report what a test says."""

    def __init__(self, *numbers: int) -> None:
        self.clock = ManualClock()
        self.released: list[tuple[int, float]] = []
        self.connections = Connections(lambda *what: self.released.append(what), self.clock.now)
        self.ends: dict[int, socket.socket] = {}
        self.passed: dict[int, int] = {}
        self._open = contextlib.ExitStack()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            self._open.enter_context(end)
        theirs.setblocking(False)  # noqa: FBT003
        self.ends[number] = theirs
        self.passed[number] = 0
        self.connections.add(number, ours)

    def hand_over(self) -> int | None:
        """Pass a connection; return who got it."""
        with socket.socket() as connection:
            taken = self.connections.hand_over(connection)
        for number, end in self.ends.items():
            with contextlib.suppress(OSError):
                _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
                for descriptor in descriptors:
                    socket.close(descriptor)
                    self.passed[number] += 1
                    return number
        assert not taken
        return None

    def report(self, **loads: Load) -> None:
        """Report for `w1`, `w2` and so on each second of two."""
        for seconds in (1, 1, 0):
            for name, each in loads.items():
                self.connections.report(int(name[1:]), each)
            self.clock.advance(seconds)

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def fleet():
    fleet = Fleet(1, 2)
    yield fleet
    fleet.close()


@pytest.mark.parametrize(
    ("reported", "workers"),
    [
        pytest.param({}, [1, 2, 1, 2], id="turns"),
        pytest.param({"w1": load(1.0, 1.0), "w2": load(1.0)}, [2, 1, 2], id="fewest connections"),
        pytest.param({"w1": load(1.0, streams=7), "w2": load(1.0, streams=6)}, [2], id="as many, fewer streams"),
    ],
)
def test_worker_with_the_fewest_connections_gets_the_next(fleet, reported, workers):
    fleet.report(**reported)
    assert [fleet.hand_over() for _ in workers] == workers


def test_connections_that_were_passed_count_until_they_are_reported(fleet):
    assert fleet.hand_over() == 1
    fleet.report(w1=load(received=0), w2=load())  # on its way
    assert fleet.hand_over() == 2
    fleet.report(w1=load(received=1), w2=load(1.0, received=1))  # the first has closed
    assert fleet.hand_over() == 1


def test_health_checks_do_not_keep_requests_away(fleet):
    health = load(received=1, young=1)
    assert fleet.hand_over() == 1
    fleet.report(w1=health, w2=load())
    assert fleet.hand_over() == 2  # as long as the first may become a connection of requests
    old = load(received=1)  # no request in a second
    fleet.report(w1=old, w2=load(5.0, received=1))
    assert fleet.hand_over() == 1


def test_full_or_dead_workers_are_passed_over(fleet):
    fleet.ends[1].close()
    del fleet.ends[1]
    assert [fleet.hand_over(), fleet.hand_over()] == [2, 2]
    fleet.connections.remove(2)
    assert fleet.hand_over() is None


def test_full_worker_is_passed_over(fleet):
    with socket.socket() as connection:
        passed = 0
        while fleet.connections.hand_over(connection):
            passed += 1
    assert passed > 10
    fleet.add(3)
    assert fleet.hand_over() is not None


def test_worker_that_hangs_is_the_last_choice(fleet):
    for _ in range(2):
        fleet.report(w1=load(1.0, 1.0))
    assert [fleet.hand_over(), fleet.hand_over()] == [1, 1]
    fleet.connections.remove(1)
    assert fleet.hand_over() == 2


@pytest.mark.parametrize(
    ("busy", "other", "released"),
    [
        pytest.param((1.0, 1.0, 1.0, 1.0), (), 1.0, id="new worker"),
        pytest.param((1000.0, 30.0, 30.0), (), 1000.0, id="60 and 1000: with another it would be 1030 and 30"),
        pytest.param((1000.0, 0.0, 0.0), (), 0.0, id="an idle one rather than the busy one"),
        pytest.param((300.0, 200.0), (5.0, 5.0, 5.0), 200.0, id="300 and 215: with the other it would be 200 and 315"),
        pytest.param((1.0, 1.0), (1.0,), None, id="one more is no reason"),
        pytest.param((200.0, 200.0, 200.0), (600.0,), None, id="not at the cost of rates"),
        pytest.param((500.0,), (), None, id="the only one"),
        pytest.param((500.0, 0.1), (10.0,), None, id="one would move everything, the other nothing"),
        pytest.param((40.0, 9.0), (1.0,), None, id="few calls"),
        pytest.param((300.0, 300.0), (430.0,), None, id="less than half more"),
    ],
)
def test_connection_moves_if_that_makes_rates_or_numbers_more_even(fleet, busy, other, released):
    for _ in range(10 if released is None else 1):
        fleet.report(w2=load(*other), w1=load(*busy))
    assert fleet.released == ([] if released is None else [(1, released)])


@pytest.mark.parametrize(("seconds", "workers"), [(0, [2, 1]), (2, [1])])
def test_idle_worker_gets_the_released_connection_though_it_has_more_unless_that_takes_long(fleet, seconds, workers):
    fleet.report(w2=load(5.0, 5.0, 5.0), w1=load(300.0, 200.0))
    fleet.clock.advance(seconds)
    assert [fleet.hand_over() for _ in workers] == workers


def test_releases_have_time_between_them_and_an_end(fleet):
    for _ in range(200):
        fleet.report(w1=load(1.0, 1.0, 1.0), w2=load())  # as if the client came back each time
    assert 100 < len(fleet.released) <= 112  # 32 and one each 5 s of 400 s


def test_worker_that_hangs_is_not_told_again_and_again(fleet):
    fleet.report(w1=load(1.0, 1.0, 1.0), w2=load())
    for _ in range(10):
        fleet.report(w2=load())
    assert len(fleet.released) == 1


async def test_streams_of_all_workers_are_counted(fleet):
    fleet.report(w1=load(1.0, streams=2, begun=2), w2=load(1.0, streams=3, begun=3), w9=load(streams=7))
    assert fleet.connections.streams.count == 5
    fleet.connections.remove(2)
    assert fleet.connections.streams.count == 2


SETTLED_SECONDS = 60
"""After so long without a release, there is none any more."""
MOST_SECONDS = 1200


@dataclass(eq=False)
class Client:
    rate: float
    worker: int


class Gateways(RuleBasedStateMachine):
    """Clients with one connection each, which they open again at once when it ends."""

    rates = st.just(0.0)

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.alive: list[int] = []
        self.clients: list[Client] = []
        self.released_at = -10.0
        self.number = 0

    @initialize(workers=st.integers(2, 4))
    def begin(self, workers: int) -> None:
        for _ in range(workers):
            self.start_worker()

    @precondition(lambda self: len(self.alive) < 4)
    @rule()
    def start_worker(self) -> None:
        self.number += 1
        self.alive.append(self.number)
        self.fleet.add(self.number)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def kill_worker(self, data: st.DataObject) -> None:
        dead = data.draw(st.sampled_from(self.alive))
        self.alive.remove(dead)
        self.fleet.connections.remove(dead)
        for client in self.of(dead):
            client.worker = self.connect()

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.clients.append(Client(data.draw(self.rates), self.connect()))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))
        self.report()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def change_rate(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients)).rate = data.draw(self.rates)

    @rule()
    def pass_a_second(self) -> None:
        self.fleet.clock.advance(1)
        self.report()

    def report(self) -> None:
        """Let all workers report, and a client whose connection is released connect again."""
        for number in self.alive:
            rates = [client.rate for client in self.of(number)]
            report = load(*rates, received=self.fleet.passed[number])
            self.fleet.connections.report(number, report)
        for source, rate in self.fleet.released:
            now = self.fleet.clock.now()
            assert now - self.released_at >= 2
            self.released_at = now
            assert len(self.of(source)) > 1, "the only one"
            moved = min(self.of(source), key=lambda client: abs(client.rate - rate))
            self.clients.remove(moved)
            self.clients.append(Client(moved.rate, self.connect()))
        self.fleet.released.clear()

    def connect(self) -> int:
        worker = self.fleet.hand_over()
        assert worker in self.alive
        if self.fleet.clock.now() - self.released_at > 2:
            assert len(self.of(worker)) == min(len(self.of(number)) for number in self.alive)
        return worker

    def of(self, worker: int) -> list[Client]:
        return [client for client in self.clients if client.worker == worker]

    def settle(self) -> None:
        for _ in range(MOST_SECONDS):
            self.pass_a_second()
            if self.fleet.clock.now() - max(self.released_at, 0) > SETTLED_SECONDS:
                break
        else:
            raise AssertionError("connections keep moving")

    def teardown(self) -> None:
        self.settle()
        counts = [len(self.of(number)) for number in self.alive]
        if counts:
            assert max(counts) - min(counts) <= 1
        self.fleet.close()


class IdleGateways(Gateways):
    """Without calls."""


class EqualGateways(Gateways):
    """All busy."""

    rates = st.just(200.0)


class UnequalGateways(Gateways):
    """Some are busy: the rates count more than the number of connections."""

    rates = st.sampled_from([0.0, 1.0, 30.0, 60.0, 100.0, 200.0, 900.0]) | st.floats(0, 1000)

    def teardown(self) -> None:
        self.settle()
        for busy in self.alive:
            for other in self.alive:
                high, low = (sum(client.rate for client in self.of(number)) for number in (busy, other))
                if len(self.of(busy)) < 2 or high - low < 50 or high < 1.5 * low:
                    continue
                for client in self.of(busy):  # none is left that would help much
                    assert abs(high - low - 2 * client.rate) > 0.75 * (high - low)
        self.fleet.close()


TestIdleGateways = IdleGateways.TestCase
TestEqualGateways = EqualGateways.TestCase
TestUnequalGateways = UnequalGateways.TestCase
