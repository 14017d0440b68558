# SPDX-License-Identifier: Apache-2.0
"""Large pages, of which only the lines of wanted series are read, within limits."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, PageError, Report
from epp.framework.snapshot import RUNNING
from epp.pool.collectors import page_limits
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource
from epp.pool.collectors.page_limits import LARGE_BYTES, Limit, WantedLines
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


def searched(page: bytes, names, limits: PageLimits = LIMITS, newest=()) -> tuple[bytes, set[Limit]]:
    """Return the wanted lines of a page, and the limits that it exceeds."""
    lines = WantedLines(page, names, limits, newest=newest)
    for _ in lines.search():
        pass
    return lines.text, lines.cut


def outcome(extractor: CoreMetricsExtractor, page: bytes) -> Report | str:
    try:
        return extractor.extract(page, Endpoint("e", "10.0.0.1", 8000))
    except PageError as error:
        return str(error)


@given(st.lists(lines), st.sampled_from(["", "\n"]), st.integers(1, 60))
def test_lines_of_the_names_are_found_in_steps_of_any_size(found, end, size):
    page = ("\n".join(found) + end).encode()
    wanted = [line for line in found if line.startswith(("a ", "a{", "a\t", "b "))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_limits, "_STEP_BYTES", size)
        left = searched(page, ["a", "b"])[0].decode()
        assert left == "\n".join(wanted) if wanted else page.decode().startswith(left)


NAMES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:cache_config_info", LORA_INFO, "vllm:num_x")
series = st.tuples(
    st.sampled_from(["", '{engine="0"}', '{engine="1",a="}"}', '{running_lora_adapters="b, c",max_lora="2"}', "{"]),
    st.sampled_from(["0", "7", "1e3", "NaN", "+Inf", "-Inf", "3 1795188181348", "x", ""]),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.lists(series, max_size=4)), unique_by=lambda each: each[0]))
def test_wanted_lines_read_as_the_page(families):
    page = "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{name}{block} {number}\n" for block, number in found)
        for name, found in families
    ).encode()
    extractor = CoreMetricsExtractor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_limits, "_STEP_BYTES", 16)
        read = outcome(CoreMetricsExtractor(), searched(page, extractor.series)[0])
        plain = outcome(CoreMetricsExtractor(), page)
        assert isinstance(read, Report) == isinstance(plain, Report)
        if isinstance(plain, Report):
            assert repr(read) == repr(plain)  # which NaN equals
        fewer, _ = searched(page, extractor.series, newest=extractor.newest)
        assert fewer.count(LORA_INFO.encode()) <= 1 or page.startswith(fewer)  # the start, where nothing can be read
        if isinstance(plain, Report):
            assert repr(outcome(CoreMetricsExtractor(), fewer)) == repr(plain)


@given(st.binary(max_size=300), st.integers(1, 3), st.integers(1, 80))
def test_limits_hold_for_any_bytes_and_raise_nothing(junk, count, size):
    limits = PageLimits(family_series=count, series_bytes=size)
    page = b"\na 1\n" * 3 + b"n 1\nn 2\n" + junk + b"\na" + junk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_limits, "_STEP_BYTES", 8)
        left, _ = searched(page, ["a", "n"], limits, newest=["n"])
        kept = [] if page.startswith(left) else left.split(b"\n")
    ordinary = [line for line in kept if not line.startswith(b"n")]
    assert len(ordinary) <= count
    assert sum(map(len, ordinary)) <= size
    assert all(len(line) <= size // 4 for line in kept)
    assert len(kept) - len(ordinary) <= 1


def test_wanted_lines_of_a_large_page_read_as_the_page():
    extractor = CoreMetricsExtractor()
    left, cut = searched(PAGE + OTHERS, extractor.series, newest=extractor.newest)
    assert len(left) < len(PAGE) / 10
    assert outcome(CoreMetricsExtractor(), left) == outcome(CoreMetricsExtractor(), PAGE)
    assert not cut
    for page, what in ((b"<html>" + OTHERS, "it is HTML"), (b'{"a": 1}' + OTHERS, "it is JSON")):
        assert what in str(outcome(extractor, searched(page, extractor.series)[0]))


def test_of_too_many_series_of_a_name_the_first_ones_are_left_and_all_together_have_a_limit():
    page = b'a{x="1"} 1\na{x="2"} 1\na{x="3"} 1\nb 1\n' + OTHERS
    left, cut = searched(page, ["a", "b"], PageLimits(family_series=2))
    assert left == b'a{x="1"} 1\na{x="2"} 1\nb 1'
    assert cut == {Limit.FAMILY_SERIES}
    left, cut = searched(b"a 1\n" * 1_000 + OTHERS, ["a", "b"], PageLimits(series_bytes=400))
    assert len(left.replace(b"\n", b"")) <= 400
    assert cut == {Limit.SERIES_BYTES}


def test_of_the_newest_series_one_is_left_however_many_there_are():
    page = b"".join(b'n{x="%d"} %d.5 17\n' % (number, number * 7919 % 10_000) for number in range(10_000))
    (number,) = (number for number in range(10_000) if number * 7919 % 10_000 == 9_999)
    left, cut = searched(page, ["n"], PageLimits(family_series=2), newest=["n"])
    assert left == b'n{x="%d"} 9999.5 17' % number
    assert not cut


@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "at the end"])
def test_series_that_is_too_long_is_left_out_and_others_are_not(end):
    for length in (1_001, 10 * LARGE_BYTES):
        long = b'a{x="%b"} 1' % (b"y" * length)
        for page in (
            OTHERS + b"b 1\n" + long + end,
            OTHERS + long + b"\nb 1" + end,
            b"\n" * LARGE_BYTES + long + b"\nb 1",
        ):
            assert searched(page, ["a", "b"], PageLimits(series_bytes=4_000)) == (b"b 1", {Limit.SERIES_BYTES})
    page = OTHERS + b"x" * 10 * LARGE_BYTES + b"\nb 1"
    assert searched(page, ["a", "b"], PageLimits(series_bytes=4_000)) == (b"b 1", set())


def test_large_page_is_searched_in_short_steps():
    """At most 64 KiB, or one longer line, is searched in a step."""
    for page in (
        b'other_bucket{le="1"} 1\n' * 300_000,
        b"\n" * 7_000_000,
        b"a 1\n" * 1_700_000,
        b"x" * 7_000_000,
        b'a{x="' + b"y" * 7_000_000,
    ):
        longest = max(len(line) for line in page.split(b"\n"))
        steps = sum(1 for _ in WantedLines(page, ["a"], LIMITS).search())
        assert steps >= len(page) // (64 * 1024 + longest)


async def test_small_page_is_read_whole_however_many_series_it_has(server, until, collecting):
    server.page = b"".join(b'vllm:num_requests_waiting{engine="%d"} 1\n' % number for number in range(1_100))
    assert len(server.page) < LARGE_BYTES
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, Feed(MetricsDataSource(), (CoreMetricsExtractor(),)))
    await until(lambda: value(store) == 1_100)


@pytest.mark.parametrize("extractors", [(), (Length(),)], ids=["wanted lines", "whole"])
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
