# SPDX-License-Identifier: Apache-2.0
"""Connections of the operator's ports: how many, which are cut off and counted, and none that is left behind."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from epp.runtime.http_connections import ConnectionCounts, Cut, OpenConnections
from epp.runtime.http_server import HttpLimits, HttpServer, response
from epp.telemetry.process_series import ConnectionSeries
from tests.support.half_open_scrapes import half_open_scrapes

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 24 * 2**20


async def answer(request: web.Request) -> web.Response:
    return response(LARGE if request.path == "/large" else b"page\n", {})


class Watched(ConnectionCounts):
    """Counts, and tells a test that waits for one."""

    def __init__(self, counts: ConnectionCounts) -> None:
        self._counts = counts
        self._changed = threading.Condition()

    def opened(self) -> None:
        with self._changing():
            self._counts.opened()

    def closed(self) -> None:
        with self._changing():
            self._counts.closed()

    def cut(self, cause: Cut) -> None:
        with self._changing():
            self._counts.cut(cause)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=20), f"waited in vain until {what}"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()


@contextlib.contextmanager
def listening(
    registry: CollectorRegistry | None = None, counts: ConnectionCounts | None = None, **limits: float
) -> Iterator[HttpServer]:
    counts = counts or ConnectionSeries(registry or CollectorRegistry()).of("metrics")
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    thread = HttpServer("127.0.0.1", 0, app, HttpLimits(**limits), name="page", counts=counts)
    try:
        yield thread
    finally:
        thread.close()


def connected(thread: HttpServer, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", thread.port), timeout=30)
    client.sendall(sent)
    return client


def value(registry: CollectorRegistry, what: str) -> float | None:
    return registry.get_sample_value(f"llm_d_epp_page_connections_{what}", {"port": "metrics"})


def cut(registry: CollectorRegistry, cause: str) -> float:
    labels = {"port": "metrics", "cause": cause}
    return registry.get_sample_value("llm_d_epp_page_connections_cut_total", labels) or 0.0


async def test_a_thousand_half_open_scrapes_are_all_answered():
    with listening() as thread:
        scraped = await half_open_scrapes(thread.port, 1_000)
    assert (scraped.connected, scraped.completed) == (1_000, 1_000)


def test_connections_beyond_the_limit_make_room_and_are_counted():
    registry = CollectorRegistry()
    counts = Watched(ConnectionSeries(registry).of("metrics"))
    with listening(registry, counts, connections=10) as thread, contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(thread, SCRAPE[:20]))
        counts.wait_for(lambda: value(registry, "total") == 50, "all are accepted")
        counts.wait_for(lambda: value(registry, "open") == 10, "all but 10 have ended")
        assert cut(registry, "made_room") == 40
    assert value(registry, "total") == 50
    assert value(registry, "open") == 0


@pytest.mark.parametrize(
    ("sent", "limits", "cause"),
    [
        (SCRAPE[:20], {"request_seconds": 0.1}, "request_timeout"),
        (b"", {"request_seconds": 0.1}, "request_timeout"),
        (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", {"response_seconds": 0.1}, "response_timeout"),
        (b"no HTTP\r\n\r\n", {}, "bad_request"),
    ],
    ids=["half a request", "nothing", "no reading", "no HTTP"],
)
def test_each_way_to_be_cut_off_is_counted(sent, limits, cause):
    registry = CollectorRegistry()
    counts = Watched(ConnectionSeries(registry).of("metrics"))
    with listening(registry, counts, **limits) as thread, connected(thread, sent):
        counts.wait_for(lambda: cut(registry, cause) == 1, f"{cause} is counted")


def test_connection_that_is_kept_for_the_next_request_is_not_said_to_be_cut_off():
    registry = CollectorRegistry()
    with listening(registry, request_seconds=0.1) as thread, connected(thread, SCRAPE) as client:
        while client.recv(65536):
            pass
        assert cut(registry, "request_timeout") == 0


def test_one_thread_serves_all():
    threads = threading.active_count()
    with listening() as thread, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(thread, SCRAPE))
        assert threading.active_count() == threads + 1


def test_closed_while_it_accepts_leaves_no_socket_to_the_garbage_collector():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        for number in range(40):
            with contextlib.ExitStack() as stack:
                with listening() as thread:
                    pushing = threading.Thread(target=lambda: _connect_many(thread.port, stack))
                    pushing.start()
                    time.sleep(number / 20_000)
                pushing.join()
        gc.collect()
    assert not [str(one.message) for one in found if "socket" in str(one.message)]


def _connect_many(port: int, stack: contextlib.ExitStack) -> None:
    with contextlib.suppress(OSError):
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))


def test_connection_accepted_as_the_port_closes_is_closed(monkeypatch):
    """The end comes between accepting a connection and serving it."""
    accepted: list[socket.socket] = []
    is_accepted, closing = threading.Event(), threading.Event()
    connect = asyncio.SelectorEventLoop.connect_accepted_socket

    async def late(loop, factory, sock):
        accepted.append(sock)
        is_accepted.set()
        await loop.run_in_executor(None, closing.wait, 20)
        return await connect(loop, factory, sock)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "connect_accepted_socket", late)
    with listening() as thread, connected(thread):
        assert is_accepted.wait(20)
        closer = threading.Thread(target=thread.close)
        closer.start()
        time.sleep(0.05)  # it may have told the thread to end by then, or tell it later: both are right
        closing.set()
        closer.join()
    assert [one.fileno() for one in accepted] == [-1]


class Fake:
    def __init__(self, host: str, since: float) -> None:
        self.host, self.since, self.busy, self.aborted = host, since, False, False

    def abort(self) -> None:
        self.aborted = True


@given(st.lists(st.tuples(st.sampled_from(["add", "begin", "end", "leave", "close"]), st.integers(0, 5)), max_size=60))
def test_who_makes_room_is_the_oldest_of_the_host_with_most(steps):
    connections = OpenConnections()
    present: list[Fake] = []
    for now, (step, number) in enumerate(steps):
        chosen = present[number % len(present)] if present else None
        if step == "add":
            present.append(Fake(f"host {number % 3}", now))
            connections.add(present[-1])
        elif chosen is None:
            assert not connections.close_one()
        elif step in {"begin", "end"}:
            connections.discard(chosen)
            chosen.busy, chosen.since = step == "begin", now
            connections.add(chosen)
        elif step == "leave":
            connections.discard(chosen)
            connections.discard(chosen)
            present.remove(chosen)
        else:
            hosts = [one.host for one in present]
            expected = min(present, key=lambda one: (-hosts.count(one.host), one.busy, one.since))
            assert connections.close_one()
            assert [one for one in present if one.aborted] == [expected]
            present.remove(expected)
        assert connections.count == len(present)
        assert set(connections.all) == set(present)
