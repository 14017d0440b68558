# SPDX-License-Identifier: Apache-2.0
import asyncio
import math
import socket

import msgspec
import pytest
import uvloop
from structlog.testing import capture_logs

from epp.collectors import Collector, CollectorObserver, Conditions
from epp.collectors.engines.metrics import CoreMetricsExtractor, MetricsDataSource, MetricsSourceParameters
from epp.collectors.polling.poll import Poll
from epp.collectors.polling.reachability import Reachability
from epp.collectors.polling.timetable import next_due
from epp.collectors.sources.dcgm import DcgmDataSource, DcgmExtractor, DcgmSourceParameters
from epp.datastore import Datastore
from epp.framework import Endpoint, ManualClock, SystemClock
from epp.framework.datalayer import Contact, DataSource, Extractor, Feed, PageError, Report, UnreachableError
from epp.framework.snapshot import GPU_UTILIZATION, KV_BLOCK_TOKENS, METRICS_AT, REACHABLE, RUNNING, WAITING

E = Endpoint("e", "10.0.0.1", 8000)
REFUSED = UnreachableError("refused", refused=True)
SILENT = UnreachableError("silent", refused=False)
PAGE = b"vllm:num_requests_waiting 3\n"


class Script(DataSource):
    """Answers from a list: pages are returned, errors raised."""

    plugin_type = "script"

    port = None
    interval_seconds = None

    def __init__(
        self, *answers: bytes | Exception, port: int | None = None, interval_seconds: float | None = None
    ) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[Endpoint] = []
        self.port = port
        self.interval_seconds = interval_seconds

    async def fetch(self, endpoint: Endpoint) -> bytes:
        self.asked.append(endpoint)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


class Counting(Script):
    """Answers at once, for ever."""

    async def fetch(self, endpoint: Endpoint) -> bytes:
        self.asked.append(endpoint)
        return PAGE


class Length(Extractor):
    """Reports the length of the page as running requests."""

    plugin_type = "length"

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        return Report({RUNNING: len(page)})


class Broken(Extractor):
    plugin_type = "broken"

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        raise KeyError("bug")


class Errors(CollectorObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def poll_error(self, source_type: str) -> None:
        self.seen.append((source_type,))

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        self.seen.append((source_type, extractor_type))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def store(clock) -> Datastore:
    store = Datastore(clock)
    store.replace([E])
    return store


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def poll_of(store, errors, clock):
    """Make a poll of E; those of one test share what they know of its reachability."""
    reachability = Reachability(store, E)

    def make(*answers: bytes | Exception, extractors=None, port=None) -> Poll:
        feed = Feed(Script(*answers, port=port), tuple(extractors or [CoreMetricsExtractor()]))
        return Poll(store, feed, reachability, clock=clock, interval_seconds=0.05, observer=errors)

    return make


def value(store: Datastore, column=WAITING, slot: int = 0) -> float:
    return float(store.snapshot().column(column)[slot])


async def test_page_fills_columns(store, poll_of):
    assert await poll_of(PAGE).collect_once(E) == 0.05
    assert (value(store), value(store, METRICS_AT)) == (3, 100.0)


async def test_bad_page_keeps_values_is_counted_each_time_and_logged_once(store, poll_of, errors):
    poll = poll_of(PAGE, PageError("answered 500"), PageError("answered 500"), PAGE, PageError("answered 500"))
    with capture_logs() as logs:
        for _ in range(5):
            await poll.collect_once(E)
    assert value(store) == 3
    assert errors.seen == [("script",)] * 3
    assert [entry["event"] for entry in logs] == ["endpoint not read", "endpoint read again", "endpoint not read"]
    assert logs[0]["reason"] == "answered 500"


async def test_numbers_of_a_page_that_is_gone_become_unknown_after_two_seconds(store, poll_of, clock):
    page = b'vllm:num_requests_waiting 3\nvllm:cache_config_info{block_size="16"} 1\n'
    poll = poll_of(page, *[PageError("answered 404")] * 3, page)
    await poll.collect_once(E)
    clock.advance(1.9)
    await poll.collect_once(E)
    assert value(store) == 3
    clock.advance(0.1)
    await poll.collect_once(E)
    assert math.isnan(value(store))
    assert value(store, KV_BLOCK_TOKENS) == 16  # a size, which the engine still has
    assert value(store, METRICS_AT) == 100.0
    clock.advance(1)
    await poll.collect_once(E)
    await poll.collect_once(E)
    assert value(store) == 3


async def test_numbers_of_a_page_that_no_extractor_can_read_become_unknown_too(store, poll_of, clock):
    poll = poll_of(PAGE, b"<html>", PAGE)
    await poll.collect_once(E)
    clock.advance(2)
    await poll.collect_once(E)
    assert math.isnan(value(store))
    await poll.collect_once(E)
    assert value(store) == 3


async def test_slowly_polled_numbers_stay_for_three_polls(store, errors, clock):
    feed = Feed(Script(PAGE, *[PageError("answered 500")] * 2), (CoreMetricsExtractor(),))
    poll = Poll(store, feed, Reachability(store, E), clock=clock, interval_seconds=10, observer=errors)
    await poll.collect_once(E)
    clock.advance(20)
    await poll.collect_once(E)
    assert value(store) == 3
    clock.advance(10)
    await poll.collect_once(E)
    assert math.isnan(value(store))


async def test_problem_of_another_kind_is_logged_although_there_was_one_before(poll_of):
    poll = poll_of(PageError("answered 404"), PageError("answered 404"), REFUSED, REFUSED, PageError("answered 404"))
    with capture_logs() as logs:
        for _ in range(5):
            await poll.collect_once(E)
    assert [entry["reason"] for entry in logs] == ["answered 404", "refused", "answered 404"]


async def test_endpoint_without_a_page_is_asked_less_and_less_often_up_to_once_a_second(poll_of):
    poll = poll_of(*[PageError("answered 404")] * 3, b"other 1\n", *[PageError("answered 404")] * 2, PAGE)
    waits = [await poll.collect_once(E) for _ in range(7)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.05])


async def test_condition_follows_what_the_last_polls_met(store, errors):
    conditions = Conditions()
    reachability = Reachability(store, E, conditions)
    answers = [PAGE, PageError("answered 404"), REFUSED, SILENT, SILENT, SILENT, REFUSED, PAGE]
    feed = Feed(Script(*answers), (CoreMetricsExtractor(),))
    poll = Poll(store, feed, reachability, clock=ManualClock(), interval_seconds=0.05, observer=errors)
    met = []
    for _ in answers:
        await poll.collect_once(E)
        ((_, condition),) = conditions.all
        met.append((condition.contact, condition.used))
    assert met == [
        (Contact.ANSWERS, True),
        (Contact.NO_PAGE, True),
        (Contact.REFUSED, False),
        (Contact.REFUSED, False),
        (Contact.REFUSED, False),
        (Contact.SILENT, False),  # the third timeout in a row
        (Contact.REFUSED, False),
        (Contact.ANSWERS, True),
    ]


async def test_endpoint_without_metrics_says_how_its_load_is_judged_and_what_to_do(store, errors):
    conditions = Conditions()
    feed = Feed(Script(PageError("answered 404")), (CoreMetricsExtractor(),))
    reachability = Reachability(store, E, conditions)
    poll = Poll(store, feed, reachability, clock=ManualClock(), interval_seconds=0.05, observer=errors)
    await poll.collect_once(E)
    ((_, condition),) = conditions.all
    assert condition.why == "answered 404; its load is judged by the requests that it was sent"
    assert condition.remedy == "enable its metrics, or set path or port of script"


async def test_condition_changes_once_for_many_polls_of_one_kind(store, errors):
    conditions, changes = Conditions(), []
    conditions.subscribe(lambda: changes.append(conditions.all[0][1].contact))
    reachability = Reachability(store, E, conditions)
    for error in [REFUSED] * 3 + [SILENT] * 4:
        reachability.missed(error)
    reachability.answered()
    assert changes == [Contact.NOT_ASKED, Contact.REFUSED, Contact.SILENT, Contact.ANSWERS]


async def test_endpoint_that_no_feed_asks_is_probed(server, until, collecting):
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, metrics_feed(port=1))
    contacts = lambda: [condition.contact for _, condition in collector.conditions.all]  # noqa: E731
    await until(lambda: contacts() == [Contact.ANSWERS])
    await server.stop()
    await until(lambda: value(store, REACHABLE) == 0)
    assert contacts() == [Contact.REFUSED]
    await server.start()
    await until(lambda: value(store, REACHABLE) == 1)
    assert server.asked == []


async def test_server_without_metrics_that_dies_is_unreachable(server, until, collecting):
    server.status = 404
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, metrics_feed())
    contacts = lambda: [condition.contact for _, condition in collector.conditions.all]  # noqa: E731
    await until(lambda: contacts() == [Contact.NO_PAGE])
    assert value(store, REACHABLE) == 1
    await server.stop()
    await until(lambda: contacts() == [Contact.REFUSED])
    assert value(store, REACHABLE) == 0
    await server.start()
    await until(lambda: contacts() == [Contact.NO_PAGE])


async def test_https_endpoint_that_joins_a_gateway_without_tls_is_not_used(server, collecting):
    store = Datastore(SystemClock())
    collector = await collecting(store)
    collector.limit_tls(by_name=True, addresses=["127.0.0.2"])
    plain = server.endpoint("plain")
    named, known, new = (
        Endpoint(name, address, 1, host=host, tls=True)
        for name, address, host in (("named", "127.0.0.1", "a"), ("known", "127.0.0.2", ""), ("new", "127.0.0.1", ""))
    )
    store.replace([plain, named, known, new])
    used = {endpoint.name: condition.used for endpoint, condition in collector.conditions.all}
    assert used == {"plain": True, "named": True, "known": True, "new": False}
    assert value(store, REACHABLE, slot=3) == 0
    collector.limit_tls(by_name=False, addresses=())
    store.replace([Endpoint("plain", "127.0.0.1", server.port, host="a", tls=True)])  # the same one, over TLS now
    ((_, condition),) = collector.conditions.all
    assert (condition.contact, condition.remedy) == (Contact.TLS_UNAVAILABLE, "restart the gateway")


async def test_refusal_makes_the_endpoint_unreachable_at_once_and_a_page_brings_it_back(store, poll_of):
    poll = poll_of(PAGE, REFUSED, PAGE)
    await poll.collect_once(E)
    await poll.collect_once(E)
    assert value(store, REACHABLE) == 0
    assert value(store) == 3  # what was known stays
    await poll.collect_once(E)
    assert value(store, REACHABLE) == 1


async def test_silence_makes_the_endpoint_unreachable_the_third_time_in_a_row(store, poll_of):
    poll = poll_of(SILENT, SILENT, PAGE, SILENT, SILENT, SILENT)
    reachable = []
    for _ in range(6):
        await poll.collect_once(E)
        reachable.append(value(store, REACHABLE))
    assert reachable == [1, 1, 1, 1, 1, 0.5]


async def test_bad_page_shows_that_the_endpoint_can_be_reached(store, poll_of):
    poll = poll_of(REFUSED, PageError("answered 500"))
    await poll.collect_once(E)
    await poll.collect_once(E)
    assert value(store, REACHABLE) == 1


async def test_unreachable_endpoint_is_asked_less_and_less_often_up_to_once_a_second(poll_of):
    poll = poll_of(*[REFUSED] * 6, PAGE)
    waits = [await poll.collect_once(E) for _ in range(7)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.05])


async def test_failure_beside_the_endpoint_says_nothing_of_the_endpoint(store, poll_of):
    exporter = poll_of(REFUSED, REFUSED, SILENT, SILENT, SILENT, port=9400)
    for _ in range(5):
        await exporter.collect_once(E)
    assert value(store, REACHABLE) == 1


async def test_page_from_beside_the_endpoint_does_not_bring_it_back(store, poll_of):
    await poll_of(REFUSED).collect_once(E)
    await poll_of(b"xx", extractors=(Length(),), port=9400).collect_once(E)
    assert value(store, RUNNING) == 2
    assert value(store, REACHABLE) == 0


async def test_one_extractor_that_fails_does_not_silence_the_others(store, poll_of, errors):
    poll = poll_of(PAGE, PAGE, extractors=[Broken(), Length()])
    with capture_logs() as logs:
        await poll.collect_once(E)
        await poll.collect_once(E)
    assert value(store, RUNNING) == len(PAGE)
    assert errors.seen == [("script", "broken")] * 2
    (entry,) = logs
    assert entry["extractor"] == "broken"
    assert entry["reason"].startswith("KeyError: 'bug' (")


async def test_source_with_a_bug_is_counted_and_asked_again(store, poll_of, errors):
    poll = poll_of(RuntimeError("bug"), PAGE)
    with capture_logs() as logs:
        assert await poll.collect_once(E) == 0.05
        await poll.collect_once(E)
    assert errors.seen == [("script",)]
    assert logs[0]["reason"].startswith("RuntimeError: bug (")
    assert (value(store), value(store, REACHABLE)) == (3, 1)


@pytest.mark.parametrize(
    ("due", "wait", "now", "expected"),
    [
        (10.0, 0.5, 10.1, 10.5),  # in time: the beat is kept, whatever the page took
        (10.0, 0.5, 9.9, 10.5),
        (10.0, 0.5, 11.2, 11.5),  # beats at 10.5 and 11.0 were missed
        (10.0, 0.5, 10.5, 11.0),
    ],
)
def test_beats_are_at_a_fixed_rate_and_missed_ones_are_skipped(due, wait, now, expected):
    assert next_due(due, wait, now) == expected


def metrics_feed(**parameters: object) -> Feed:
    source = MetricsDataSource(msgspec.convert(parameters, MetricsSourceParameters))
    return Feed(source, (CoreMetricsExtractor(),))


async def test_server_that_stops_and_starts_again_goes_and_comes_back(server, until, collecting):
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, metrics_feed())
    await until(lambda: value(store) == 3)
    await server.stop()
    await until(lambda: value(store, REACHABLE) == 0)
    assert len(store.snapshot().available) == 0
    server.page = b"vllm:num_requests_waiting 5\n"
    await server.start()
    await until(lambda: value(store, REACHABLE) == 1)
    await until(lambda: value(store) == 5)


async def test_server_that_answers_500_stays_reachable_and_keeps_its_numbers(server, until, collecting, errors):
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, metrics_feed(), observer=errors)
    await until(lambda: value(store) == 3)
    server.status = 500
    await until(lambda: len(errors.seen) >= 3)
    assert (value(store), value(store, REACHABLE)) == (3, 1)
    assert set(errors.seen) == {("metrics-data-source",)}


async def test_server_that_hangs_becomes_unreachable(server, until, collecting):
    server.hanging = True
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, metrics_feed(timeout="20ms"))
    await until(lambda: value(store, REACHABLE) == 0.5)
    assert len(server.asked) >= 3


async def test_polls_follow_the_pool(server, until, collecting):
    store = Datastore(SystemClock())
    a, b = server.endpoint("a"), server.endpoint("b")
    collector = await collecting(store, metrics_feed())
    assert collector.feed_count == 0
    store.replace([a, b])
    assert collector.feed_count == 2
    await until(lambda: value(store, slot=0) == value(store, slot=1) == 3)
    store.replace([b])
    await until(lambda: collector.feed_count == 1)
    assert math.isnan(value(store, slot=0))
    with socket.socket() as deaf:  # bound, so nobody else listens there, but not listening
        deaf.bind(("127.0.0.1", 0))
        moved = Endpoint("b", "127.0.0.1", deaf.getsockname()[1])  # the same name elsewhere is another endpoint
        store.replace([moved])
        await until(lambda: value(store, REACHABLE, slot=store.snapshot().slots[0]) == 0)


async def test_stopped_collector_does_not_follow_the_pool(server, collecting):
    store = Datastore(SystemClock())
    collector = await collecting(store, metrics_feed())
    await collector.stop()
    store.replace([server.endpoint()])
    assert collector.feed_count == 0


async def test_endpoint_that_gets_another_label_is_asked_with_it(until, collecting):
    source = Counting()
    store = Datastore(SystemClock())
    store.replace([E])
    await collecting(store, Feed(source, (Length(),)))
    await until(lambda: source.asked)
    store.replace([Endpoint(E.name, E.address, E.port, labels={"a": "b"})])
    await until(lambda: source.asked[-1].labels == {"a": "b"})


async def test_exporter_that_fails_beside_an_endpoint_takes_nothing_with_it(server, until, collecting, errors):
    with socket.socket() as deaf:  # bound, so nobody else listens there, but not listening
        deaf.bind(("127.0.0.1", 0))
        exporter = DcgmDataSource(DcgmSourceParameters(port=deaf.getsockname()[1], interval="10ms"))
        store = Datastore(SystemClock())
        store.replace([server.endpoint()])
        await collecting(store, metrics_feed(), Feed(exporter, (DcgmExtractor(),)), observer=errors)
        await until(lambda: errors.seen.count(("dcgm-data-source",)) >= 3)
    assert value(store, REACHABLE) == 1
    await until(lambda: value(store) == 3)


async def test_exporter_beside_an_endpoint_is_read(server, until, collecting):
    server.page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\n'
    exporter = DcgmDataSource(DcgmSourceParameters(port=server.port, interval="10ms"))
    endpoint = Endpoint("e", "127.0.0.1", 1)
    store = Datastore(SystemClock())
    store.replace([endpoint])
    await collecting(store, Feed(exporter, (DcgmExtractor(),)))
    await until(lambda: value(store, GPU_UTILIZATION) == 0.5)
    assert math.isnan(value(store, METRICS_AT))  # the engine has said nothing yet


async def test_slow_source_does_not_hold_up_another(server, until, collecting):
    class Stuck(Script):
        async def fetch(self, endpoint: Endpoint) -> bytes:
            self.asked.append(endpoint)
            await asyncio.Event().wait()
            return b""

    stuck = Stuck()
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, Feed(stuck, (Length(),)), metrics_feed())
    assert collector.feed_count == 2
    await until(lambda: stuck.asked and len(server.asked) >= 3)


def test_interval_of_no_length_is_refused(store, clock):
    with pytest.raises(ValueError, match="source 'script': an interval of 0 s is too short"):
        Collector(store, [Feed(Script(interval_seconds=0), ())], clock=clock)


def test_runs_under_uvloop():
    async def collect() -> float:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + PAGE)
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        store = Datastore(SystemClock())
        store.replace([Endpoint("e", "127.0.0.1", listening.sockets[0].getsockname()[1])])
        feed = metrics_feed()
        collector = Collector(store, [feed], clock=SystemClock(), interval_seconds=0.01)
        await collector.start()
        while math.isnan(value(store)):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
        listening.close()
        while value(store, REACHABLE) == 1:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.005)
        await collector.stop()
        await feed.source.close()
        return value(store)

    assert uvloop.run(collect()) == 3
