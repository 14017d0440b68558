# SPDX-License-Identifier: Apache-2.0
"""Gateways connect, leave and change, and workers die and start: connections settle, and stay evenly spread."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.connection_fleet import Fleet, load

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
