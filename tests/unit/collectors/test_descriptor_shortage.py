# SPDX-License-Identifier: Apache-2.0
"""Polling when file descriptors are few, with the real limit of this process."""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, NotAskedError
from epp.framework.snapshot import ANSWERS, REACHABLE
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor
from epp.pool.collectors.polling import collector as capacity
from epp.pool.collectors.polling.conditions import Reachability
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Errors, Script, collect_once


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], None]]:
    """Set the soft limit of this process; it is put back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def next_descriptor() -> int:
    number = os.dup(0)
    os.close(number)
    return number


class Starved(Script):
    plugin_type = "starved"

    async def fetch(self, endpoint: Endpoint) -> bytes:
        raise NotAskedError("no file descriptor is free")


async def test_page_is_not_asked_for_with_a_descriptor_kept_for_others(server, source, soft_limit, next_descriptor):
    soft_limit(2 * next_descriptor)  # half is kept
    with pytest.raises(NotAskedError, match="all free file descriptors are reserved for listeners"):
        await source().fetch(server.endpoint())
    soft_limit(4 * next_descriptor)
    assert await source().fetch(server.endpoint()) == server.page


async def test_connection_in_the_last_part_of_what_polling_may_use_is_closed_after_the_page(
    server, source, soft_limit, next_descriptor
):
    for most in range(2 * next_descriptor, 4 * next_descriptor):
        soft_limit(most)
        client = source().client_for(server.endpoint())
        with contextlib.suppress(NotAskedError), contextlib.closing(client):
            for _ in range(3):
                await client.page()
            break
    assert len(server.ports) >= 3  # the first limit that lets a page be asked for leaves no connection to be kept


async def test_thread_that_opens_files_takes_no_descriptor_that_a_poll_waited_for(
    server, source, soft_limit, next_descriptor
):
    stop = threading.Event()

    def open_files() -> None:
        while not stop.is_set():
            os.close(os.dup(0))

    for most in range(2 * next_descriptor, 4 * next_descriptor):
        soft_limit(most)
        with contextlib.suppress(NotAskedError):
            await source().fetch(server.endpoint())
            break  # one descriptor is left
    thread = threading.Thread(target=open_files)
    thread.start()
    try:
        for _ in range(20):
            assert await source().fetch(server.endpoint()) == server.page
    finally:
        stop.set()
        thread.join()


async def test_endpoint_that_could_not_be_asked_is_not_lost():
    store, endpoint, errors = Datastore(SystemClock()), Endpoint("e", "10.0.0.1", 8000), Errors()
    store.replace([endpoint])
    feed, reachability = Feed(Starved(), (CoreMetricsExtractor(),)), Reachability(store, endpoint)
    poll = Poll(store, feed, reachability, clock=SystemClock(), interval_seconds=0.05, observer=errors)
    with capture_logs() as logs:
        waits = [await collect_once(poll, endpoint) for _ in range(6)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert errors.seen == [("starved",)] * 6
    assert store.snapshot().column(REACHABLE)[0] == ANSWERS
    assert [(line["event"], line["reason"]) for line in logs] == [("endpoint not read", "no file descriptor is free")]


async def test_collector_warns_when_the_pool_outgrows_the_descriptors_and_when_it_grows_again(
    collecting, soft_limit, next_descriptor, monkeypatch, until
):
    monkeypatch.setattr(capacity, "_GROWING_SECONDS", 0.01)
    monkeypatch.setattr("epp.pool.collectors.tagging.STRETCH_SECONDS", 60.0)  # a change is applied at once
    soft_limit(2 * next_descriptor)
    store, feed, collector = Datastore(SystemClock()), Feed(Starved(), (CoreMetricsExtractor(),)), None
    judged = []

    class Judged(CollectorObserver):
        def poll_interval(self, seconds: float) -> None:
            judged.append(0 if collector is None else collector.feed_count)

    async def change(size: int) -> None:
        store.replace([Endpoint(f"e{number}", "127.0.0.1", 1) for number in range(size)])
        await until(lambda: judged and judged[-1] == size)

    with capture_logs() as logs:
        collector = await collecting(store, feed, interval_seconds=60, observer=Judged())
        for size in (next_descriptor, next_descriptor - 1, next_descriptor, next_descriptor + 1):
            await change(size)
        soft_limit(20 * next_descriptor)
        await change(next_descriptor + 2)
        soft_limit(2 * next_descriptor)
        await collector.replace([Feed(Starved(), (CoreMetricsExtractor(),)), Feed(Starved(), ())])
        await until(lambda: judged[-1] == 2 * (next_descriptor + 2))
    warned = [(line["endpoints"], line["problem"].split(",")[0]) for line in logs if "too few" in line["event"]]
    assert warned == [
        (next_descriptor, f"polling needs {next_descriptor} connections"),
        (next_descriptor + 1, f"polling needs {next_descriptor + 1} connections"),
        (next_descriptor + 2, f"polling needs {2 * (next_descriptor + 2)} connections"),
    ]
