# SPDX-License-Identifier: Apache-2.0
"""Objects stay in effect through all that goes wrong with a watch, and are right afterwards."""

import asyncio

import pytest
from structlog.testing import capture_logs

from epp.kube.collection import Delta
from epp.kube.watched import WatchState
from tests.support.kube.kube_server import cut, line_of, no_widgets, shows, silence, with_lines, with_status
from tests.support.waiting import until


@pytest.mark.parametrize(
    "trouble",
    [
        cut,
        with_lines(b"garbage\n"),
        with_lines(line_of("ERROR", {"code": 500, "message": "unable to decode an event"})),
        with_lines(line_of("MODIFIED", {"metadata": []})),
        with_status(500, "<html>a proxy</html>"),
        with_status(400, '{"code": 400, "message": "resourceVersion: Invalid value"}'),
        with_status(504, '{"code": 504, "reason": "Timeout", "message": "Too large resource version"}'),
        with_status(429, "", retry_after="1"),
        with_status(401, "Unauthorized"),
        with_status(403),
        with_status(410),
        with_status(404),
    ],
    ids=["cut", "garbage", "error event", "no object", "500", "400", "504", "429", "401", "403", "410", "404"],
)
async def test_objects_stay_through_trouble_and_are_right_afterwards(server, watched, start, trouble):
    await server.put("a", "red")
    start()
    await shows(watched, a="red")
    await until(lambda: server.watches, "the watch is open")
    heard: list[Delta[str]] = []
    watched.subscribe(heard.append)
    server.faults.append(trouble)
    await server.end_watches()
    await server.put("b", "green")
    await shows(watched, a="red", b="green")
    assert not any(delta.removed for delta in heard)
    await until(lambda: watched.state is WatchState.CURRENT, "the objects are up to date")


@pytest.mark.parametrize(
    ("trouble", "lists"),
    [
        (with_status(500), 2),
        (with_status(400), 2),
        (with_lines(line_of("ERROR", {"code": 500})), 2),
        (with_status(429), 1),
        (with_status(503), 1),
    ],
)
async def test_all_objects_are_listed_again_unless_the_server_is_overloaded(server, watched, start, trouble, lists):
    start()
    await until(lambda: server.watches, "the watch is open")
    server.faults.append(trouble)
    await server.end_watches()
    await until(lambda: len(server.watches) >= 3, "another watch is open")
    assert watched.lists == lists


async def test_lasting_errors_settle_what_could_not_be_listed_yet(server, watched, start, clock):
    server.faults += [with_status(500, "conversion webhook failed")] * 10_000
    start()
    waiting = asyncio.create_task(watched.settled())
    await until(lambda: len(server.faults) < 9_995, "the list fails")
    assert not waiting.done()
    clock.advance(31)
    await waiting
    assert watched.state is WatchState.STALE


async def test_unreachable_server_never_settles(server, watched, start, clock):
    server.faults += [cut] * 10_000
    start()
    waiting = asyncio.create_task(watched.settled())
    await until(lambda: len(server.faults) < 9_995, "the list fails")
    clock.advance(1000)
    await until(lambda: len(server.faults) < 9_985, "the list fails again")
    assert not waiting.done()
    waiting.cancel()


async def test_silent_watch_is_replaced_without_a_word(server, watched, start, monkeypatch):
    monkeypatch.setattr("epp.kube.access._SILENCE_SECONDS", 0.05)
    server.faults += [no_widgets, silence, silence]
    with capture_logs() as logs:
        start()
        await until(lambda: len(server.watches) >= 3, "another watch is open")
    assert watched.lists == 1
    assert not logs
