# SPDX-License-Identifier: Apache-2.0
"""Requests with latency targets through a real Envoy: predicted by a server, or from what responses taught."""

from itertools import cycle

import pytest

from tests.support.config_files import picker_config
from tests.support.prediction_server import PredictionServer
from tests.support.waiting import until
from tests.support.world import World, open_world, pool_of

CONFIG = picker_config("""
plugins:
- {type: predicted-latency-producer, parameters: {streamingMode: true, predictionTimeout: 20s}}
- {type: endpoint-rates-producer, parameters: {minSamples: 2}}
- {type: slo-headroom-tier-filter, parameters: {epsilonExploreNeg: 0}}
- {type: latency-scorer}
- {type: latency-slo-admitter}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: slo-headroom-tier-filter}, {pluginRef: latency-scorer}]
""")
TARGET = "x-llm-d-slo-ttft-ms"
LONG = "The quick brown fox jumps over the lazy dog. " * 200


def routed_without_a_server(world: World) -> float:
    return sum(metric(world, "latency_predictions", source) for source in ("rates", "learned"))


def metric(world: World, name: str, *labels: str) -> float:
    plugin = world.gateway.picker.plugins["predicted-latency-producer"]
    return next((each.value for each in plugin.samples if (each.metric.name, each.labels) == (name, labels)), 0)


async def served_by(world: World, prompt: str, ttft_ms: int) -> str:
    """Send a request with a target for its first token."""
    return await world.ask(prompt, extra_headers={TARGET: str(ttft_ms)})


@pytest.fixture
async def servers(simulated):
    return await simulated("a", "b", "c")


async def test_request_goes_to_the_endpoint_that_a_server_expects_to_meet_its_target(servers, monkeypatch):
    times = cycle([(500.0, 5.0), (50.0, 5.0), (900.0, 5.0)])  # of a, b and c
    async with PredictionServer(times=lambda _: next(times)).serving() as predictor:
        monkeypatch.setenv("PREDICTION_SERVER_URL", predictor.url)
        monkeypatch.setenv("TRAINING_SERVER_URL", predictor.url)
        monkeypatch.setenv("LATENCY_COALESCE_WINDOW_MS", "0")
        async with open_world(endpoints=pool_of(servers), sims=servers, config=CONFIG) as world:
            await until(lambda: metric(world, "latency_server_ready", predictor.url), "the server is ready")
            for number in range(5):
                assert await served_by(world, f"prompt {number}", 20000) == "c"  # the least headroom
                assert await served_by(world, f"prompt {number}", 300) == "b"
            assert metric(world, "latency_predictions", "server") == len(predictor.calls) == 10
            await world.ask("short", stream=True)
            await until(lambda: predictor.entries, "the measured time is sent")


async def test_without_a_server_learned_rates_tell_which_endpoint_meets_a_target(simulated):
    fast = await simulated("fast", time_scale=1.0, prefill_tokens_per_second=200_000.0)
    slow = await simulated("slow", time_scale=1.0, prefill_tokens_per_second=4_000.0)
    async with open_world(endpoints=pool_of(fast | slow), sims=fast | slow, config=CONFIG) as world:
        rates = world.gateway.picker.plugins["endpoint-rates-producer"]

        def learned() -> bool:
            state = rates.dump_state(world.gateway.picker.store.snapshot())
            return all(each["prefillSamples"] >= 2 for each in state["models"]["default"]["endpoints"])

        for number in range(100):
            await world.ask(f"{number} {LONG}", stream=True)
            await world.settled()
            if learned():
                break
        assert learned()
        before = routed_without_a_server(world)
        for number in range(4):  # about 2,300 tokens: 12 ms and 570 ms
            assert await served_by(world, f"new {number} {LONG}", 300) == "fast"
            await world.settled()
            assert await served_by(world, f"other {number} {LONG}", 60000) == "slow"
            await world.settled()
        assert routed_without_a_server(world) == before + 8
