# SPDX-License-Identifier: Apache-2.0
"""Large pages, of which only the lines of wanted series are read, within limits."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, PageError, Report
from epp.framework.snapshot import RUNNING
from epp.pool.collectors import page_limits as metric_filter
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource
from epp.pool.collectors.page_limits import LARGE_BYTES, Limit, MetricFilter
from epp.pool.settings import PageLimits
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Length, value

PAGE = (Path(__file__).parents[2] / "data" / "vllm-0.32" / "metrics-busy-lora.txt").read_bytes()
LIMITS = PageLimits()
LORA_INFO = "vllm:lora_requests_info"
OTHERS = b"other 1\n" * (LARGE_BYTES // 8)
lines = st.sampled_from(
    ["a 1", 'a{x="y"} 2', "a\t3", "ab 4", "a_b 5", "b 6", "# TYPE a gauge", "", 'c{x="\\na 7"} 8', "a", "a" * 20]
)


def sifted(found: MetricFilter, page: bytes, *places: int) -> bytes:
    """Pass a page in pieces that end at these places."""
    found.begin()
    edges = [0, *sorted({min(place, len(page)) for place in places}), len(page)]
    for start, end in pairwise(edges):
        found.feed(page[start:end])
    return found.end()


def outcome(extractor: CoreMetricsExtractor, page: bytes) -> Report | str:
    try:
        return extractor.extract(page, Endpoint("e", "10.0.0.1", 8000))
    except PageError as error:
        return str(error)


@given(st.lists(lines), st.sampled_from(["", "\n"]), st.lists(st.integers(0, 200)), st.integers(1, 60))
def test_lines_of_the_names_are_found_however_the_page_is_cut(found, end, places, size):
    page = ("\n".join(found) + end).encode()
    wanted = [line for line in found if line.startswith(("a ", "a{", "a\t", "b "))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_filter, "LARGE_BYTES", 0)
        patch.setattr(metric_filter, "_SLICE_BYTES", size)
        left = sifted(MetricFilter(["a", "b"], LIMITS), page, *places).decode()
        assert left == "\n".join(wanted) if wanted else page.decode().startswith(left)


NAMES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:cache_config_info", LORA_INFO, "vllm:num_x")
series = st.tuples(
    st.sampled_from(["", '{engine="0"}', '{engine="1",a="}"}', '{running_lora_adapters="b, c",max_lora="2"}', "{"]),
    st.sampled_from(["0", "7", "1e3", "NaN", "+Inf", "-Inf", "3 1795188181348", "x", ""]),
)


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.lists(series, max_size=4)), unique_by=lambda each: each[0]),
    st.lists(st.integers(0, 400)),
)
def test_page_that_was_cut_anyhow_and_sifted_reads_as_the_plain_one(families, places):
    page = "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{name}{block} {number}\n" for block, number in found)
        for name, found in families
    ).encode()
    extractor = CoreMetricsExtractor()
    whole = MetricFilter(extractor.series, LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_filter, "LARGE_BYTES", 0)
        patch.setattr(metric_filter, "_SLICE_BYTES", 16)
        read = outcome(CoreMetricsExtractor(), sifted(whole, page, *places))
        plain = outcome(CoreMetricsExtractor(), page)
        assert isinstance(read, Report) == isinstance(plain, Report)
        if isinstance(plain, Report):
            assert repr(read) == repr(plain)  # which NaN equals
        newest = MetricFilter(extractor.series, LIMITS, newest=extractor.newest)
        fewer = sifted(newest, page, *places)
        assert fewer.count(LORA_INFO.encode()) <= 1 or page.startswith(fewer)  # the start, where nothing can be read
        if isinstance(plain, Report):
            assert repr(outcome(CoreMetricsExtractor(), fewer)) == repr(plain)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)), st.integers(1, 3), st.integers(1, 80))
def test_limits_hold_for_any_bytes_and_raise_nothing(junk, places, count, size):
    limits = PageLimits(family_series=count, series_bytes=size)
    page = b"\na 1\n" * 3 + b"n 1\nn 2\n" + junk + b"\na" + junk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_filter, "LARGE_BYTES", 0)
        patch.setattr(metric_filter, "_SLICE_BYTES", 8)
        found = MetricFilter(["a", "n"], limits, newest=["n"])
        left = sifted(found, page, *places)
        kept = [] if page.startswith(left) else left.split(b"\n")
    ordinary = [line for line in kept if not line.startswith(b"n")]
    assert len(ordinary) <= count
    assert sum(map(len, ordinary)) <= size
    assert all(len(line) <= size // 4 for line in kept)
    assert len(kept) - len(ordinary) <= 1


def test_sifted_page_reads_as_the_whole_one():
    extractor = CoreMetricsExtractor()
    found = MetricFilter(extractor.series, LIMITS, newest=extractor.newest)
    left = sifted(found, PAGE + OTHERS)
    assert len(left) < len(PAGE) / 10
    assert outcome(CoreMetricsExtractor(), left) == outcome(CoreMetricsExtractor(), PAGE)
    assert not found.cut
    for page, what in ((b"<html>" + OTHERS, "it is HTML"), (b'{"a": 1}' + OTHERS, "it is JSON")):
        assert what in str(outcome(extractor, sifted(found, page)))


def test_small_page_stays_as_it_is_unless_it_has_very_many_lines():
    found = MetricFilter(["a"], PageLimits(family_series=100))
    assert sifted(found, PAGE[:700]) == PAGE[:700]
    many = b"a 1\n" * 101 + b"b 1\n" * 700
    assert sifted(found, many) == b"\n".join([b"a 1"] * 100)
    assert found.cut == {Limit.FAMILY_SERIES}
    assert sifted(found, PAGE[:700]) == PAGE[:700]
    assert not found.cut


def test_of_too_many_series_of_a_name_the_first_ones_are_left_and_all_together_have_a_limit():
    found = MetricFilter(["a", "b"], PageLimits(family_series=2))
    page = b'a{x="1"} 1\na{x="2"} 1\na{x="3"} 1\nb 1\n' + OTHERS
    assert sifted(found, page) == b'a{x="1"} 1\na{x="2"} 1\nb 1'
    assert found.cut == {Limit.FAMILY_SERIES}
    found = MetricFilter(["a", "b"], PageLimits(series_bytes=400))
    assert len(sifted(found, b"a 1\n" * 1_000 + OTHERS).replace(b"\n", b"")) <= 400
    assert found.cut == {Limit.SERIES_BYTES}


def test_of_the_newest_series_one_is_left_however_many_there_are():
    found = MetricFilter(["n"], PageLimits(family_series=2), newest=["n"])
    page = b"".join(b'n{x="%d"} %d.5 17\n' % (number, number * 7919 % 10_000) for number in range(10_000))
    (number,) = (number for number in range(10_000) if number * 7919 % 10_000 == 9_999)
    assert sifted(found, page) == b'n{x="%d"} 9999.5 17' % number
    assert not found.cut


@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "at the end"])
def test_series_that_is_too_long_is_left_out_and_others_are_not(end):
    found = MetricFilter(["a", "b"], PageLimits(series_bytes=4_000))
    for length in (1_001, 10 * LARGE_BYTES):
        long = b'a{x="%b"} 1' % (b"y" * length)
        for page in (
            OTHERS + b"b 1\n" + long + end,
            OTHERS + long + b"\nb 1" + end,
            b"\n" * LARGE_BYTES + long + b"\nb 1",
        ):
            assert sifted(found, page, *range(0, len(page), 60_000)) == b"b 1"
            assert found.cut == {Limit.SERIES_BYTES}
    assert sifted(found, OTHERS + b"x" * 10 * LARGE_BYTES + b"\nb 1") == b"b 1"
    assert not found.cut


def test_work_for_a_piece_and_what_is_kept_is_bounded(monkeypatch):
    searched: list[int] = []
    found = MetricFilter(["a"], LIMITS)

    class Spy:
        def __init__(self, pattern) -> None:
            self.match, self._findall = pattern.match, pattern.findall

        def findall(self, data: bytes):
            searched.append(len(data))
            return self._findall(data)

    found._line = Spy(found._line)
    for page in (
        b'other_bucket{le="1"} 1\n' * 300_000,
        b"x" * 7_000_000,
        b'a{x="' + b"y" * 7_000_000,
        b"\n" * 7_000_000,
    ):
        sifted(found, page, *range(0, len(page), 64 * 1024))
        assert found._buffered_bytes <= LARGE_BYTES
    assert max(searched) <= 3 * LARGE_BYTES


@pytest.mark.parametrize("extractors", [(), (Length(),)], ids=["sifted", "whole"])
async def test_large_page_is_read_but_for_other_series_unless_an_extractor_wants_them(
    server, until, collecting, extractors
):
    server.page = b"vllm:num_requests_waiting 3\n" + OTHERS
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, Feed(MetricsDataSource(), (CoreMetricsExtractor(), *extractors)))
    await until(lambda: value(store) == 3)
    server.page = server.page.replace(b"waiting 3", b"waiting 4")
    await until(lambda: value(store) == 4)
    if extractors:
        assert value(store, RUNNING) == len(server.page)


async def test_endpoint_that_leaves_while_its_page_comes_leaves_nothing_behind(server, until, collecting):
    server.page = OTHERS * 20
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, Feed(MetricsDataSource(), (CoreMetricsExtractor(),)))
    await until(lambda: server.asked)
    store.replace([])
    await until(lambda: not collector.feed_count)
