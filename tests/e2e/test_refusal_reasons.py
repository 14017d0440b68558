# SPDX-License-Identifier: Apache-2.0
"""What a client gets, through a real Envoy, for each reason for which no endpoint is left."""

import os
import signal

import openai
import pytest

from epp.lab.demo.servers import ServerSpec, model_servers
from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.world import MODEL, World, open_world, until

CONFIG = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {path}, watchFile: true}}
- type: accelerator-data-source
- {{type: header-profile-handler, parameters: {{defaultProfile: default}}}}
- {{name: large, type: accelerator-filter, parameters: {{minMemory: 80Gi, maxCostPerHour: 7}}}}
- {{name: idle, type: utilization-filter, parameters: {{conditions: [{{metric: waiting-queue, maxValue: 0}}]}}}}
- {{name: known, type: accelerator-availability-filter, parameters: {{onUnknown: Fail}}}}
- {{name: young, type: utilization-filter, parameters: {{conditions: [{{metric: waiting-queue, maxValue: 99}}]}}}}
- type: queue-scorer
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: queue-scorer}}]}}
- {{name: constraint, plugins: [{{pluginRef: large}}]}}
- {{name: not-found, constraintStatus: 404, plugins: [{{pluginRef: idle}}, {{pluginRef: large}}]}}
- {{name: saturation, plugins: [{{pluginRef: idle}}]}}
- {{name: availability, plugins: [{{pluginRef: idle}}, {{pluginRef: known}}]}}
- {{name: stale, plugins: [{{pluginRef: young, staleAfter: 1us, onStale: Drop}}]}}
- {{name: open, failOpen: [saturation], plugins: [{{pluginRef: idle}}]}}
- {{name: half-open, failOpen: [saturation], plugins: [{{pluginRef: idle}}, {{pluginRef: large}}]}}
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
""")
UNMET = (
    "no model server meets the requirements of this request (hardware, price, labels), and a retry does not help: "
    "ask for less"
)
EMPTY = "no model server is available for this request: retry later"


async def refused(world: World, profile: str) -> tuple[int, str, str | None, str]:
    """Return status, reason, time to wait and message of a request for one profile."""
    with pytest.raises(openai.APIStatusError) as error:
        await world.ask("anybody?", extra_headers={"EPP-Profile": profile})
    response = error.value.response
    reason = response.headers["x-llm-d-request-dropped-reason"]
    return response.status_code, reason, response.headers.get("retry-after"), response.json()["error"]["message"]


async def test_gie_10_each_reason_has_its_status_header_sentence_and_time_to_wait(simulated, tmp_path):
    sims = await simulated("a", "b")
    path, config = tmp_path / "endpoints.yaml", tmp_path / "config.yaml"
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    endpoints_file(path, **{name: (sim.address, labels) for name, sim in sims.items()})
    config.write_text(CONFIG.format(path=path))
    async with open_world(config_file=config, sims=sims) as world:
        await world.scraped()
        assert await world.ask("anybody?") in {"a", "b"}
        for name in sims:
            await world.occupy(name, waiting=3)
        constraint = await refused(world, "constraint")
        assert constraint == (429, "rejected-constraint", None, UNMET)
        assert (await refused(world, "not-found"))[:3] == (404, "rejected-constraint", None)
        busy = await refused(world, "saturation")
        assert busy == (429, "rejected-saturated", "1", busy[3])
        assert busy[3] == "all model servers that can take this request are busy: retry later"
        unavailable = await refused(world, "availability")
        assert unavailable[:3] == (503, "rejected-unavailable", "5")
        assert unavailable[3] == "no model server that can take this request is ready: retry later"
        stale = await refused(world, "stale")
        assert stale[:3] == (503, "rejected-stale", "1")
        assert stale[3].startswith("there are no recent data about the model servers")
        assert (await refused(world, "half-open"))[:2] == (429, "rejected-constraint")
        assert await world.ask("anybody?", extra_headers={"EPP-Profile": "open"}) in {"a", "b"}
        replace(path, "endpoints: []\n")
        await until(lambda: not world.available, "the pool is empty")
        assert await refused(world, "default") == (503, "rejected-no-endpoints", "5", EMPTY)


async def test_gie_10_endpoints_that_all_refuse_connections_are_not_an_empty_pool():
    async with (
        model_servers([ServerSpec("h100")], MODEL) as (doomed,),
        open_world(endpoints=f"a={doomed.address}") as world,
    ):
        await world.scraped()
        os.kill(doomed.pid, signal.SIGKILL)
        await until(lambda: not world.available, "the dead server is no candidate")
        gone = await refused(world, "")
    assert gone[:3] == (503, "rejected-unavailable", "5")
