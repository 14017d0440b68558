# SPDX-License-Identifier: Apache-2.0
"""The metrics of several pools on one page."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from epp.telemetry.families import Families
from epp.telemetry.rendering import MetricsOfPools


def pool(requests: dict[str, int]) -> CollectorRegistry:
    families = Families(CollectorRegistry(), legacy=False)
    counted = families.counters("requests_total", "Requests.", ("model",))
    for model, count in requests.items():
        counted.labels(model).inc(count)
    families.histograms("seconds", "Durations.", (1.0,)).labels().observe(0.5)
    return families.registry


def page_of(pools: dict[str, CollectorRegistry]) -> MetricsOfPools:
    own = Families(CollectorRegistry(), legacy=False)
    own.gauges("info", "The program.").labels().set(1)
    return MetricsOfPools(own.registry, lambda: pools)


def lines(metrics) -> list[str]:
    return [line for line in generate_latest(metrics).decode().splitlines() if "_created" not in line]


def test_each_sample_of_a_pool_has_its_name_and_those_of_the_process_have_none():
    shown = lines(page_of({"chat": pool({"m": 2}), "code": pool({"m": 3, "n": 1})}))
    assert "llm_d_epp_info 1.0" in shown
    assert [line for line in shown if line.startswith("llm_d_epp_requests_total")] == [
        'llm_d_epp_requests_total{inference_pool="chat",model="m"} 2.0',
        'llm_d_epp_requests_total{inference_pool="code",model="m"} 3.0',
        'llm_d_epp_requests_total{inference_pool="code",model="n"} 1.0',
    ]
    assert 'llm_d_epp_seconds_bucket{inference_pool="code",le="1.0"} 1.0' in shown


def test_selection_has_the_chosen_samples_of_all_pools():
    page = page_of({"chat": pool({"m": 1}), "code": pool({"m": 4})})
    shown = lines(page.restricted_registry(["llm_d_epp_requests_total"]))
    assert [line for line in shown if not line.startswith("#")] == [
        'llm_d_epp_requests_total{inference_pool="chat",model="m"} 1.0',
        'llm_d_epp_requests_total{inference_pool="code",model="m"} 4.0',
    ]


def test_each_metric_is_described_once_and_a_pool_that_has_left_has_no_samples():
    pools = {"chat": pool({"m": 1}), "code": pool({"m": 1})}
    page = page_of(pools)
    assert lines(page).count("# TYPE llm_d_epp_requests_total counter") == 1
    del pools["chat"]
    assert not any("chat" in line for line in lines(page))
