# SPDX-License-Identifier: Apache-2.0
"""When endpoints are polled, in made-up time: none of these tests waits."""

import asyncio
import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, ManualClock
from epp.framework.datalayer import Feed
from epp.framework.snapshot import RUNNING
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import Cadence, PollBudget
from epp.pool.collectors.polling.poller import PolledFeed, Poller
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Length, Script

FASTEST, SLOWEST = 0.05, 0.15
LATE = 0.006
"""Jitter, and the time that an answer takes."""


class Answering(PolledFeed):
    """Is answered when the test says so."""

    __slots__ = ("done",)
    done: Callable[[], None] | None

    def begin(self, done: Callable[[PolledFeed, bytes | Exception], None]) -> None:
        assert self.done is None, "a poll began before the one before it was answered"
        self.done = lambda page=b"page": done(self, page)


class World:
    """A pool whose polls are answered at once, and a poller that is given its turns at the times it asks for."""

    def __init__(self, count: int, *, share: float = 1.0) -> None:
        self.clock = ManualClock(100.0)
        self.store = Datastore(self.clock)
        self.store.replace(Endpoint(f"e{number}", "10.0.0.1", 1 + number) for number in range(count))
        self.poller = Poller(self.store, self.clock, PollBudget(share), random.Random(7), cpu_seconds=lambda: 0.0)
        self.polled: dict[str, list[float]] = {}
        self.page = b"page"
        self.next_turn = math.inf
        self.members = [self.join(endpoint) for endpoint in self.store.endpoints]

    def join(self, endpoint: Endpoint, interval: float = FASTEST) -> Answering:
        feed = Feed(Script(), (Length(),))
        poll = Poll(
            self.store,
            feed,
            Reachability(self.store, endpoint),
            clock=self.clock,
            interval_seconds=interval,
            observer=CollectorObserver(),
        )
        member = Answering(self.store, endpoint, poll, cadence=Cadence(interval, SLOWEST, self.clock.now()))
        member.done = None
        self.poller.add(member, interval)
        self.polled[endpoint.name] = []
        return member

    def turn(self) -> None:
        self.poller._set_timer(self.poller.step())
        for member in self.members:
            if member.done is not None:
                self.polled[member.endpoint.name].append(self.clock.now())
                done, member.done = member.done, None
                done(self.page)
        self.next_turn = self.poller._next_step

    def run(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        self.turn()
        while self.next_turn < end:
            self.clock.advance(max(self.next_turn - self.clock.now(), 0.0))
            self.turn()
        self.clock.advance(end - self.clock.now())

    def request(self, number: int):
        ticket = self.store.ledger.open(number)
        self.turn()  # which the ledger asks for
        return ticket

    def gaps(self, name: str, since: float) -> list[float]:
        times = [time for time in self.polled[name] if time >= since]
        return [later - earlier for earlier, later in pairwise(times)]


async def test_endpoint_at_rest_is_polled_less_and_less_often_until_its_numbers_change():
    world = World(1)
    world.run(5.0)
    assert world.gaps("e0", 100.0)[0] == pytest.approx(FASTEST)
    assert world.gaps("e0", 103.0) == pytest.approx([SLOWEST] * len(world.gaps("e0", 103.0)))
    world.page = b"another page"
    world.run(SLOWEST)
    changed = world.clock.now()
    world.run(0.8)
    assert max(world.gaps("e0", changed)) == pytest.approx(FASTEST)


async def test_request_brings_the_fastest_pace_back_within_one_interval():
    world = World(2)
    world.run(5.0)
    sent = world.clock.now()
    world.request(0)
    world.run(0.9)
    first = next(time for time in world.polled["e0"] if time >= sent)
    assert first - sent <= FASTEST
    assert max(world.gaps("e0", sent)) == pytest.approx(FASTEST)
    assert max(world.gaps("e1", sent)) == pytest.approx(SLOWEST)


async def test_endpoint_with_a_request_in_flight_is_polled_at_the_fastest_pace():
    world = World(1)
    ticket = world.request(0)
    world.run(20.0)
    assert max(world.gaps("e0", 101.0)) == pytest.approx(FASTEST)
    ticket.close()
    world.run(20.0)
    assert max(world.gaps("e0", 121.0)) == pytest.approx(SLOWEST)


async def test_endpoint_whose_pages_cost_much_is_not_hurried_by_requests():
    world = World(2)
    world.members[0].least_wait = 0.6
    world.run(1.0)
    for _ in range(40):
        world.request(0)
        world.run(FASTEST)
    assert min(world.gaps("e0", 101.0)) > 0.5
    assert len(world.gaps("e0", 101.0)) >= 2


async def test_endpoints_at_rest_are_polled_in_one_turn():
    world = World(8)
    world.run(5.0)
    late = {round(time, 6) for times in world.polled.values() for time in times if time >= 103.0}
    assert len(late) <= 2 / SLOWEST + 1


@pytest.mark.parametrize(("connects", "together", "least"), [(False, 32, 18), (True, 16, 3)])
async def test_large_pool_is_spread_over_turns_with_fewer_polls_where_they_connect_first(
    monkeypatch, connects, together, least
):
    monkeypatch.setattr(Answering, "needs_connection", connects)
    world = World(200)
    world.run(1.0)
    times = [round(time, 6) for times in world.polled.values() for time in times]
    assert max(times.count(time) for time in set(times)) <= together
    assert min(map(len, world.polled.values())) >= least  # of 20, at the fastest pace


async def test_member_that_leaves_is_not_polled_again_and_its_late_answer_is_dropped():
    world = World(200)
    world.clock.advance(1.0)
    world.poller.step()
    late = next(member for member in world.members if member.done is not None)
    waiting = next(member for member in world.members if member.done is None)  # for the budget
    for member in (late, waiting):
        assert world.poller.remove(member) == ()
    late.done()
    late.done = None
    assert world.store.snapshot().column(RUNNING)[world.store.slot_of(late.endpoint)] != 4.0
    world.run(1.0)
    assert sorted(name for name, times in world.polled.items() if not times) == sorted(
        member.endpoint.name for member in (late, waiting)
    )


async def test_source_that_cannot_even_begin_is_asked_again(monkeypatch):
    began = []

    def fail(member: Answering, _done: object) -> None:
        began.append(member)
        raise ValueError("a certificate file cannot be read")

    monkeypatch.setattr(Answering, "begin", fail)
    World(1).run(0.5)
    assert len(began) >= 5


@given(
    count=st.integers(1, 40),
    events=st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 39), st.booleans()), max_size=20),
)
def test_every_endpoint_is_polled_in_time_whatever_requests_come_and_end(count, events):
    async def live() -> None:
        world = World(count)
        world.run(0.5)
        began, tickets = world.clock.now(), []
        for seconds, number, ends in events:
            world.run(seconds)
            tickets.append(world.request(number % count))
            if ends:
                tickets.pop(0).close()
        world.run(1.0)
        for name in world.polled:
            gaps = world.gaps(name, began)
            assert max(gaps) <= SLOWEST + LATE
            assert len(gaps) <= (world.clock.now() - began) / FASTEST + len(events) + 10

    asyncio.run(live())


async def test_run_sleeps_until_a_poll_is_due_and_wakes_for_a_request():
    clock = ManualClock(100.0)
    store = Datastore(clock)
    store.replace([Endpoint("e", "10.0.0.1", 1)])
    poller = Poller(store, clock, PollBudget(), random.Random(7))
    turns: list[float] = []
    step = poller.step
    poller.step = lambda: turns.append(clock.now()) or step()  # type: ignore[method-assign]
    task = asyncio.create_task(poller.run())
    await asyncio.sleep(0)
    assert turns == [100.0]
    store.ledger.open(0)
    while len(turns) < 2:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)
    for _ in range(3):  # of which the next regular turn learns
        store.ledger.open(0)
        await asyncio.sleep(0.01)
    assert len(turns) == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
