# SPDX-License-Identifier: Apache-2.0
"""The load of engines: every built-in one, on pages whose numbers were read by eye, and configured ones."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from epp.framework import Endpoint, LoraState
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
VLLM = Endpoint("e", "10.0.0.1", 8000)


def extractor(**parameters: object) -> CoreMetricsExtractor:
    return CoreMetricsExtractor(msgspec.convert(parameters, CoreMetricsParameters))


def columns(page: bytes, endpoint: Endpoint = VLLM, **parameters: object) -> dict:
    return dict(extractor(**parameters).extract(page, endpoint).columns)


# Read by eye from the pages: waiting, running, KV usage, tokens queried, tokens hit.
@pytest.mark.parametrize(
    ("page", "said", "lora"),
    [
        ("metrics-idle.txt", (0, 0, 0.0, 0, 0), LoraState()),
        ("metrics-busy.txt", (7, 4, 0.23529411764705888, 9062, 4544), LoraState(max_adapters=2)),
        (
            "metrics-busy-lora.txt",
            (4, 4, 0.04705882352941182, 17283, 10848),
            LoraState(frozenset({"lora-a", "lora-b"}), frozenset({"lora-a", "lora-b"}), 2, ("lora-a", "lora-b")),
        ),
    ],
)
def test_genuine_page_says_all(page, said, lora):
    report = extractor().extract((DATA / "vllm-0.32" / page).read_bytes(), VLLM)
    measured = dict(zip((WAITING, RUNNING, KV_USAGE, PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS), said, strict=True))
    assert report.columns == {**measured, KV_BLOCK_TOKENS: 32, KV_BLOCKS: 256}
    assert report.attributes == {LORA: lora}


def test_ranks_are_added_up_and_the_fullest_cache_counts():
    said = columns(
        b'vllm:num_requests_waiting{engine="0"} 2\nvllm:num_requests_waiting{engine="1"} 3\n'
        b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1\n'
        b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="200"} 1\n'
    )
    assert (said[WAITING], said[RUNNING], said[KV_USAGE]) == (5, 2, 0.75)
    assert (said[KV_BLOCK_TOKENS], said[KV_BLOCKS]) == (16, 300)


def test_what_the_page_does_not_say_is_unknown_and_not_zero():
    report = extractor().extract(b"vllm:num_requests_running 1\n", VLLM)
    unknown = {column for column, value in report.columns.items() if math.isnan(value)}
    assert unknown == {WAITING, KV_USAGE, KV_BLOCK_TOKENS, KV_BLOCKS, PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS}
    assert report.attributes == {LORA: LoraState()}


def test_values_that_are_no_numbers_say_nothing():
    said = columns(
        b'vllm:num_requests_waiting{engine="0"} NaN\nvllm:num_requests_waiting{engine="1"} 3\n'
        b"vllm:kv_cache_usage_perc NaN\n"
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
    )
    assert said[WAITING] == 3
    assert math.isnan(said[KV_USAGE])
    assert said[KV_BLOCK_TOKENS] == 16
    assert math.isnan(said[KV_BLOCKS])


@pytest.mark.parametrize(
    ("line", "column", "problem"),
    [
        (b"vllm:num_requests_waiting -5", WAITING, "vllm:num_requests_waiting is -5"),
        (b"vllm:num_requests_running 1e30", RUNNING, "vllm:num_requests_running is 1e+30"),
        (b"vllm:kv_cache_usage_perc -1", KV_USAGE, "vllm:kv_cache_usage_perc is -1"),
        (b"vllm:kv_cache_usage_perc 97", KV_USAGE, "vllm:kv_cache_usage_perc is 97"),
        (b"vllm:num_requests_waiting 0 1000", WAITING, "vllm:num_requests_waiting has an outdated time stamp"),
    ],
)
def test_value_that_cannot_be_is_unknown_and_told(line, column, problem):
    page = b"vllm:prefix_cache_queries_total 7\n" + line + b"\n"
    report = extractor().extract(page, VLLM)
    assert math.isnan(report.columns[column])
    assert report.columns[PREFIX_QUERY_TOKENS] == 7
    assert report.problems == (problem,)


def test_old_spelling_of_kv_usage_is_taken_when_the_new_one_is_absent():
    assert columns(b"vllm:gpu_cache_usage_perc 0.5\n")[KV_USAGE] == 0.5
    assert columns(b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n")[KV_USAGE] == 0.25


def test_adapter_series_with_the_highest_value_wins_wherever_it_stands():
    page = (
        b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 20.0\n'
        b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="d",waiting_lora_adapters=""} 10.0\n'
    )
    state = extractor().extract(page, VLLM).attributes[LORA]
    assert state == LoraState(frozenset({"a", "b"}), frozenset({"c"}), 4, ("a", "b"))


def test_adapters_that_ran_last_are_loaded_as_many_as_fit():
    reader = extractor()

    def loaded(running, endpoint=VLLM):
        page = f'vllm:lora_requests_info{{max_lora="3",running_lora_adapters="{running}",waiting_lora_adapters=""}} 1\n'
        return "".join(reader.extract(page.encode(), endpoint).attributes[LORA].loaded)

    assert [loaded(running) for running in ("b,a", "", "c", "a", "d")] == ["ab", "ab", "cab", "acb", "dac"]
    assert loaded("e", replace(VLLM, uid="2")) == "e"  # a pod that has the name and address of the first one


def test_specs_of_a_known_engine_can_be_overridden_one_by_one():
    page = b"vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nmine 3\n"
    said = columns(page, engineConfigs=[{"name": "vllm", "queuedRequestsSpec": "mine"}])
    assert (said[WAITING], said[RUNNING]) == (3, 2)


def test_engine_is_chosen_by_label_and_described_by_configuration():
    mine = {
        "name": "mine",
        "queuedRequestsSpec": "my_requests{state=waiting}",
        "runningRequestsSpec": "my_requests{state=scheduled}",
        "cacheBlockSizeSpec": "my_blocks{kind=tokens_per}",
        "cacheNumBlocksSpec": 'my_blocks{kind="max"}',
    }
    page = (
        b'my_requests{model="m",state="waiting"} 5\nmy_requests{model="m",state="scheduled"} 6\n'
        b'my_blocks{kind="tokens_per"} 64\nmy_blocks{kind="max"} 512\n'
    )
    report = extractor(engineLabelKey="engine", engineConfigs=[mine]).extract(
        page, replace(VLLM, labels={"engine": "mine"})
    )
    assert report.columns == {WAITING: 5, RUNNING: 6, KV_BLOCK_TOKENS: 64, KV_BLOCKS: 512}
    assert report.attributes == {}


def test_engine_that_nobody_described_is_named_with_the_remedy():
    endpoint = replace(VLLM, labels={"llm-d.ai/engine-type": "mlc"})
    with pytest.raises(PageError, match=r"default/e has label llm-d.ai/engine-type=mlc.*describe 'mlc' in engi"):
        extractor().extract(b"", endpoint)


@pytest.mark.parametrize(
    ("page", "hint"),
    [
        (b"", "it is empty"),
        (b'[{"iter": 1}]', "it is JSON.*TensorRT-LLM has the text at /prometheus/metrics"),
        (b"<html></html>", "it is HTML"),
        (b"python_info 1\n", r"\(vllm:num_requests_waiting.*check the path, and that metrics are enabled"),
        (b"vllm:num_requests_waiting_by_reason 1\n", r"\(vllm:num_requests_waiting.*check the path"),
    ],
)
def test_page_without_anything_wanted_is_refused_with_a_hint(page, hint):
    with pytest.raises(PageError, match=hint):
        extractor().extract(page, VLLM)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"defaultEngine": "vlm"}, "'vlm' is not known: use one of llamacpp, lmdeploy, sglang, tgi, triton, .*, vllm"),
        ({"engineConfigs": [{"name": "x"}, {"name": "x"}]}, "engine 'x' more than once"),
        ({"engineConfigs": [{"name": ""}]}, "an engine has no name"),
        ({"engineConfigs": [{"name": "x", "kvUsageSpec": "a{"}]}, r"engine 'x': 'a\{' is not a metric spec"),
        ({"engineConfigs": [{"name": "x", "kvUsage": "a"}]}, "unknown field `kvUsage`"),
    ],
)
def test_bad_parameters_are_refused(parameters, problem):
    with pytest.raises(msgspec.ValidationError, match=problem):
        extractor(**parameters)


RANKS = "sglang/metrics-ranks.txt"
VLLM_BUSY = "vllm-0.32/metrics-busy.txt"
TRITON = "triton/metrics.txt"
TRITON_LLM = "triton-tensorrt-llm/metrics.txt"

COLUMNS = (WAITING, RUNNING, KV_USAGE, KV_BLOCK_TOKENS, KV_BLOCKS, PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS)
SAID = {
    name: dict(zip(COLUMNS, numbers, strict=False))  # of the first columns
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
    said = extractor(defaultEngine="sglang").extract(page(VLLM_BUSY), endpoint()).columns
    assert said[WAITING] == 7  # it has nothing of SGLang


def test_endpoint_that_changes_its_engine_is_recognised_again_and_each_for_itself():
    one = extractor()
    names = [RANKS, VLLM_BUSY, RANKS, TRITON, TRITON_LLM]
    assert [one.extract(page(name), endpoint()).columns[WAITING] for name in names] == [11, 7, 11, 14, 3]
    for _ in range(2):
        assert one.extract(page(RANKS), endpoint(name="a")).columns[WAITING] == 11
        assert one.extract(page(VLLM_BUSY), endpoint(name="b")).columns[WAITING] == 7


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
