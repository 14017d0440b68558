# SPDX-License-Identifier: Apache-2.0
"""Servers whose pages exceed a limit: how much of a page is read, and which problem is reported."""

import asyncio
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Contact, Feed
from epp.framework.snapshot import LORA, MODELS, WAITING
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource, MetricsSourceParameters
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.pool.collectors.sources.http import ModelsDataExtractor, ModelsDataSource, ModelsSourceParameters
from epp.pool.collectors.sources.response_parser import InvalidResponseError, Reading, WholePage
from epp.pool.settings import PageLimits
from epp.routing.datastore import Datastore
from tests.support.hostile_servers import HONEST, answering, answers, endless, whole


class Limited(CollectorObserver):
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def page_limited(self, source_type: str, limit: str) -> None:
        self.seen[limit] += 1


@pytest.fixture
def store() -> Datastore:
    return Datastore(SystemClock())


def metrics(timeout: str = "60s") -> Feed:
    return Feed(MetricsDataSource(MetricsSourceParameters(timeout=timeout)), (CoreMetricsExtractor(),))


def models() -> Feed:
    return Feed(ModelsDataSource(ModelsSourceParameters(timeout="60s")), (ModelsDataExtractor(),))


@pytest.fixture
def settled(collecting, until, store):
    """Poll a server until its state is known; return its condition, what was counted, and the collector."""

    async def poll(server, feed=None, **limits: int):
        store.replace([Endpoint("e", "127.0.0.1", server.port)])
        seen = Limited()
        collector = await collecting(store, feed or metrics(), observer=seen, limits=PageLimits(**limits))
        await until(lambda: collector.conditions.all[0][1].contact is not Contact.NOT_ASKED)
        return collector.conditions.all[0][1], set(seen.seen), collector

    return poll


def series(name: str, count: int) -> bytes:
    return b"".join(b'%b{n="%d"} 1\n' % (name.encode(), number) for number in range(count))


@pytest.mark.parametrize(
    ("kind", "contact", "limit"),
    [
        ("honest", Contact.ANSWERS, None),
        ("series", Contact.ANSWERS, None),
        ("adapters", Contact.ANSWERS, None),
        ("one family", Contact.READ_IN_PART, "family_series"),
        ("long value", Contact.READ_IN_PART, "series_bytes"),
        ("many labels", Contact.READ_IN_PART, "series_bytes"),
        ("one line", Contact.ANSWERS, None),
        ("too large", Contact.NO_PAGE, "page_bytes"),
        ("compressed", Contact.NO_PAGE, None),
        ("tiny chunks", Contact.NO_PAGE, "page_chunks"),
        ("endless", Contact.NO_PAGE, "page_bytes"),
        ("endless head", Contact.NO_PAGE, None),
        ("endless trailer", Contact.NO_PAGE, "page_chunks"),
        ("trickle", Contact.NO_PAGE, "page_seconds"),
    ],
)
async def test_hostile_page_is_read_as_far_as_limits_allow(settled, store, kind, contact, limit):
    async with answering(answers()[kind]()) as server:
        condition, seen, _ = await settled(server, metrics("1s" if limit == "page_seconds" else "60s"))
    assert condition.contact is contact, condition
    assert condition.used
    assert seen == ({limit} if limit else set())
    assert bool(condition.remedy) == (contact is not Contact.ANSWERS)
    if contact in {Contact.ANSWERS, Contact.READ_IN_PART}:
        assert store.snapshot().column(WAITING)[0] >= 3
    if kind == "adapters":  # the newest of 80,000
        assert store.snapshot().records(LORA).values[0].running == {"a-79999"}


@pytest.mark.parametrize(
    ("limits", "contact", "why", "flag"),
    [
        ({"family_series": 10}, Contact.READ_IN_PART, "more than 10 series", "--max-page-series"),
        ({"page_bytes": 1000}, Contact.NO_PAGE, "larger than 1000 bytes", "--max-page-size"),
    ],
)
async def test_limits_are_those_that_were_set_and_the_remedy_names_the_flag(settled, limits, contact, why, flag):
    page = HONEST + series("vllm:num_requests_waiting_x", 50) + series("vllm:prefix_cache_hits_total", 11)
    async with answering(whole(page)) as server:
        condition, seen, _ = await settled(server, **limits)
    assert (condition.contact, seen) == (contact, set(limits))
    assert why in condition.why
    assert flag in condition.remedy


async def test_server_that_mends_its_page_is_well_again(settled, until):
    async with answering(whole(HONEST + series("vllm:prefix_cache_hits_total", 2_000))) as server:
        condition, _, collector = await settled(server)
        assert condition.contact is Contact.READ_IN_PART
        server.answer = whole(HONEST)
        await until(lambda: collector.conditions.all[0][1].contact is Contact.ANSWERS)


async def test_server_that_is_well_every_other_time_is_not_logged_each_time(settled, until):
    good, bad = whole(HONEST), whole(HONEST * 10)

    async def write(writer: asyncio.StreamWriter) -> None:
        await (bad if server.asked % 2 else good)(writer)

    with capture_logs() as logs:
        async with answering(write) as server:
            await settled(server, page_bytes=len(HONEST))
            await until(lambda: server.asked >= 40)
    assert 1 <= sum(entry["event"] == "endpoint not read" for entry in logs) <= 6


async def test_server_whose_pages_cost_much_is_asked_less_often(collecting, until, store):
    async with answering(answers()["adapters"]()) as costly, answering(whole(HONEST)) as cheap:
        store.replace([Endpoint("costly", "127.0.0.1", costly.port), Endpoint("cheap", "127.0.0.1", cheap.port)])
        await collecting(store, metrics(), interval_seconds=0.05)
        await until(lambda: costly.finished >= 1 and cheap.asked >= 10)
        assert costly.asked < cheap.asked / 3


@pytest.mark.parametrize("kind", ["too many models", "deep JSON", "wide JSON", "long models"])
async def test_list_of_models_made_to_be_expensive(settled, store, kind):
    async with answering(answers()[kind]()) as server:
        condition, _, _ = await settled(server, models())
    assert condition.used
    assert not store.snapshot().records(MODELS).values[0]


async def test_adapters_of_a_server_are_bounded_in_number_and_length():
    names = ",".join([*(f"a{number}" for number in range(100_000)), "x" * 300])
    page = f'vllm:lora_requests_info{{running_lora_adapters="{names}",waiting_lora_adapters="{"y" * 257},z"}} 1\n'
    report = CoreMetricsExtractor().extract(page.encode(), Endpoint("e", "10.0.0.1", 8000))
    adapters = report.attributes[LORA]
    assert (len(adapters.running), adapters.waiting) == (1000, {"z"})


@pytest.mark.parametrize(
    ("size", "limits", "reason", "remedy"),
    [
        (
            3 * 2**20,
            {},
            "larger than 2097152 bytes",
            "check the path of the source: pages of its kind are not so large",
        ),
        (2000, {"page_bytes": 1000}, "larger than 1000 bytes", "--max-page-size"),
    ],
    ids=["limit of the source", "lower limit of the operator"],
)
async def test_too_long_list_of_models_is_explained_with_the_limit_that_it_exceeds(
    settled, size, limits, reason, remedy
):
    async with answering(whole(b'{"data":[' + b" " * size + b"]}")) as server:
        condition, seen, _ = await settled(server, models(), **limits)
    assert reason in condition.why
    assert remedy in condition.remedy
    assert seen == {"page_bytes"}


async def test_all_whole_pages_together_are_limited_and_small_ones_come_through(collecting, until, store):
    small = b'{"data":[{"id":"a"}]}'
    stuck = endless(b"", head=b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2**20, pause_seconds=0.1)
    async with answering(stuck) as first, answering(stuck) as second, answering(whole(small)) as third:
        store.replace([Endpoint(name, "127.0.0.1", server.port) for name, server in (("a", first), ("b", second))])
        seen, feed = Limited(), models()
        await collecting(store, feed, observer=seen, limits=PageLimits(arriving_bytes=1_500_000))
        await until(lambda: seen.seen["pages_bytes"])
        await until(lambda: feed.source.reading.incomplete_bytes == 2**20 - 64 * 1024)  # what one of them holds
        store.update([Endpoint("c", "127.0.0.1", third.port)])
        await until(lambda: frozenset({"a"}) in store.snapshot().records(MODELS).values)
        store.replace([])
        await until(lambda: not feed.source.reading.incomplete_bytes)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.sampled_from(["begin", "end"]), st.integers(1, 90_000))), max_size=40
    )
)
def test_whole_pages_give_back_what_they_took(steps):
    """The first 64 KiB of each are not counted; a page that was refused is begun anew, as its connection is closed."""
    reading = Reading(PageLimits(arriving_bytes=100_000))
    pages = [WholePage(reading) for _ in range(3)]
    sizes = [0, 0, 0]
    for which, step in steps:
        page = pages[which]
        if step == "begin":
            page.begin()
            sizes[which] = 0
        elif step == "end":
            assert len(page.end()) == sizes[which]
            sizes[which] = 0
        else:
            others = sum(max(size - 65_536, 0) for number, size in enumerate(sizes) if number != which)
            fits = sizes[which] + step <= 65_536 or others + sizes[which] + step - 65_536 <= 100_000
            try:
                page.feed(bytes(step))
                assert fits
                sizes[which] += step
            except InvalidResponseError:
                assert not fits
                page.begin()
                sizes[which] = 0
        assert reading.incomplete_bytes == sum(max(size - 65_536, 0) for size in sizes)


async def test_page_with_impossible_values_is_shown_as_read_in_part(settled, store):
    page = b"vllm:num_requests_waiting -5\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.1\n"
    async with answering(whole(page)) as server:
        condition, _, _ = await settled(server)
    assert condition.contact is Contact.READ_IN_PART
    assert condition.why == "the page has impossible values: vllm:num_requests_waiting is -5; they count as unknown"
    assert math.isnan(store.snapshot().column(WAITING)[0])
