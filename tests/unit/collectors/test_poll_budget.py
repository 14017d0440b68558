# SPDX-License-Identifier: Apache-2.0
"""Polls of many endpoints share a rate; those that fail take less of it."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from epp.collectors import Collector, CollectorObserver
from epp.collectors.polling import capacity
from epp.collectors.polling.budget import PollBudget
from epp.collectors.polling.poll import Poll
from epp.collectors.polling.reachability import Reachability
from epp.datastore import Datastore
from epp.framework import Endpoint, ManualClock, SystemClock
from epp.framework.datalayer import DataSource, Extractor, Feed, Report, UnreachableError
from epp.framework.snapshot import RUNNING

TICK = 0.01
ONE_A_TICK = 1 / TICK


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


class Length(Extractor):
    plugin_type = "length"
    writes = (RUNNING,)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        return Report({RUNNING: len(page)})


class Intervals(CollectorObserver):
    def __init__(self) -> None:
        self.told: list[float] = []

    def poll_interval(self, seconds: float) -> None:
        self.told.append(seconds)


def pool(count: int) -> list[Endpoint]:
    return [Endpoint(f"e{number}", "127.0.0.1", 1 + number) for number in range(count)]


async def test_polls_within_the_budget_do_not_wait():
    budget = PollBudget(5 * ONE_A_TICK)
    async with asyncio.timeout(60):
        for _ in range(5):
            turn = asyncio.create_task(budget.turn())
            await asyncio.sleep(0)
            assert turn.done()
    assert budget.delay_seconds == 0


async def test_polls_beyond_the_budget_take_turns_in_order():
    budget, begun = PollBudget(ONE_A_TICK), []

    async def poll(number: int) -> None:
        await budget.turn()
        begun.append(number)

    started = time.monotonic()
    tasks = [asyncio.create_task(poll(number)) for number in range(11)]
    await asyncio.sleep(0)
    assert (begun, budget.delay_seconds) == ([0], 10 * TICK)
    await asyncio.gather(*tasks)
    assert begun == list(range(11))
    assert time.monotonic() - started >= 9 * TICK  # one in each tick; the first of them may have begun before
    assert budget.delay_seconds == 0


async def test_what_a_busy_event_loop_missed_is_not_caught_up_with():
    budget = PollBudget(ONE_A_TICK)
    turns = [asyncio.create_task(budget.turn()) for _ in range(20)]
    await asyncio.sleep(0)
    time.sleep(20 * TICK)  # noqa: ASYNC251  the event loop is busy
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in turns) <= 3
    await asyncio.gather(*turns)


async def test_poll_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next():
    budget = PollBudget(ONE_A_TICK)
    first, gone, last = (asyncio.create_task(budget.turn()) for _ in range(3))
    await first
    gone.cancel()
    await last
    assert gone.cancelled()


async def test_in_a_large_pool_each_endpoint_is_polled_less_often_and_alike(until):
    source, store = Counts(), Datastore(SystemClock())
    store.replace(pool(20))
    collector = Collector(
        store, [Feed(source, (Length(),))], clock=SystemClock(), interval_seconds=0.001, budget=PollBudget(ONE_A_TICK)
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
        store, [Feed(source, (Length(),))], clock=SystemClock(), interval_seconds=0.001, budget=PollBudget(ONE_A_TICK)
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
    waits = [await poll.collect_once(endpoint, delay) for _ in range(8)]
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
    await poll.collect_once(endpoint, 3.0)
    source.refusing = frozenset({"e"})
    clock.advance(8.9)
    await poll.collect_once(endpoint, 3.0)
    assert store.snapshot().column(RUNNING)[0] == 4.0
    clock.advance(0.2)  # 9.1 s: three turns of 3 s
    await poll.collect_once(endpoint, 3.0)
    assert store.snapshot().column(RUNNING)[0] != 4.0


async def test_log_and_metrics_tell_that_endpoints_are_polled_less_often(until, monkeypatch):
    monkeypatch.setattr(capacity, "_GROWING_SECONDS", 0.05)
    source, store, intervals = Counts(), Datastore(SystemClock()), Intervals()
    store.replace(pool(100))
    collector = Collector(
        store,
        [Feed(source, (Length(),))],
        clock=SystemClock(),
        interval_seconds=0.01,
        budget=PollBudget(ONE_A_TICK),
        observer=intervals,
    )
    with capture_logs() as logs:
        await collector.start()
        await until(lambda: intervals.told)
        await collector.stop()
    (line,) = [line for line in logs if line["event"] == "endpoints are polled less often than asked"]
    assert (line["endpoints"], line["asked_seconds"]) == (100, 0.01)
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
