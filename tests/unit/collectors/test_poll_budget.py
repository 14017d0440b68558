# SPDX-License-Identifier: Apache-2.0
"""Polls of many endpoints share a rate; those that fail take less of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import Endpoint, ManualClock, SystemClock
from epp.framework.datalayer import DataSource, Feed, UnreachableError
from epp.framework.snapshot import RUNNING
from epp.pool.collectors.polling import collector as capacity
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.pool.collectors.polling.poll_schedule import PollBudget
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Length, collect_once

LITTLE = 0.02
"""Share of the time for at most 1,000 polls a second."""


class Counts(DataSource):
    """Counts how often each endpoint is asked; some refuse connections."""

    plugin_type = "counts"
    port = None
    interval_seconds = None

    def __init__(self, refusing: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.refusing = refusing
        self.asked: list[str] = []

    async def fetch(self, endpoint: Endpoint) -> bytes:
        self.asked.append(endpoint.name)
        if endpoint.name in self.refusing:
            raise UnreachableError("refused", refused=True)
        return b"page"

    async def close(self) -> None:
        pass


class Intervals(CollectorObserver):
    def __init__(self) -> None:
        self.told: list[float] = []

    def poll_interval(self, seconds: float) -> None:
        self.told.append(seconds)


def pool(count: int) -> list[Endpoint]:
    return [Endpoint(f"e{number}", "127.0.0.1", 1 + number) for number in range(count)]


def test_polls_may_take_a_share_of_the_time():
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)  # 100 us each
    assert budget.polls_per_second == pytest.approx(2000)
    budget.allowance(0.0)
    budget.began(100)
    assert budget.allowance(0.01) == 20
    budget.began(20)
    assert budget.allowance(0.01) == 0


def busy(budget: PollBudget, since: float, seconds: float, cpu_share: float) -> None:
    """Let the event loop be busy with other work than polls."""
    for number in range(round(seconds * 10) + 1):
        budget.ran(since + number / 10, 1000.0 + number / 10 * cpu_share)


def test_share_is_one_of_the_time_that_requests_leave():
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)  # 100 us each
    busy(budget, 0.0, 10.0, 0.6)
    assert budget.polls_per_second == pytest.approx(0.4 * 2000, rel=0.01)
    busy(budget, 20.0, 10.0, 0.0)
    assert budget.polls_per_second == pytest.approx(2000, rel=0.01)


def test_polls_go_on_beside_more_requests_than_the_event_loop_can_take():
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)
    busy(budget, 0.0, 10.0, 1.0)
    assert budget.polls_per_second == pytest.approx(0.25 * 2000, rel=0.01)


def test_polls_are_fewer_where_the_event_loop_comes_late_to_its_turns():
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)
    for number in range(1000):  # each turn 5 ms later than it should, of which 2 count for nothing
        budget.ran(number / 100, 0.0, 0.005)
    assert budget.polls_per_second == pytest.approx(0.7 * 2000, rel=0.01)
    for number in range(1000):
        budget.ran(10.0 + number / 100, 0.0, 0.001)
    assert budget.polls_per_second == pytest.approx(2000, rel=0.01)


def test_time_that_polls_take_does_not_make_them_fewer():
    budget, now = PollBudget(0.2), 0.0
    for number in range(100):
        budget.spent(0.02, 200)
        now = number / 10
        budget.ran(now, 5.0 + 0.2 * now)
    assert budget.polls_per_second == pytest.approx(2000, rel=0.01)


def test_polls_begin_together_as_long_as_that_takes_a_millisecond():
    budget = PollBudget(0.2)
    for _ in range(100):
        budget.spent(0.02, 200)  # 100 us each
    assert budget.at_once == 10
    for _ in range(100):
        budget.spent(1.0, 200)
    assert budget.at_once == 1
    for _ in range(100):
        budget.spent(0.0, 200)
    assert budget.at_once == 32


def test_what_a_busy_event_loop_missed_is_not_caught_up_with():
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)
    budget.allowance(0.0)
    assert budget.allowance(60.0) == 100  # 50 ms


def test_polls_that_take_longer_are_fewer_and_recover():
    budget = PollBudget(0.2)
    for _ in range(100):
        budget.spent(0.1, 100)  # 1 ms each
    assert budget.polls_per_second == pytest.approx(200, rel=0.01)
    for _ in range(100):
        budget.spent(0.01, 100)
    assert budget.polls_per_second == pytest.approx(2000, rel=0.01)


def test_one_bad_moment_changes_little():
    budget = PollBudget(0.2)
    before = budget.polls_per_second
    budget.spent(0.005, 1)  # the machine did something else
    assert budget.polls_per_second > 0.9 * before


def test_polls_that_cost_more_than_there_is_still_happen():
    budget = PollBudget(0.0001)
    for _ in range(100):
        budget.spent(1.0, 10)
    now = begun = 0
    while begun < 3:
        now += 1
        allowed = budget.allowance(now)
        budget.began(allowed)
        begun += allowed
        assert now <= 20_000


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 200), st.floats(0, 0.001)), min_size=1, max_size=200))
def test_no_more_polls_begin_than_the_share_allows(turns):
    budget, now, begun, allowed_seconds = PollBudget(0.2), 0.0, 0, 0.0
    costs = [100e-6]
    for gap, wanted, cost in turns:
        now += gap
        polls = min(budget.allowance(now), wanted)
        assert polls >= 0
        budget.began(polls)
        budget.spent(polls * cost, polls)
        begun += polls
        costs.append(0.2 / budget.polls_per_second)
    least = min(costs)
    allowed_seconds = 0.2 * (now + 0.05)
    assert begun <= allowed_seconds / least + 1


async def test_in_a_large_pool_each_endpoint_is_polled_less_often_and_alike(until):
    source, store = Counts(), Datastore(SystemClock())
    store.replace(pool(20))
    collector = Collector(
        store, [Feed(source, (Length(),))], clock=SystemClock(), interval_seconds=0.001, budget=PollBudget(LITTLE)
    )
    await collector.start()
    await until(lambda: len(source.asked) >= 100)
    await collector.stop()
    counts = [source.asked.count(endpoint.name) for endpoint in store.endpoints]
    assert max(counts) - min(counts) <= 2


async def test_endpoints_that_refuse_connections_leave_turns_to_others(until):
    refusing = frozenset(f"e{number}" for number in range(10))
    source, store = Counts(refusing), Datastore(SystemClock())
    store.replace(pool(20))
    collector = Collector(
        store, [Feed(source, (Length(),))], clock=SystemClock(), interval_seconds=0.001, budget=PollBudget(LITTLE)
    )
    await collector.start()
    await until(lambda: len(source.asked) >= 300)
    await collector.stop()
    late = source.asked[150:]
    assert sum(name in refusing for name in late) < len(late) / 4


@pytest.mark.parametrize(("delay", "longest"), [(0.0, 1.0), (0.1, 1.0), (3.0, 12.0)])
async def test_refusing_endpoint_waits_a_second_or_four_turns(delay, longest):
    store, endpoint = Datastore(ManualClock()), Endpoint("e", "10.0.0.1", 8000)
    store.replace([endpoint])
    feed = Feed(Counts(frozenset({"e"})), (Length(),))
    poll = Poll(
        store,
        feed,
        Reachability(store, endpoint),
        clock=ManualClock(),
        interval_seconds=0.5,
        observer=CollectorObserver(),
    )
    waits = [await collect_once(poll, endpoint, delay) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == longest


async def test_numbers_last_for_three_turns_where_turns_are_rare():
    clock = ManualClock()
    store, endpoint = Datastore(clock), Endpoint("e", "10.0.0.1", 8000)
    store.replace([endpoint])
    source = Counts()
    poll = Poll(
        store,
        Feed(source, (Length(),)),
        Reachability(store, endpoint),
        clock=clock,
        interval_seconds=0.05,
        observer=CollectorObserver(),
    )
    await collect_once(poll, endpoint, 3.0)
    source.refusing = frozenset({"e"})
    clock.advance(8.9)
    await collect_once(poll, endpoint, 3.0)
    assert store.snapshot().column(RUNNING)[0] == 4.0
    clock.advance(0.2)  # 9.1 s: three turns of 3 s
    await collect_once(poll, endpoint, 3.0)
    assert store.snapshot().column(RUNNING)[0] != 4.0


async def test_log_and_metrics_tell_that_endpoints_are_polled_less_often(until, monkeypatch):
    monkeypatch.setattr(capacity, "_GROWING_SECONDS", 0.05)
    source, store, intervals = Counts(), Datastore(SystemClock()), Intervals()
    store.replace(pool(1000))
    collector = Collector(
        store,
        [Feed(source, (Length(),))],
        clock=SystemClock(),
        interval_seconds=0.01,
        budget=PollBudget(LITTLE),
        observer=intervals,
    )
    with capture_logs() as logs:
        await collector.start()
        await until(lambda: intervals.told)
        await collector.stop()
    (line,) = [line for line in logs if line["event"] == "endpoints are polled less often than configured"]
    assert (line["endpoints"], line["asked_seconds"]) == (1000, 0.01)
    assert line["seconds"] > 0.01
    assert intervals.told[0] == pytest.approx(line["seconds"], abs=1e-3)


async def test_small_pool_is_polled_as_asked(until, monkeypatch):
    monkeypatch.setattr(capacity, "_GROWING_SECONDS", 0.05)
    source, store, intervals = Counts(), Datastore(SystemClock()), Intervals()
    store.replace(pool(3))
    collector = Collector(
        store, [Feed(source, (Length(),))], clock=SystemClock(), interval_seconds=0.01, observer=intervals
    )
    with capture_logs() as logs:
        await collector.start()
        await until(lambda: intervals.told)
        await collector.stop()
    assert intervals.told == [0.01]
    assert not [line for line in logs if "less often" in line["event"]]
