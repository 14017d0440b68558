# SPDX-License-Identifier: Apache-2.0
"""Polls of many endpoints share a rate; those that fail take less of it."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, UnreachableError
from epp.pool.collectors.polling import collector as capacity
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.pool.collectors.polling.poll_schedule import PollBudget
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Counting, Length


class Counts(Counting):
    """Counts how often each endpoint is asked; some refuse connections."""

    plugin_type = "counts"

    def __init__(self, *refusing: str) -> None:
        super().__init__()
        self.refusing = set(refusing)

    @property
    def names(self) -> list[str]:
        return [endpoint.name for endpoint in self.asked]

    async def fetch(self, endpoint: Endpoint) -> bytes:
        page = await super().fetch(endpoint)
        if endpoint.name in self.refusing:
            raise UnreachableError("refused", refused=True)
        return page


@asynccontextmanager
async def collecting_from(source: Counts, count: int, *, seconds: float, budget: PollBudget | None = None):
    """Collect from so many endpoints; yield the intervals at which they are polled as observers are told of them."""
    store, told = Datastore(SystemClock()), []
    store.replace(Endpoint(f"e{number}", "127.0.0.1", 1 + number) for number in range(count))

    class Intervals(CollectorObserver):
        def poll_interval(self, seconds: float) -> None:
            told.append(seconds)

    feeds = [Feed(source, (Length(),))]
    collector = Collector(
        store, feeds, clock=SystemClock(), interval_seconds=seconds, budget=budget, observer=Intervals()
    )
    await collector.start()
    yield told
    await collector.stop()


@pytest.fixture
def budget() -> PollBudget:
    """A fifth of the time, for polls that take 100 us each."""
    budget = PollBudget(0.2)
    budget.spent(0.1, 1000)
    return budget


def test_polls_may_take_a_share_of_the_time_and_do_not_catch_up_with_what_a_busy_event_loop_missed(budget):
    assert budget.polls_per_second == pytest.approx(2000)
    budget.allowance(0.0)
    budget.began(100)
    assert budget.allowance(0.01) == 20
    budget.began(20)
    assert budget.allowance(0.01) == 0
    assert budget.allowance(60.0) == 100  # 50 ms


def busy(budget: PollBudget, since: float, seconds: float, cpu_share: float) -> None:
    """Let the event loop be busy with other work than polls."""
    for number in range(round(seconds * 10) + 1):
        budget.ran(since + number / 10, 1000.0 + number / 10 * cpu_share)


def test_share_is_one_of_the_time_that_requests_leave_and_never_nothing(budget):
    busy(budget, 0.0, 10.0, 0.6)
    assert budget.polls_per_second == pytest.approx(0.4 * 2000, rel=0.01)
    busy(budget, 20.0, 10.0, 0.0)
    assert budget.polls_per_second == pytest.approx(2000, rel=0.01)
    busy(budget, 40.0, 10.0, 1.0)  # with more requests than the event loop can take
    assert budget.polls_per_second == pytest.approx(0.25 * 2000, rel=0.01)


def test_polls_are_fewer_where_the_event_loop_comes_late_to_its_turns(budget):
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
    for seconds, together in ((100e-6, 10), (5e-3, 1), (0.0, 32)):
        for _ in range(100):
            budget.spent(200 * seconds, 200)
        assert budget.at_once == together


def test_polls_that_take_longer_are_fewer_and_recover_and_one_bad_moment_changes_little():
    budget = PollBudget(0.2)
    for seconds, per_second in ((0.1, 200), (0.01, 2000)):  # 1 ms each, and 100 us
        for _ in range(100):
            budget.spent(seconds, 100)
        assert budget.polls_per_second == pytest.approx(per_second, rel=0.01)
    budget.spent(0.005, 1)  # the machine did something else
    assert budget.polls_per_second > 0.9 * 2000


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
    source = Counts()
    async with collecting_from(source, 20, seconds=0.001, budget=PollBudget(0.02)):  # at most 1,000 polls a second
        await until(lambda: len(source.asked) >= 100)
    counts = [source.names.count(f"e{number}") for number in range(20)]
    assert max(counts) - min(counts) <= 2


async def test_endpoints_that_refuse_connections_leave_turns_to_others(until):
    source = Counts(*(f"e{number}" for number in range(10)))
    async with collecting_from(source, 20, seconds=0.001, budget=PollBudget(0.02)):
        await until(lambda: len(source.asked) >= 300)
    late = source.names[150:]
    assert sum(name in source.refusing for name in late) < len(late) / 4


@pytest.mark.parametrize("count", [3, 1000])
async def test_log_and_metrics_tell_that_endpoints_of_a_large_pool_are_polled_less_often(until, monkeypatch, count):
    monkeypatch.setattr(capacity, "_GROWING_SECONDS", 0.05)
    with capture_logs() as logs:
        async with collecting_from(Counts(), count, seconds=0.01, budget=PollBudget(0.02)) as told:
            await until(lambda: told)
    lines = [line for line in logs if line["event"] == "endpoints are polled less often than configured"]
    if count == 3:
        assert (told, lines) == ([0.01], [])
        return
    ((line,), (seconds, *_)) = lines, told
    assert (line["endpoints"], line["asked_seconds"]) == (1000, 0.01)
    assert line["seconds"] == pytest.approx(seconds, abs=1e-3)
    assert seconds > 0.01
