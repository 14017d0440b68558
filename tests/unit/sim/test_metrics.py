# SPDX-License-Identifier: Apache-2.0
"""The metrics page, held against the recorded page of a genuine vLLM."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.lab.sim.completions import SimMetrics
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Occupation, SimRequest

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32" / "metrics-busy-lora.txt"
PROFILE = SimProfile(
    model="tiny",
    lora_adapters=("lora-a", "lora-b"),
    max_lora=2,
    prefill_tokens_per_second=100,
    seconds_per_output_token=0.1,
    block_size=10,
    num_gpu_blocks=100,
    max_model_len=1000,
)


@pytest.fixture
def machine():
    return Machine(PROFILE, observer=SimMetrics(PROFILE))


def families(page: str):
    return {family.name: family for family in text_string_to_metric_families(page)}


def values(machine: Machine, name: str) -> dict[tuple[str, ...], float]:
    page = machine.observer.page().decode()
    samples = [sample for family in families(page).values() for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_names_types_labels_and_bounds_are_those_of_vllm(machine):
    ours = families(machine.observer.page().decode())
    theirs = families(RECORDED.read_text())
    assert len(ours) > 10
    for name, family in ours.items():
        recorded = theirs[name]
        assert (family.type, family.documentation) == (recorded.type, recorded.documentation)
        labels_of = {sample.name: set(sample.labels) for sample in recorded.samples}
        for sample in family.samples:
            if name == "vllm:cache_config_info":
                assert set(sample.labels) < labels_of[sample.name]
            else:
                assert set(sample.labels) == labels_of[sample.name]
        assert bounds(family) == bounds(recorded)


def bounds(family) -> list[str]:
    return [sample.labels["le"] for sample in family.samples if "le" in sample.labels]


def test_help_and_type_lines_are_written_as_vllm_writes_them(machine):
    ours = machine.observer.page().decode()
    theirs = set(RECORDED.read_text().splitlines())
    comments = re.findall(r"^# .*$", ours, flags=re.MULTILINE)
    assert set(comments) <= theirs


def test_gauges_and_counters_follow_the_machine(machine):
    machine.occupy(Occupation(running=4, waiting=2, kv_usage=0.25))
    machine.submit(SimRequest(request_id=1, prompt_tokens=100, output_tokens=2, lora_adapter="lora-a"))
    machine.advance(1.0)
    key = ("0", "tiny")
    assert values(machine, "vllm:num_requests_running") == {key: 5}
    assert values(machine, "vllm:num_requests_waiting") == {key: 2}
    # 25 blocks held, and 11 for the 101 tokens of the request.
    assert values(machine, "vllm:kv_cache_usage_perc") == {key: pytest.approx(0.36)}
    assert values(machine, "vllm:prompt_tokens_total") == {key: 100}
    assert values(machine, "vllm:generation_tokens_total") == {key: 1}
    assert values(machine, "vllm:prefix_cache_queries_total") == {key: 100}
    assert values(machine, "vllm:time_to_first_token_seconds_count") == {key: 1}
    machine.advance(10.0)
    assert values(machine, "vllm:request_success_total")["0", "stop", "tiny"] == 1


def test_newest_lora_series_names_the_adapters_of_now(machine):
    machine.submit(SimRequest(request_id=1, prompt_tokens=100, output_tokens=1, lora_adapter="lora-b"))
    series = values(machine, "vllm:lora_requests_info")
    assert max(series, key=series.__getitem__) == ("2", "lora-b", "")
    assert ("2", "", "") in series
    machine.advance(10.0)
    series = values(machine, "vllm:lora_requests_info")
    assert max(series, key=series.__getitem__) == ("2", "", "")
    assert series["2", "", ""] == pytest.approx(1.0)  # it became idle at 1.0


def test_a_server_without_adapters_has_no_lora_series():
    machine = Machine(SimProfile(), observer=SimMetrics(SimProfile()))
    assert values(machine, "vllm:lora_requests_info") == {}


def test_cache_config_says_the_size_of_the_cache(machine):
    page = families(machine.observer.page().decode())
    (sample,) = page["vllm:cache_config_info"].samples
    assert (sample.labels["block_size"], sample.labels["num_gpu_blocks"], sample.value) == ("10", "100", 1.0)
