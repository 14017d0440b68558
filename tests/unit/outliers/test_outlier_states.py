# SPDX-License-Identifier: Apache-2.0
"""Whatever fails, in whatever order, and however the clock jumps: limits hold, and all of it is forgotten."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import Endpoint
from epp.framework.snapshot import AVOIDED
from epp.routing.outliers.record import Failure, Verdict
from tests.support.outlier_world import SETTINGS, World

NUMBERS = st.integers(0, 5)


class Outliers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(4)
        self.last = len(self.world.pool)

    def at(self, number: int) -> Endpoint | None:
        return self.world.pool[number] if number < len(self.world.pool) else None

    @rule(number=NUMBERS, failure=st.sampled_from(Failure), times=st.integers(1, 6))
    def fail(self, number: int, failure: Failure, times: int) -> None:
        if self.at(number) is not None:
            self.world.fail(number, failure, times)
            self.world.memory.failed(self.at(number), failure, model="m")

    @rule(number=NUMBERS)
    def succeed(self, number: int) -> None:
        if (endpoint := self.at(number)) is not None:
            self.world.memory.succeeded(endpoint, "m")

    @rule(number=NUMBERS)
    def end_of_connection(self, number: int) -> None:
        if (endpoint := self.at(number)) is not None:
            self.world.memory.suspect(endpoint)

    @rule(verdict=st.sampled_from(Verdict))
    def say(self, verdict: Verdict) -> None:
        self.world.say(verdict)

    @rule(choice=st.randoms(use_true_random=False))
    def pick(self, choice: object) -> None:
        slots = self.world.store.snapshot().available.tolist()
        if slots:
            self.world.memory.picked(choice.choice(slots))

    @rule(seconds=st.sampled_from([-1000.0, -10.0, 0.1, 3.0, 10.0, 1000.0]))
    def jump(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.memory.sweep()

    @rule()
    def join(self) -> None:
        if len(self.world.pool) < 6:
            self.last += 1
            self.world.pool.append(Endpoint(f"e{self.last}", f"10.0.0.{self.last}", 8000))
            self.world.store.replace(self.world.pool)
            newest = self.world.pool[-1]
            slot = self.world.store.slot_of(newest)
            assert self.world.store.snapshot().column(AVOIDED)[slot] == 0  # whoever had the slot before
            assert newest.name not in self.world.ejected

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        if self.at(number) is not None:
            del self.world.pool[number]
            self.world.store.replace(self.world.pool)

    @invariant()
    def limit_holds(self) -> None:
        assert len(self.world.ejected) <= SETTINGS.most_ejected(len(self.world.pool))

    @invariant()
    def some_endpoint_is_used(self) -> None:
        assert bool(self.world.used) == bool(self.world.pool)

    @invariant()
    def ejected_ones_are_of_the_pool(self) -> None:
        assert self.world.ejected <= {endpoint.name for endpoint in self.world.pool}

    def teardown(self) -> None:
        """All is forgotten once nothing fails any more, the requests on trial being answered."""
        for _ in range(40):
            self.world.say(Verdict.ANSWERS)
            self.world.pass_time(SETTINGS.max_ejection_seconds)
            for endpoint in self.world.pool:
                self.world.memory.picked(self.world.store.slot_of(endpoint))
                self.world.memory.succeeded(endpoint)
        assert self.world.memory.is_clean
        assert self.world.used == {endpoint.name for endpoint in self.world.pool}


TestOutliers = Outliers.TestCase
