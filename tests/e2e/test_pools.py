# SPDX-License-Identifier: Apache-2.0
"""Endpoints come, go and die."""

import asyncio
import os
import signal

import openai
import pytest
from structlog.testing import capture_logs

from epp.framework.snapshot import IN_FLIGHT
from epp.lab.demo.servers import ServerSpec, model_servers
from tests.support.config_files import endpoints_file, picker_config
from tests.support.waiting import until
from tests.support.world import ENDLESS, MODEL, open_world, pool_of, question, rest_of

FILE_CONFIG = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {path}, watchFile: true}}
- type: label-selector-filter
  parameters: {{matchLabels: {{tier: gold}}}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: label-selector-filter}}, {{pluginRef: queue-scorer}}]
dataLayer:
  discovery: {{pluginRef: file-discovery}}
""")


async def test_server_that_dies_gets_no_more_traffic_and_others_are_not_disturbed(simulated):
    sims = await simulated("steady")
    async with model_servers([ServerSpec("h100")], MODEL) as (doomed,):
        endpoints = f"steady={sims['steady'].address},doomed={doomed.address}"
        async with open_world(endpoints=endpoints, sims=sims) as world:
            await world.scraped()
            assert world.available == {"steady", "doomed"}
            await world.occupy("steady", waiting=1)  # the next one goes to the other server
            on_doomed = asyncio.create_task(world.ask("until you die", max_tokens=8_000, **ENDLESS))
            await until(
                lambda: world.column(IN_FLIGHT) == {"steady": 0, "doomed": 1}, "a request is at the doomed server"
            )
            await world.occupy("steady")
            stream = await world.stream(200)
            assert world.column(IN_FLIGHT) == {"steady": 1, "doomed": 1}

            os.kill(doomed.pid, signal.SIGKILL)

            await until(lambda: world.available == {"steady"}, "the dead server is no candidate")
            assert {await world.ask(f"after {i}") for i in range(10)} == {"steady"}
            await rest_of(stream)
            with pytest.raises(openai.APIError):  # the dead server's own request fails, and is not forgotten
                await on_doomed
            await world.settled()


async def test_edited_endpoint_file_moves_traffic_within_a_running_gateway(simulated, tmp_path):
    sims = await simulated("a", "b", "c")
    path = tmp_path / "endpoints.yaml"

    def write(**tiers: str) -> None:
        endpoints_file(path, **{name: (sims[name].address, {"tier": tier}) for name, tier in tiers.items()})

    write(a="gold", b="silver")
    async with open_world(sims=sims, config=FILE_CONFIG.format(path=path)) as world:
        await world.scraped()
        assert {await world.ask(f"q{i}") for i in range(4)} == {"a"}  # the label filter holds
        write(b="gold", c="gold")
        await until(lambda: world.available == {"b", "c"}, "the new file is in force")
        await world.scraped()  # one that has not reported yet is not as good as one that is idle
        assert {await world.ask(f"q{i}") for i in range(4)} == {"b", "c"}
        with capture_logs() as logs:
            path.write_text("endpoints: [{name: broken}]")
            refused = "endpoints file rejected, pool unchanged"
            await until(lambda: any(entry["event"] == refused for entry in logs), "the bad file has been read")
        assert {await world.ask(f"q{i}") for i in range(4)} == {"b", "c"}


async def test_lora_request_goes_where_its_adapter_is(simulated):
    config = picker_config("""
plugins: [{type: lora-affinity-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: lora-affinity-scorer}]}]
""")
    sims = await simulated("a", "b", lora_adapters=("tuned", "other"), max_lora=1)
    async with open_world(endpoints=pool_of(sims), sims=sims, config=config) as world:
        await world.scraped()
        await world.occupy("a", running=1, lora_adapter="other")
        await world.occupy("b", running=1, lora_adapter="tuned")
        for i in range(3):
            asked = question(f"q{i}", model="tuned")
            raw = await world.client.chat.completions.with_raw_response.create(**asked)
            assert raw.headers["x-sim-server"] == "b"
