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
from epp.pool.collectors.engine import BUILT_IN, SERIES_PREFIXES
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, CoreMetricsParameters

DATA = Path(__file__).parents[2] / "data"
RANKS = "sglang/metrics-ranks.txt"
VLLM = "vllm-0.32/metrics-busy.txt"
TRITON = "triton/metrics.txt"
TRITON_LLM = "triton-tensorrt-llm/metrics.txt"

COLUMNS = (WAITING, RUNNING, KV_USAGE, KV_BLOCK_TOKENS, KV_BLOCKS, PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS)
SAID = {
    name: {column: number for column, number in zip(COLUMNS, numbers, strict=False) if number is not None}
    for name, numbers in {
        # Ranks 0 and 1, two pipeline stages each: 7 + 4 waiting, 5 + 2 running, 1024 + 1000 pages; the fuller cache
        # is that of rank 1. 30000 + 12000 prompt tokens, of which 9000 were on the device and 1500 on the host.
        RANKS: (11, 7, 0.88, 64, 2024, 42000, 10500),
        "sglang/metrics-underscore.txt": (3, 12, 0.28, 64, 11147, 8128, 2048),
        "trtllm-serve/metrics.txt": (2, 6, 0.375, 32, 6240),
        TRITON_LLM: (3, 8, 0.4875, 64, 6400),
        TRITON: (14,),  # 3 + 11 over its models; how many run nobody says
        "tgi/metrics.txt": (9, 4),
        "lmdeploy/metrics.txt": (5, 15, 0.75),  # ranks 0 and 1
    }.items()
}


def page(name: str) -> bytes:
    return (DATA / name).read_bytes()


def endpoint(engine: str | None = None, name: str = "e") -> Endpoint:
    return Endpoint(name, "10.0.0.1", 8000, labels={} if engine is None else {"llm-d.ai/engine-type": engine})


def extractor(**parameters: object) -> CoreMetricsExtractor:
    return CoreMetricsExtractor(msgspec.convert(parameters, CoreMetricsParameters))


@pytest.mark.parametrize("name", SAID)
def test_page_of_a_labelled_engine_says_all_and_is_recognised_without_a_label(name):
    report = extractor().extract(page(name), endpoint(name.partition("/")[0]))
    assert (report.columns, report.attributes) == (SAID[name], {})
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


def test_labelled_endpoint_is_not_read_as_another_engine():
    with pytest.raises(PageError, match=r"'vllm', but series of SGLang: set .* llm-d.ai/engine-type to sglang"):
        extractor().extract(page(RANKS), endpoint("vllm"))


def test_default_engine_of_the_configuration_goes_before_what_else_the_page_has():
    said = extractor(defaultEngine="triton").extract(page(TRITON_LLM), endpoint()).columns
    assert said == {WAITING: 1}  # 0 + 1
    said = extractor(defaultEngine="sglang").extract(page(VLLM), endpoint()).columns
    assert said[WAITING] == 7  # it has nothing of SGLang


def test_endpoint_that_changes_its_engine_is_recognised_again_and_each_for_itself():
    one = extractor()
    names = [RANKS, VLLM, RANKS, TRITON, TRITON_LLM]
    assert [one.extract(page(name), endpoint()).columns[WAITING] for name in names] == [11, 7, 11, 14, 3]
    for _ in range(2):
        assert one.extract(page(RANKS), endpoint(name="a")).columns[WAITING] == 11
        assert one.extract(page(VLLM), endpoint(name="b")).columns[WAITING] == 7


def test_recognised_engine_is_tried_first_the_next_time_and_a_hint_is_of_the_default_engine():
    one = extractor()
    one.extract(page(RANKS), endpoint())
    both = page(RANKS) + b"vllm:num_requests_waiting 99\n"
    assert one.extract(both, endpoint()).columns[WAITING] == 11
    with pytest.raises(PageError, match="no series of engine 'vllm': it is empty"):
        one.extract(b"", endpoint())


def test_recognised_engine_is_read_as_the_configuration_describes_it():
    one = extractor(engineConfigs=[{"name": "triton", "runningRequestsSpec": "my_running"}])
    said = one.extract(page(TRITON) + b"my_running 4\n", endpoint()).columns
    assert said == {WAITING: 14, RUNNING: 4}


def custom(*entries: tuple[str, str], engine: str = "sglang") -> dict:
    metrics = [{"attributeKey": key, "metricSpec": spec} for key, spec in entries]
    return {"engineConfigs": [{"name": engine, "customMetrics": metrics}]}


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("sglang:num_decode_prealloc_queue_reqs", 9),  # the highest of 2 and 9
        ('sglang:num_decode_prealloc_queue_reqs{dp_rank="0"}', 2),
        ("nowhere", math.nan),
        ("sglang:fwd_occupancy", math.nan),  # it is no number
    ],
)
def test_custom_metric_becomes_a_column_of_its_name(spec, value):
    said = extractor(**custom(("mine.0", spec))).extract(page(RANKS), endpoint()).columns
    assert said[Column("mine.0", "")] == pytest.approx(value, nan_ok=True)
    assert said[WAITING] == 11  # what is built in stays


def test_extractor_says_what_it_can_fill():
    assert set(extractor().writes) == {*COLUMNS, LORA}
    assert set(extractor(**custom(("a", "x"))).writes) == {*COLUMNS, LORA, Column("a", "")}


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


DOCUMENT = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()


@pytest.mark.parametrize("engine", BUILT_IN)
def test_engine_is_documented_with_its_load(engine):
    config = BUILT_IN[engine]
    assert f"`{engine}`" in DOCUMENT
    for spec in filter(None, (config.queued_requests_spec, config.running_requests_spec, config.kv_usage_spec)):
        assert f"`{spec}`" in DOCUMENT


def test_every_built_in_engine_is_recognised_by_a_prefix():
    assert {name for _, _, name in SERIES_PREFIXES} == set(BUILT_IN)
