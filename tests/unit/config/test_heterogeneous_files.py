# SPDX-License-Identifier: Apache-2.0
"""The ready-made profiles for mixed hardware do what they say, on an H100, a slice of an A100 and a T4."""

from pathlib import Path

from epp.config import Builder, assemble, load_file
from epp.framework import Endpoint, ManualClock, Producer, Request, RequestBody, SchedulingResult
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder

CONFIG = Path(__file__).parents[3] / "config"
HARDWARE = {
    "h100": AcceleratorDeclaration(accelerator_class="h100", count=1, cost_per_hour=4.25),
    "slice": AcceleratorDeclaration(accelerator_class="a100-40gb", count=1, profile="3g.20gb", cost_per_hour=2.0),
    "t4": AcceleratorDeclaration(accelerator_class="t4", count=1, cost_per_hour=0.53),
}
NAMES = {f"e{slot}": name for slot, name in enumerate(HARDWARE)}


def schedule(file: str, *, tokens: int = 1000, labels=(), headers=(), **load) -> SchedulingResult:
    """Run the profile for a cold prompt; loads are by endpoint, in the order of HARDWARE."""
    tagger = TagBuilder(Inventory())
    tags = [
        tagger.build(Endpoint(name, "10.0.0.1", 8000, accelerator=declared)).tag for name, declared in HARDWARE.items()
    ]
    numbers = {"waiting": [0, 0, 0], "running": [0, 0, 0], "kv_usage": [0.1, 0.1, 0.1], **load}
    pool = candidates(records={ACCELERATOR: tags}, labels=labels, **numbers)
    pipeline = assemble(load_file(CONFIG / file), Builder(Registry(), ManualClock())).pipeline
    request = Request("r", RequestBody(model="m", prompt=b"x" * 4 * tokens, prompt_tokens=tokens, streaming=True))
    request.headers = type(request.headers)(headers)
    for producer in pipeline.of(Producer):
        producer.produce(request, pool)
    return pipeline.scheduler.schedule(request, pool)


def target(result: SchedulingResult) -> str:
    return NAMES[result.targets[0].name]


def test_het_3_cost_profile_keeps_a_cheap_server_busy_while_it_is_in_time_and_without_a_queue():
    relaxed = [("x-llm-d-slo-ttft-ms", "10000"), ("x-llm-d-slo-tpot-ms", "500")]
    working = {"running": [0, 8, 0], "in_flight": [0, 8, 0]}
    assert target(schedule("heterogeneous-cost.yaml", tokens=300, headers=relaxed, **working)) == "slice"
    assert target(schedule("heterogeneous-cost.yaml", headers=[("x-llm-d-slo-ttft-ms", "400")], **working)) == "h100"
    queues = {"waiting": [0, 9, 9], "running": [0, 9, 9], "in_flight": [0, 18, 18]}
    assert target(schedule("heterogeneous-cost.yaml", **queues)) == "h100"


def test_het_3_latency_profile_takes_the_fastest_and_the_cheapest_that_meets_an_slo():
    assert target(schedule("heterogeneous-latency.yaml")) == "h100"
    busy = {"in_flight": [40, 0, 0], "in_flight_tokens": [400_000, 0, 0]}
    assert target(schedule("heterogeneous-latency.yaml", **busy)) == "slice"
    relaxed = [("x-llm-d-slo-ttft-ms", "60000"), ("x-llm-d-slo-tpot-ms", "1000")]
    strict = [("x-llm-d-slo-ttft-ms", "100"), ("x-llm-d-slo-tpot-ms", "50")]
    assert target(schedule("heterogeneous-latency.yaml", headers=relaxed)) == "t4"
    assert target(schedule("heterogeneous-latency.yaml", headers=strict)) == "h100"


def test_packing_profile_leaves_whole_devices_free_while_a_slice_is_in_time():
    relaxed = [("x-llm-d-slo-ttft-ms", "10000"), ("x-llm-d-slo-tpot-ms", "200")]
    assert target(schedule("mig-packing.yaml", headers=relaxed)) == "slice"
    assert target(schedule("mig-packing.yaml", tokens=8000)) == "h100"


def test_mixed_profile_prefills_on_the_fast_class_and_decodes_on_the_cheap_one():
    roles = [{"llm-d.ai/role": role} for role in ("prefill", "both", "decode")]
    result = schedule("mixed-prefill-decode.yaml", tokens=2000, labels=roles)
    assert target(result) == "t4"
    assert NAMES[result.profiles["prefill"].targets[0].name] == "h100"
    assert result.destination.headers["x-prefiller-host-port"] == result.profiles["prefill"].targets[0].hostport
