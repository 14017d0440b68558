# SPDX-License-Identifier: Apache-2.0
"""Metrics handed out with pauses: the page stays the same, and rendering it takes a third of the time."""

import gzip
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics

from epp.framework import Endpoint, ManualClock
from epp.framework.datalayer import Report
from epp.framework.snapshot import WAITING
from epp.plugins.latency_observer import InflightLoadProducer
from epp.routing.datastore import Datastore, Flow
from epp.telemetry.flow_series import show_inflight
from epp.telemetry.metrics import Metrics
from epp.telemetry.rendering import paced, rendered


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("answers", "Of many.", ["endpoint"], registry=registry)
    times = Histogram("seconds", "Of few.", registry=registry)
    for number in range(500):
        counter.labels(f"e{number}").inc(number)
        times.observe(number)
    return registry


@pytest.mark.parametrize("render", [generate_latest, open_metrics])
def test_page_is_the_same_however_often(registry, render: Callable[[object], bytes]):
    plain = render(registry)
    assert [render(SimpleNamespace(collect=lambda: paced(registry))) for _ in range(2)] == [plain] * 2


def test_pauses_are_twice_the_work_and_come_soon(registry):
    now = 0.0
    looks = 0
    pauses: list[float] = []

    def clock() -> float:
        nonlocal now, looks
        looks += 1
        now += 0.0003  # the work between two looks
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    generate_latest(SimpleNamespace(collect=lambda: paced(registry, clock=clock, sleep=sleep)))
    assert len(pauses) > 500 / 16 / 2
    assert max(pauses) <= 2 * 0.0010
    assert sum(pauses) > 0.5 * now


def test_nothing_of_a_thousand_endpoints_is_made_before_it_is_written():
    clock = ManualClock()
    store = Datastore(clock)
    pool = [Endpoint(f"e{number}", f"10.0.{number // 250}.{number % 250 + 1}", 8000) for number in range(1000)]
    store.replace(pool)
    for number, endpoint in enumerate(pool):
        store.report(endpoint, Report(columns={WAITING: number}))
        store.ledger.open(number, 5, Flow("f", 0))
    metrics = Metrics("pool", clock)
    show_inflight(metrics.registry, store, lambda: [InflightLoadProducer()])
    metrics.refresh_pool(store.snapshot())
    for number, endpoint in enumerate(pool):
        metrics.scheduling._picks_of("m", endpoint).inc(number)  # noqa: SLF001  a thousand requests take long
    large = {}
    for family in metrics.registry.collect():
        assert list.__len__(family.samples) <= 16, family.name  # what is there without being asked for
        if len(family.samples) >= 1000:
            large[family.name] = len(family.samples)
    assert large.keys() == {
        "inference_extension_scheduler_attempts",
        "inference_pool_per_pod_queue_size",
        "llm_d_epp_endpoint_up",
        "llm_d_epp_inflight_requests",
        "llm_d_epp_inflight_tokens",
        "llm_d_epp_per_endpoint_queue_size",
        "llm_d_epp_scheduler_attempts",
    }


@pytest.mark.parametrize("encode", [generate_latest, open_metrics])
@pytest.mark.parametrize("compress", [True, False])
def test_page_that_is_made_piece_by_piece_is_the_whole_one(registry, encode, compress):
    page = rendered(encode, registry, compress=compress)
    assert (gzip.decompress(page) if compress else page) == encode(registry)
