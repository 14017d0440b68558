# SPDX-License-Identifier: Apache-2.0
"""Equal prompts that arrive together, through a real Envoy: they are held for a moment, and go to one server."""

import asyncio

from tests.support.config_files import picker_config
from tests.support.gateways import gateway_of
from tests.support.world import MODEL, pool_of

CONFIG = picker_config("""
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 300}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
""")


async def test_equal_prompts_of_a_burst_go_to_one_server_and_other_ones_to_another(simulated, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    pool = pool_of(await simulated("a", "b"))
    flags = (f"--config-file={config}", f"--endpoints={pool}", "--allow-experimental-plugins", "--decision-headers")
    async with gateway_of(*flags) as gateway:

        async def ask(prompt: str) -> str:
            body = {"model": MODEL, "prompt": prompt * 500, "max_tokens": 1}
            response = await gateway.post("/v1/completions", body)
            assert response.status == 200
            return response.headers["x-epp-endpoint"].partition("=")[0]

        served = await asyncio.gather(*map(ask, "xyxyxyxy"))
        assert len(set(served[::2])) == len(set(served[1::2])) == 1
        assert served[0] != served[1]
        assert await gateway.total("burst_prefix_requests_total") == 8
