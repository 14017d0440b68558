# SPDX-License-Identifier: Apache-2.0
"""Large pages, of which only the lines of wanted series are read."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.collectors import sieve
from epp.collectors.engines.metrics import CoreMetricsExtractor, MetricsDataSource
from epp.collectors.http.cost import ReadingCost
from epp.collectors.sieve import LARGE_BYTES, Sieve
from epp.datastore import Datastore
from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Extractor, Feed, Report
from epp.framework.snapshot import RUNNING, WAITING

PAGE = (Path(__file__).parents[2] / "data" / "vllm-0.32" / "metrics-busy-lora.txt").read_bytes()
lines = st.sampled_from(
    ["a 1", 'a{x="y"} 2', "a\t3", "ab 4", "a_b 5", "b 6", "# TYPE a gauge", "", 'c{x="\\na 7"} 8', "a", "a" * 20]
)


class Length(Extractor):
    """Reports the length of the page as running requests."""

    plugin_type = "length"
    writes = (RUNNING,)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        return Report({RUNNING: len(page)})


def value(store: Datastore, column=WAITING) -> float:
    return float(store.snapshot().column(column)[0])


@given(st.lists(lines), st.sampled_from(["", "\n"]), st.integers(1, 60))
def test_lines_of_the_names_are_found_however_the_page_is_sliced(found, end, size):
    page = ("\n".join(found) + end).encode()
    wanted = [line for line in found if line.startswith(("a ", "a{", "a\t", "b "))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sieve, "_SLICE_BYTES", size)
        assert [line.decode() for slice_ in Sieve(["a", "b"]).slices(page) for line in slice_] == wanted


async def test_sifted_page_reads_as_the_whole_one():
    endpoint = Endpoint("e", "10.0.0.1", 8000)
    sifted = await Sieve(CoreMetricsExtractor().series).sift(PAGE, ReadingCost())
    assert len(sifted) < len(PAGE) / 10
    assert CoreMetricsExtractor().extract(sifted, endpoint) == CoreMetricsExtractor().extract(PAGE, endpoint)


def test_slices_are_short():
    page = b"".join(b'other_seconds_bucket{le="%d"} %d\n' % (number, number) for number in range(130_000))
    slices = sum(1 for _ in Sieve(["a"]).slices(page))
    assert len(page) / slices <= 1.01 * sieve._SLICE_BYTES


@pytest.mark.parametrize(("extractors", "running"), [((), math.nan), ((Length(),), 0.0)], ids=["sifted", "whole"])
async def test_large_page_is_read_but_for_other_series_unless_an_extractor_wants_them(
    server, until, collecting, extractors, running
):
    server.page = b"vllm:num_requests_waiting 3\n" + b"other 1\n" * (LARGE_BYTES // 8)
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    await collecting(store, Feed(MetricsDataSource(), (CoreMetricsExtractor(), *extractors)))
    await until(lambda: value(store) == 3)
    server.page = server.page.replace(b"waiting 3", b"waiting 4")
    await until(lambda: value(store) == 4)
    length = value(store, RUNNING)
    assert math.isnan(length) if math.isnan(running) else length == len(server.page)


async def test_endpoint_that_leaves_while_its_page_is_sifted_leaves_nothing_behind(server, until, collecting):
    server.page = b"other 1\n" * LARGE_BYTES
    store = Datastore(SystemClock())
    store.replace([server.endpoint()])
    collector = await collecting(store, Feed(MetricsDataSource(), (CoreMetricsExtractor(),)))
    await until(lambda: server.asked)
    store.replace([])
    await until(lambda: not collector.feed_count)
