# SPDX-License-Identifier: Apache-2.0
"""Requests of the picker before this one count as in flight: as many as engines can still have of them, for a while."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp.framework import Endpoint, ManualClock
from epp.framework.datalayer import Report
from epp.framework.snapshot import IN_FLIGHT, INHERITED, RUNNING, WAITING
from epp.routing.datastore import Datastore, Ticket

SECONDS = 600.0
ONE = Endpoint("one", "10.0.0.1", 8000)
TWO = Endpoint("two", "10.0.0.2", 8000)


class World:
    def __init__(self, *endpoints: Endpoint) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace(endpoints or (ONE,))

    def report(self, waiting: float, running: float, endpoint: Endpoint = ONE) -> None:
        self.store.report(endpoint, Report({WAITING: waiting, RUNNING: running}))

    def open(self, slot: int = 0) -> Ticket:
        return self.store.ledger.open(slot)

    def counts(self, slot: int = 0) -> tuple[float, float]:
        """In flight, and inherited of these."""
        snapshot = self.store.snapshot()
        return snapshot.column(IN_FLIGHT).item(slot), snapshot.column(INHERITED).item(slot)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("waiting", "running", "inherited"),
    [(2, 3, 5), (float("nan"), 4, 4), (-3.0, 4, 4), (0, 1e300, 1_000_000), (0, float("inf"), 1_000_000)],
)
def test_tf_15_what_an_engine_has_under_way_counts_as_in_flight(world, waiting, running, inherited):
    world.report(waiting=waiting, running=running)
    world.store.inherit(SECONDS)
    assert world.counts() == (inherited, inherited)
    world.report(waiting=0, running=0)
    assert world.counts() == (0, 0)


def test_tf_15_first_report_may_come_later_and_own_requests_are_not_inherited(world):
    world.store.inherit(SECONDS)
    assert world.counts() == (0, 0)
    world.open()
    world.report(waiting=0, running=3)  # ours and two others
    assert world.counts() == (3, 2)


def test_tf_15_it_shrinks_with_reports_and_never_grows(world):
    world.report(waiting=0, running=4)
    world.store.inherit(SECONDS)
    world.report(waiting=0, running=3)
    assert world.counts() == (3, 3)
    tickets = [world.open(), world.open()]
    assert world.counts() == (5, 3)
    world.report(waiting=0, running=5)
    assert world.counts() == (5, 3)
    world.report(waiting=9, running=9)  # others send more
    assert world.counts() == (5, 3)
    world.report(waiting=0, running=3)  # two of ours, and one of before
    assert world.counts() == (3, 1)
    for ticket in tickets:
        ticket.close()
    world.report(waiting=0, running=0)
    assert world.counts() == (0, 0)
    world.report(waiting=0, running=7)
    assert world.counts() == (0, 0)


def test_tf_15_it_ends_at_its_time_whatever_engines_report_and_that_is_news(world):
    told: list[str] = []
    world.report(waiting=0, running=4)
    world.store.inherit(SECONDS)
    world.open()
    world.clock.advance(SECONDS - 1)
    world.store.sweep_inherited()
    world.report(waiting=0, running=5)
    assert world.counts() == (5, 4)
    world.clock.advance(1)
    world.store.call_on_release(lambda: told.append("news"))
    world.store.sweep_inherited()
    assert (world.counts(), told) == ((1, 0), ["news"])


def test_tf_15_where_several_pickers_are_active_nothing_may_be_inherited(world):
    world.report(waiting=0, running=4)
    world.store.inherit(0)
    assert world.counts() == (0, 0)
    world.report(waiting=0, running=5)
    assert world.counts() == (0, 0)


def test_tf_15_endpoint_that_joins_or_is_first_heard_of_later_inherits_nothing(world):
    world.store.inherit(SECONDS)
    world.store.replace([ONE, TWO])
    world.report(waiting=0, running=4, endpoint=TWO)
    assert world.counts(slot=1) == (0, 0)
    world.clock.advance(SECONDS)
    world.report(waiting=0, running=4, endpoint=ONE)
    assert world.counts(slot=0) == (0, 0)


def test_tf_15_endpoint_that_leaves_takes_it_along(world):
    world.report(waiting=0, running=4)
    world.store.inherit(SECONDS)
    world.store.replace([])
    world.store.replace([ONE])
    world.report(waiting=0, running=4)
    assert world.counts() == (0, 0)
    world.clock.advance(SECONDS)
    world.store.sweep_inherited()
    assert world.counts() == (0, 0)


def test_tf_15_leader_that_comes_back_inherits_what_was_sent_meanwhile(world):
    world.report(waiting=0, running=4)
    world.store.inherit(SECONDS)
    world.report(waiting=0, running=0)
    mine = world.open()
    world.report(waiting=0, running=6)  # five of another leader
    world.store.inherit(SECONDS)
    assert world.counts() == (6, 5)
    mine.close()
    assert world.counts() == (5, 5)


class Restarted(RuleBasedStateMachine):
    """One engine with requests of before, own ones and those of others, and reports that lag behind."""

    @initialize(before=st.integers(0, 20), others=st.integers(0, 3))
    def restart(self, before: int, others: int) -> None:
        self.world = World()
        self.before, self.others = before, others
        self.own: list[Ticket] = []
        self.least = float(before + others)
        self.page = self.engine
        self.world.report(0, self.page)
        self.world.store.inherit(SECONDS)

    @property
    def engine(self) -> int:
        return self.before + self.others + len(self.own)

    @rule()
    def sent(self) -> None:
        self.own.append(self.world.open())

    @precondition(lambda self: self.own)
    @rule()
    def own_ends(self) -> None:
        self.own.pop().close()

    @precondition(lambda self: self.before)
    @rule()
    def old_one_ends(self) -> None:
        self.before -= 1

    @rule(others=st.integers(0, 6))
    def others_change(self, others: int) -> None:
        self.others = others

    @rule()
    def page_is_made(self) -> None:
        self.page = self.engine

    @rule()
    def page_arrives(self) -> None:
        self.world.report(0, self.page)

    @rule(seconds=st.sampled_from([1.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.store.sweep_inherited()

    @invariant()
    def own_and_inherited_are_what_is_in_flight(self) -> None:
        in_flight, inherited = self.world.counts()
        assert in_flight == len(self.own) + inherited
        assert 0 <= inherited <= self.least, "it grew"
        self.least = inherited

    def teardown(self) -> None:
        for ticket in self.own:
            ticket.close()
        self.world.report(0, 0)
        assert self.world.counts() == (0, 0)


TestRestarted = Restarted.TestCase
