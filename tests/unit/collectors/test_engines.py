# SPDX-License-Identifier: Apache-2.0
"""Every built-in engine, on pages whose numbers were read by eye."""

import math
from pathlib import Path

import msgspec
import pytest

from epp.framework import Endpoint
from epp.framework.datalayer import PageError
from epp.framework.snapshot import (
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    KV_USAGE,
    LORA,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    RUNNING,
    WAITING,
    Column,
)
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, CoreMetricsParameters

DATA = Path(__file__).parents[2] / "data"
RANKS = "sglang/metrics-ranks.txt"
VLLM = "vllm-0.32/metrics-busy.txt"
TRITON = "triton/metrics.txt"
TRITON_LLM = "triton-tensorrt-llm/metrics.txt"

SAID = {
    # Ranks 0 and 1, two pipeline stages each: 7 + 4 waiting, 5 + 2 running, 1024 + 1000 pages; the fuller cache is
    # that of rank 1. 30000 + 12000 prompt tokens, of which 9000 were on the device and 1500 on the host.
    RANKS: {
        WAITING: 11,
        RUNNING: 7,
        KV_USAGE: 0.88,
        KV_BLOCK_TOKENS: 64,
        KV_BLOCKS: 2024,
        PREFIX_QUERY_TOKENS: 42000,
        PREFIX_HIT_TOKENS: 10500,
    },
    "sglang/metrics-underscore.txt": {
        WAITING: 3,
        RUNNING: 12,
        KV_USAGE: 0.28,
        KV_BLOCK_TOKENS: 64,
        KV_BLOCKS: 11147,
        PREFIX_QUERY_TOKENS: 8128,
        PREFIX_HIT_TOKENS: 2048,
    },
    "trtllm-serve/metrics.txt": {WAITING: 2, RUNNING: 6, KV_USAGE: 0.375, KV_BLOCK_TOKENS: 32, KV_BLOCKS: 6240},
    TRITON_LLM: {WAITING: 3, RUNNING: 8, KV_USAGE: 0.4875, KV_BLOCK_TOKENS: 64, KV_BLOCKS: 6400},
    TRITON: {WAITING: 14},  # 3 + 11 over its models; how many run nobody says
    "tgi/metrics.txt": {WAITING: 9, RUNNING: 4},
    "lmdeploy/metrics.txt": {WAITING: 5, RUNNING: 15, KV_USAGE: 0.75},  # ranks 0 and 1
}


def page(name: str) -> bytes:
    return (DATA / name).read_bytes()


def endpoint(engine: str | None = None, name: str = "e") -> Endpoint:
    return Endpoint(name, "10.0.0.1", 8000, labels={} if engine is None else {"llm-d.ai/engine-type": engine})


def extractor(**parameters: object) -> CoreMetricsExtractor:
    return CoreMetricsExtractor(msgspec.convert(parameters, CoreMetricsParameters))


@pytest.mark.parametrize("name", SAID)
def test_page_of_a_labelled_engine_says_all(name):
    report = extractor().extract(page(name), endpoint(name.partition("/")[0]))
    assert report.columns == SAID[name]
    assert report.attributes == {}


@pytest.mark.parametrize("name", SAID)
def test_engine_is_recognised_by_its_page_where_no_label_names_it(name):
    assert extractor().extract(page(name), endpoint()).columns == SAID[name]


def test_block_numbers_of_tensorrt_llm_may_be_labels():
    said = extractor().extract(page("trtllm-serve/metrics-config-info.txt"), endpoint("trtllm-serve")).columns
    assert (said[KV_BLOCK_TOKENS], said[KV_BLOCKS]) == (64, 3120)
    assert math.isnan(said[KV_USAGE])


@pytest.mark.parametrize("name", ["llamacpp", None])
def test_llama_cpp_reports_no_usage_of_its_cache(name):
    said = extractor().extract(page("llamacpp/metrics.txt"), endpoint(name)).columns
    assert (said[WAITING], said[RUNNING]) == (3, 2)
    assert math.isnan(said[KV_USAGE])


def test_page_that_ollama_may_come_to_have_is_read_as_the_configuration_describes_it():
    """Its releases have none; this is the page of a pull request of July 2026."""
    queue = {"name": "ollama", "queuedRequestsSpec": "ollama_requests_queued"}
    one = extractor(defaultEngine="ollama", engineConfigs=[queue])
    assert one.extract(page("ollama/metrics.txt"), endpoint()).columns == {WAITING: 6}


def test_gauges_of_block_numbers_go_before_labels_one_by_one():
    both = b'sglang:page_size 16\nsglang:cache_config_info{page_size="64",num_pages="100"} 1\n'
    said = extractor().extract(both, endpoint("sglang")).columns
    assert (said[KV_BLOCK_TOKENS], said[KV_BLOCKS]) == (16, 100)


def test_rank_without_a_finite_number_counts_for_nothing():
    some = b'sglang:num_queue_reqs{dp_rank="0"} NaN\nsglang:num_queue_reqs{dp_rank="1"} 4\n'
    assert extractor().extract(some, endpoint("sglang")).columns[WAITING] == 4


def test_labelled_endpoint_is_not_read_as_another_engine():
    with pytest.raises(PageError, match=r"'vllm', but series of SGLang: set .* llm-d.ai/engine-type to sglang"):
        extractor().extract(page(RANKS), endpoint("vllm"))


def test_default_engine_of_the_configuration_goes_before_what_else_the_page_has():
    said = extractor(defaultEngine="triton").extract(page(TRITON_LLM), endpoint()).columns
    assert said == {WAITING: 1}  # 0 + 1


def test_vllm_page_is_recognised_where_the_default_is_another_engine():
    said = extractor(defaultEngine="sglang").extract(page(VLLM), endpoint()).columns
    assert said[WAITING] == 7


def test_endpoint_that_changes_its_engine_is_recognised_again():
    one = extractor()
    names = [RANKS, VLLM, RANKS, TRITON, TRITON_LLM]
    assert [one.extract(page(name), endpoint()).columns[WAITING] for name in names] == [11, 7, 11, 14, 3]


def test_endpoints_are_recognised_each_for_itself():
    one = extractor()
    for _ in range(2):
        assert one.extract(page(RANKS), endpoint(name="a")).columns[WAITING] == 11
        assert one.extract(page(VLLM), endpoint(name="b")).columns[WAITING] == 7


def test_recognised_engine_is_tried_first_the_next_time():
    one = extractor()
    one.extract(page(RANKS), endpoint())
    both = page(RANKS) + b"vllm:num_requests_waiting 99\n"
    assert one.extract(both, endpoint()).columns[WAITING] == 11


def test_hint_speaks_of_the_default_engine_once_an_endpoint_fell_silent():
    one = extractor()
    one.extract(page(RANKS), endpoint())
    with pytest.raises(PageError, match="no series of engine 'vllm': it is empty"):
        one.extract(b"", endpoint())


def test_recognised_engine_is_read_as_the_configuration_describes_it():
    one = extractor(engineConfigs=[{"name": "triton", "runningRequestsSpec": "my_running"}])
    said = one.extract(page(TRITON) + b"my_running 4\n", endpoint()).columns
    assert said == {WAITING: 14, RUNNING: 4}


def custom(*entries: tuple[str, str], engine: str = "sglang") -> dict:
    metrics = [{"attributeKey": key, "metricSpec": spec} for key, spec in entries]
    return {"engineConfigs": [{"name": engine, "customMetrics": metrics}]}


def test_custom_metric_becomes_a_column_of_its_name():
    one = extractor(**custom(("prealloc", "sglang:num_decode_prealloc_queue_reqs")))
    said = one.extract(page(RANKS), endpoint()).columns
    assert said[Column("prealloc", "")] == 9  # the highest of 2 and 9
    assert said[WAITING] == 11  # what is built in stays


def test_labels_of_a_custom_metric_mean_one_series():
    one = extractor(**custom(("prealloc.0", 'sglang:num_decode_prealloc_queue_reqs{dp_rank="0"}')))
    assert one.extract(page(RANKS), endpoint()).columns[Column("prealloc.0", "")] == 2


def test_custom_metric_that_is_absent_or_no_number_is_unknown():
    one = extractor(**custom(("a", "nowhere"), ("b", "sglang:fwd_occupancy")))
    said = one.extract(page(RANKS), endpoint()).columns
    assert math.isnan(said[Column("a", "")])
    assert math.isnan(said[Column("b", "")])


def test_extractor_says_what_it_can_fill():
    core = {WAITING, RUNNING, KV_USAGE, KV_BLOCK_TOKENS, KV_BLOCKS, PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS, LORA}
    assert set(extractor().writes) == core
    assert set(extractor(**custom(("a", "x"))).writes) == {*core, Column("a", "")}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([("waiting", "x")], "attributeKey 'waiting' is the name of a built-in column"),
        ([("", "x")], "entry for 'x' without an attributeKey"),
        ([("a", "x{")], r"attributeKey 'a': 'x\{' is not a metric spec"),
        ([("a", "x"), ("a", "y")], "engine 'sglang': customMetrics has attributeKey 'a' more than once"),
    ],
)
def test_bad_custom_metrics_are_refused(entries, problem):
    with pytest.raises(msgspec.ValidationError, match=problem):
        extractor(**custom(*entries))


def test_the_same_attribute_may_come_from_several_engines():
    both = [
        {"name": engine, "customMetrics": [{"attributeKey": "queue", "metricSpec": spec}]}
        for engine, spec in (("sglang", "sglang:num_grammar_queue_reqs"), ("triton", "nv_gpu_utilization"))
    ]
    one = extractor(engineConfigs=both)
    assert one.extract(page(RANKS), endpoint(name="a")).columns[Column("queue", "")] == 1
    assert one.extract(page(TRITON), endpoint(name="b")).columns[Column("queue", "")] == 0.63
