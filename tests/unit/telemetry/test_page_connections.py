# SPDX-License-Identifier: Apache-2.0
"""The operator's page under slow and greedy clients, seen from raw sockets."""

import contextlib
import gzip
import json
import select
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily
from structlog.testing import capture_logs

from epp.runtime.http_server import HttpLimits
from epp.telemetry.page import OperatorPage
from tests.support.operator_page import asked, opened

PATIENT = HttpLimits(request_seconds=300, body_seconds=300, response_seconds=300)
"""Cuts off no client while a test runs: who is answered has not waited for one that was cut off."""
LARGE_BYTES = 24 * 2**20
"""More than the kernel buffers for one connection."""
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_SCRAPE = SCRAPE[:-2] + b"Connection: close\r\n\r\n"
WAIT_SECONDS = 20.0
MOST_THREADS = 8
"""Of the page, however many clients there are."""


class Slow:
    """A metric whose value is not known before `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = threading.Event()
        self.renders = 0

    def collect(self):
        self.renders += 1
        self.asked.set()
        assert self.go.wait(30)
        return [GaugeMetricFamily("slow", "Slow.", value=self.renders)]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("answers", "All there is.", registry=registry).set(42)
    return registry


@pytest.fixture
def large_registry(registry) -> CollectorRegistry:
    value = "v" * 2**20
    gauge = Gauge("large", "A page of many bytes.", ["label"], registry=registry)
    for number in range(LARGE_BYTES // len(value)):
        gauge.labels(f"{number}{value}").set(number)
    return registry


@pytest.fixture
def page(registry) -> Iterator[OperatorPage]:
    with opened(registry) as page:
        yield page


def connected(page: OperatorPage, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", page.port), timeout=30)
    client.sendall(sent)
    return client


def received(client: socket.socket) -> bytes:
    """Read to the end of the connection."""
    return b"".join(iter(lambda: client.recv(2**16), b""))


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed the connection; what it sent before is read."""
    client.settimeout(0)
    try:
        while client.recv(2**20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


def wait_for_end(clients: list[socket.socket], count: int) -> None:
    """Wait until the server has closed the connections of so many."""
    deadline = time.monotonic() + WAIT_SECONDS
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while len(clients) - len(selector.get_map()) < count:
            events = selector.select(max(deadline - time.monotonic(), 0))
            assert events, f"{len(clients) - len(selector.get_map())} of {count} were closed in {WAIT_SECONDS} s"
            for key, _ in events:
                if is_closed(key.fileobj):
                    selector.unregister(key.fileobj)


def send_until_reset(client: socket.socket) -> None:
    """Send a byte every hundredth of a second, until the server is gone, which is how it says so."""
    deadline = time.monotonic() + WAIT_SECONDS
    poll = select.poll()
    poll.register(client, 0)  # errors alone, which need no reading
    while not poll.poll(10):
        assert time.monotonic() < deadline, "the server takes more and more"
        with contextlib.suppress(ConnectionError):
            client.send(b"x")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/favicon.ico", "/healthz/x"])
def test_other_paths_are_404_and_the_two_are_named(page, path):
    answer = asked(page, path)
    assert (answer.status, answer.body) == (404, b"not found: use /metrics or /healthz\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_405_and_the_two_are_named(page, path, method):
    status, headers, body = asked(page, path, method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert body == f"method {method} is not allowed: use GET or HEAD\n".encode()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/"])
def test_head_is_get_without_the_body_and_the_connection_goes_on(page, path):
    _, expected, body = asked(page, path)
    client = HTTPConnection("127.0.0.1", page.port, timeout=30)
    for _ in range(2):
        client.request("HEAD", path)
        response = client.getresponse()
        assert response.read() == b""
        assert int(response.headers["Content-Length"]) == len(body)
        assert response.headers["Content-Type"] == expected["Content-Type"]
    client.request("GET", path)
    assert client.getresponse().read() == body
    client.close()


@pytest.mark.parametrize(
    ("accept", "content_type", "last_line"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", b"answers 42.0"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
            b"# EOF",
        ),
        (
            "text/plain;version=1.0.0;escaping=allow-utf-8",
            "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
            b"answers 42.0",
        ),
        ("text/plain;version=new", "text/plain; version=0.0.4; charset=utf-8", b"answers 42.0"),
    ],
    ids=["default", "OpenMetrics", "plain text 1.0.0", "no such version"],
)
def test_format_is_the_one_that_the_client_accepts(page, accept, content_type, last_line):
    status, headers, body = asked(page, Accept=accept)
    assert (status, headers["Content-Type"]) == (200, content_type)
    assert body.splitlines()[-1] == last_line


def test_page_is_compressed_for_a_client_that_asks_for_it(page, registry):
    gauge = Gauge("long", "A page that becomes short.", ["label"], registry=registry)
    for number in range(100):
        gauge.labels(f"{number}{'v' * 1000}").set(number)
    _, headers, body = asked(page, Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    _, plain_headers, plain = asked(page)
    assert plain_headers["Content-Encoding"] is None
    assert gzip.decompress(body) == plain
    assert len(body) < len(plain) / 10


def test_metrics_can_be_asked_for_by_name(page, registry):
    Gauge("others", "Not asked for.", registry=registry)
    assert b"others" in asked(page)[2]
    assert b"others" not in asked(page, "/metrics?name[]=answers")[2]
    assert b"answers 42.0\n" in asked(page, "/metrics?name[]=answers")[2]


def test_requests_that_arrive_together_are_answered_in_order(page):
    with connected(page, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET /x HTTP/1.0\r\n\r\n") as client:
        first, second, third = (part.split(b"\r\n")[0] for part in received(client).split(b"HTTP/1.")[1:])
    assert (first, second, third) == (b"1 200 OK", b"1 200 OK", b"0 404 Not Found")


@pytest.mark.parametrize("sent", [b"what\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000])
def test_what_is_no_request_is_400_and_the_connection_ends(page, sent):
    with connected(page, sent) as client:
        assert received(client).splitlines()[0].endswith(b" 400 Bad Request")


def test_body_of_a_request_is_ignored(page):
    head = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    with connected(page, head + b"x" * 100_000 + ONE_SCRAPE) as client:
        first, second = (part.split(b"\r\n")[0] for part in received(client).split(b"HTTP/1.")[1:])
    assert (first, second) == (b"1 405 Method Not Allowed", b"1 200 OK")


GREEDY = {
    "silent": [b""] * 1_000,
    "byte by byte": [SCRAPE[:length] for length in range(1, len(SCRAPE))],
    "never reading": [SCRAPE] * 100,
    "asking for more than they read": [SCRAPE * 1_000] * 10,
    "with endless bodies": [CHUNKED + b"1\r\nx\r\n" * 100] * 40,
}


@pytest.mark.parametrize("sent", GREEDY.values(), ids=GREEDY)
@pytest.mark.slow
def test_greedy_clients_hold_up_no_other(large_registry, sent):
    threads = threading.active_count()
    with opened(large_registry, limits=PATIENT) as page, contextlib.ExitStack() as stack:
        asked(page)
        for each in sent:
            stack.enter_context(connected(page, each))
        for path in ("/healthz", "/metrics", "/healthz", "/metrics"):
            assert asked(page, path).status == 200
            assert threading.active_count() <= threads + MOST_THREADS


def test_scrape_under_way_outlives_idle_connections(registry):
    slow = Slow()
    registry.register(slow)
    with opened(registry, limits=HttpLimits(connections=4)) as page, contextlib.ExitStack() as stack:
        scraper = stack.enter_context(connected(page, ONE_SCRAPE))
        assert slow.asked.wait(30)
        clients = [stack.enter_context(connected(page)) for _ in range(20)]
        wait_for_end(clients, 17)
        slow.go.set()
        assert b"\nslow 1.0\n" in received(scraper)


def test_host_with_many_connections_loses_them_before_others(registry):
    with opened(registry, limits=HttpLimits(connections=4)) as page, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", page.port)
        modest = stack.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
        greedy = [stack.enter_context(connected(page)) for _ in range(20)]
        wait_for_end(greedy, 17)
        assert not is_closed(modest)


def test_client_that_sends_byte_by_byte_is_cut_off_in_time(registry):
    with opened(registry, limits=HttpLimits(request_seconds=0.5)) as page, connected(page, SCRAPE[:24]) as client:
        send_until_reset(client)


def test_scrapes_that_arrive_during_a_render_share_it(registry):
    slow = Slow()
    registry.register(slow)
    with opened(registry) as page, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(page, ONE_SCRAPE)) for _ in range(10)]
        assert slow.asked.wait(30)
        for _ in range(3):  # each takes its turn after what arrived before
            assert json.loads(asked(page, "/healthz")[2]) == {"ready": True}
        assert slow.renders == 1
        slow.go.set()
        pages = [received(client) for client in clients]
        assert all(b"\nslow 1.0\n" in page for page in pages)
        assert b"\nslow 2.0\n" in asked(page)[2]


def test_selections_of_metrics_that_many_ask_for_do_not_hold_up_the_whole_page(registry):
    slow = Slow()
    registry.register(slow)
    with opened(registry) as page, contextlib.ExitStack() as stack:
        scraper = stack.enter_context(connected(page, ONE_SCRAPE))
        assert slow.asked.wait(30)
        paths = [b"/metrics?name[]=answers&name[]=n%d" % number for number in range(50)]
        sent = [ONE_SCRAPE.replace(b"/metrics", path) for path in paths]
        clients = [stack.enter_context(connected(page, each)) for each in sent]
        assert all(b" 503 " in received(client) for client in clients[20:])
        slow.go.set()
        assert b"\nslow 1.0\n" in received(scraper)


def test_client_that_leaves_during_a_render_takes_it_from_no_other(registry):
    slow = Slow()
    registry.register(slow)
    with opened(registry) as page, connected(page, ONE_SCRAPE) as stays:
        connected(page, SCRAPE).close()
        assert slow.asked.wait(30)
        asked(page, "/healthz")
        slow.go.set()
        assert b"\nslow 1.0\n" in received(stays)


def test_page_that_cannot_be_rendered_is_500_and_the_next_one_is_tried_again(registry):
    class Broken:
        def collect(self):
            raise RuntimeError("no such page")

    registry.register(Broken())
    with opened(registry) as page, capture_logs():
        for _ in range(2):
            assert asked(page)[0] == 500
        assert asked(page, "/healthz")[0] == 200


def test_page_closes_while_clients_hold_connections(large_registry):
    with contextlib.ExitStack() as stack:
        with opened(large_registry, limits=PATIENT) as page:  # which would be waited for
            clients = [stack.enter_context(connected(page, sent)) for sent in (b"", SCRAPE[:9], SCRAPE)]
            asked(page, "/healthz")
        wait_for_end(clients, 3)
