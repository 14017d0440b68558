# SPDX-License-Identifier: Apache-2.0
"""Two pickers, each behind a real Envoy, in front of the same servers."""

import time
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import msgspec

from epp.lab.sim.server import running
from tests.support.gateways import Gateway, gateway_of
from tests.support.load import load_on
from tests.support.waiting import until
from tests.support.world import FAST, MODEL, pool_of

QUOTAS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- type: tenant-quotas
  parameters: {default: {total: {tokensPerMinute: 120}}}
"""
PROMPT = "one of many equal beginnings " * 400


async def healthy(*gateways: Gateway, connected: bool) -> None:
    async def are_so() -> bool:
        states = [(await each.health())[1]["shared_state"] for each in gateways]
        return all(each["connected"] is connected and ("problem" in each) is not connected for each in states)

    await until(are_so, f"/healthz says whether the state is shared: {connected}")


async def grown(gateway: Gateway, counter: str) -> None:
    """Wait until a counter of shared state is higher than now; each picker tells at least each second."""

    async def value() -> float:
        return sum((await gateway.metrics())[f"llm_d_epp_shared_state_{counter}_total"].values())

    before = await value()

    async def is_higher() -> bool:
        return await value() > before

    await until(is_higher, f"{counter} grows")


async def ask(gateway: Gateway, prompt: str) -> str:
    """Return the name of the server that answered."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    async with aiohttp.ClientSession() as http, http.post(f"{gateway.url}/v1/completions", json=body) as response:
        assert response.status == 200
        return response.headers["x-sim-server"]


async def test_prompt_finds_its_cache_through_the_other_picker_and_no_request_needs_the_server(server):
    shared = await server()
    async with AsyncExitStack() as stack:
        named = {name: msgspec.structs.replace(FAST, name=name) for name in "abc"}
        sims = {name: await stack.enter_async_context(running(profile)) for name, profile in named.items()}
        pool = pool_of(sims)
        flags = (f"--endpoints={pool}", f"--shared-state={shared.url}")
        one, other = [await stack.enter_async_context(gateway_of(*flags)) for _ in range(2)]
        await healthy(one, other, connected=True)
        for number in range(6):
            prompt = f"{number} {PROMPT}"
            first = await ask(one, prompt)
            await grown(one, "published_batches")  # a batch that was made after the request
            await grown(other, "applied_batches")  # that one, or a later one
            assert await ask(other, f"{prompt} and another end") == first
        async with load_on(one.url) as here, load_on(other.url) as there:
            await here.answered_after(time.monotonic())
            shared.kill()
            await healthy(one, other, connected=False)
            moment = time.monotonic()
            await here.answered_after(moment)
            await there.answered_after(moment)
            shared.start()
            await healthy(one, other, connected=True)
            moment = time.monotonic()
            await here.answered_after(moment)
            await there.answered_after(moment)
        metrics = await one.metrics()
        values = {name: sum(samples.values()) for name, samples in metrics.items() if "shared_state" in name}
        assert values["llm_d_epp_shared_state_peers"] == 1
        assert values["llm_d_epp_shared_state_applied_entries_total"] > 0
        assert values["llm_d_epp_shared_state_refused_total"] == 0


async def test_tokens_of_a_tenant_count_at_all_pickers(server, tmp_path):
    shared = await server()
    config = tmp_path / "quotas.yaml"
    config.write_text(QUOTAS)
    async with AsyncExitStack() as stack:
        pool = pool_of({"a": await stack.enter_async_context(running(FAST))})
        flags = (f"--config-file={config}", f"--endpoints={pool}", f"--shared-state={shared.url}")
        gateways = [await stack.enter_async_context(gateway_of(*flags)) for _ in range(3)]
        await healthy(*gateways, connected=True)
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 100, "ignore_eos": True}
        async with aiohttp.ClientSession(headers={"x-llm-d-inference-fairness-id": "team-a"}) as http:
            async with http.post(f"{gateways[0].url}/v1/completions", json=body) as response:
                assert response.status == 200

            async def is_known(gateway: Gateway) -> bool:
                return sum((await gateway.metrics()).get("llm_d_epp_quota_used", {}).values()) > 90

            for gateway in gateways[1:]:
                await until(partial(is_known, gateway), "the tokens are known")
                async with http.post(f"{gateway.url}/v1/completions", json=body) as response:
                    assert response.status == 429
                    assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-quota"
