# SPDX-License-Identifier: Apache-2.0
"""Endpoints are asked out of turn: as the connection to one ends, and where somebody wants to know."""

import asyncio
from itertools import pairwise

import pytest

from epp.framework import SystemClock
from epp.framework.datalayer import NotAskedError, PageError, UnreachableError
from epp.framework.snapshot import METRICS_AT, REACHABLE
from epp.pool.collectors.polling.poll_schedule import PollPriority, UrgentBudget
from epp.routing.datastore import Datastore
from epp.routing.outliers.record import Verdict
from tests.support.scripted_source import value

RARELY = 500.0
"""Seconds between two polls: more than any test takes."""
REFUSED, TIMED_OUT = UnreachableError("refused", refused=True), UnreachableError("late", refused=False)


async def polled_rarely(server, until, collecting, *feeds):
    """A server that has been polled once, and is not due again."""
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, *feeds, interval_seconds=RARELY)
    await until(lambda: not feeds or value(store, METRICS_AT) > 0)
    return store, collector


async def test_death_of_a_server_is_noticed_as_it_closes_its_connections(metrics_feed, server, until, collecting):
    store, collector = await polled_rarely(server, until, collecting, metrics_feed())
    verdicts = []
    collector.call_on_connection_end(lambda endpoint: collector.ask(endpoint, verdicts.append))
    await server.stop()
    await until(lambda: value(store, REACHABLE) == 0)
    assert verdicts == [Verdict.REFUSES]


async def test_question_is_answered_by_a_poll_of_its_own(metrics_feed, server, until, collecting):
    store, collector = await polled_rarely(server, until, collecting, metrics_feed())
    verdicts = []
    collector.ask(server.endpoint(), verdicts.append)
    await until(lambda: verdicts == [Verdict.ANSWERS])
    assert len(server.asked) == 2
    await server.stop()
    collector.ask(server.endpoint(), verdicts.append)
    await until(lambda: verdicts[1:] == [Verdict.REFUSES])
    assert value(store, REACHABLE) == 0


async def test_endpoint_that_no_feed_asks_is_connected_to(server, until, collecting):
    _, collector = await polled_rarely(server, until, collecting)
    verdicts = []
    collector.ask(server.endpoint(), verdicts.append)
    await until(lambda: verdicts == [Verdict.ANSWERS])
    assert server.asked == []


async def test_thousand_questions_are_few_polls(metrics_feed, server, until, collecting):
    _, collector = await polled_rarely(server, until, collecting, metrics_feed())
    verdicts = []
    for _ in range(1000):
        collector.ask(server.endpoint(), verdicts.append)
    await until(lambda: len(verdicts) == 1000)
    assert set(verdicts) == {Verdict.ANSWERS}
    assert len(server.asked) <= 3


async def test_endpoint_that_is_not_polled_is_silent(metrics_feed, server, until, collecting):
    store, collector = await polled_rarely(server, until, collecting, metrics_feed())
    verdicts = []
    server.hanging = True
    collector.ask(server.endpoint(), verdicts.append)
    store.replace([])
    assert verdicts == [Verdict.SILENT]  # it has left
    collector.ask(server.endpoint(), verdicts.append)
    assert verdicts == [Verdict.SILENT] * 2
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("outcome", "verdict", "answers_later_questions"),
    [
        (b"page", Verdict.ANSWERS, False),
        (REFUSED, Verdict.REFUSES, True),
        (PageError("404"), Verdict.ANSWERS, False),
        (TIMED_OUT, Verdict.SILENT, False),
        (NotAskedError("no descriptor"), Verdict.SILENT, False),
    ],
)
def test_poll_answers_questions_from_before_it_began_and_a_refusal_later_ones(
    outcome, verdict, answers_later_questions
):
    urgency, verdicts = PollPriority(), []
    urgency.began_at = 1.0
    urgency.ask(2.0, verdicts.append)
    urgency.settled(outcome)
    assert (verdicts, urgency.is_asked) == (([verdict], False) if answers_later_questions else ([], True))
    urgency.began_at = 2.5
    urgency.settled(outcome)
    assert (verdicts, urgency.is_asked) == ([verdict], False)


def test_server_that_always_closes_its_connections_is_asked_ever_more_rarely():
    urgency = PollPriority()
    asked = [tenth / 10 for tenth in range(600) if urgency.connection_ended(tenth / 10)]
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[-1] == pytest.approx(10, abs=0.11)
    assert len(asked) <= 13  # at 0 s, and after 0.1 s, 0.2 s, ... 6.4 s, and then 10 s each
    urgency.settled(REFUSED)  # it has died indeed
    assert urgency.connection_ended(60.0)


def test_polls_out_of_turn_are_limited_whatever_the_clock_does():
    budget = UrgentBudget()
    assert sum(budget.take(100.0) for _ in range(100)) == 32
    assert sum(budget.take(100.5) for _ in range(100)) == 32
    assert not budget.take(1.0)  # set back
    assert sum(budget.take(1.25) for _ in range(100)) == 16
