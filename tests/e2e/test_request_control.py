# SPDX-License-Identifier: Apache-2.0
"""What plugins add to a request's way besides its target: a price, who served, who asked."""

import contextlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from epp.framework.snapshot import METRICS_AT
from epp.lab.gateway.bootstrap import bootstrap_dict
from epp.lab.gateway.settings import ClusterType, GatewaySettings
from epp.lab.sim.server import running
from epp.routing.settings import OutlierSettings
from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.waiting import until
from tests.support.world import FAST, World, open_world, question

PRICED = picker_config("""
dataLayer: {injectDefaults: false}
plugins:
- type: active-request-scorer
- type: request-attribute-reporter
  parameters:
    attributes:
    - key: {name: price}
      expression: usage.prompt_tokens + 2.0 * usage.completion_tokens
      condition: usage.completion_tokens > 3.0
- type: request-attribute-reporter
  name: length
  parameters:
    attributes:
    - key: {namespace: com.example.usage, name: length}
      expression: "usage.completion_tokens > 3.0 ? 'long' : 'short'"
""")


def with_access_log(settings: GatewaySettings, log: Path) -> dict:
    """The gateway's configuration, and a log of the metadata that requests have at their end, as operators add one."""
    bootstrap = bootstrap_dict(settings)
    (listener,) = bootstrap["static_resources"]["listeners"]
    (chain,) = listener["filter_chains"]
    (network_filter,) = chain["filters"]
    metadata = {"price": "%DYNAMIC_METADATA(envoy.lb:price)%", "length": "%DYNAMIC_METADATA(com.example.usage:length)%"}
    network_filter["typed_config"]["access_log"] = [
        {
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": str(log),
                "log_format": {"json_format": metadata},
            },
        }
    ]
    return bootstrap


@pytest.fixture
def access_log(tmp_path, monkeypatch) -> Path:
    log = tmp_path / "access.log"
    monkeypatch.setattr(
        "epp.lab.gateway.envoy.bootstrap_json", lambda settings: json.dumps(with_access_log(settings, log))
    )
    return log


async def test_price_of_a_response_reaches_the_gateways_access_log(sim, access_log):
    async with open_world(endpoints=sim.address, config=PRICED) as world:
        ask = world.client.chat.completions.create
        whole = await ask(**question(tokens=10))
        stream = await ask(**question(tokens=20, stream=True, stream_options={"include_usage": True}))
        streamed = [chunk async for chunk in stream][-1]
        await ask(**question(tokens=2))  # too short for a price
        await world.settled()
    usages = [whole.usage, streamed.usage]
    assert [usage.completion_tokens for usage in usages] == [10, 20]
    prices = [usage.prompt_tokens + 2 * usage.completion_tokens for usage in usages]
    assert [json.loads(line) for line in access_log.read_text().splitlines()] == [
        {"price": prices[0], "length": "long"},
        {"price": prices[1], "length": "long"},
        {"price": None, "length": "short"},
    ]


VERIFIED = picker_config("""
dataLayer: {injectDefaults: false}
plugins:
- type: header-label-affinity-scorer
  parameters: {headerName: x-prefer, labelKey: state}
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 2}
- type: destination-endpoint-served-verifier
""")


async def served_endpoint(world: World, **headers: str) -> str:
    return (await world.headers(extra_headers=headers))["x-conformance-test-served-endpoint"]


async def test_response_names_the_server_that_the_gateway_reached_in_the_end(simulated, tmp_path):
    sims = await simulated("alive")
    asked_once = "plugins:\n- {type: metrics-data-source, parameters: {interval: 1h}}\n"  # nobody notices that one dies
    config = VERIFIED.replace("{injectDefaults: false}", "{}").replace("plugins:\n", asked_once)
    gateway = GatewaySettings(listen_port=0, cluster_type=ClusterType.OVERRIDE_HOST)
    async with contextlib.AsyncExitStack() as life:
        doomed = await life.enter_async_context(running(msgspec.structs.replace(FAST, name="dead")))
        pool = endpoints_file(
            tmp_path / "endpoints.yaml",
            dead=(doomed.address, {"state": "dead"}),
            alive=(sims["alive"].address, {"state": "alive"}),
        )
        blind = OutlierSettings(enabled=False)
        async with open_world(config=with_pool(config, pool), gateway=gateway, outliers=blind) as world:
            await until(lambda: not np.isnan(list(world.column(METRICS_AT).values())).any(), "both were asked")
            await life.aclose()
            assert await served_endpoint(world, **{"x-prefer": "dead"}) == sims["alive"].address
            assert await served_endpoint(world, **{"x-prefer": "alive"}) == sims["alive"].address
            assert world.available == {"dead", "alive"}  # so the gateway was sent to the dead one first


async def test_response_does_not_guess_where_the_gateway_says_nothing(sim):
    async with open_world(endpoints=sim.address, config=VERIFIED) as world:  # original-dst reports nobody
        assert await served_endpoint(world) == "no served metadata"
