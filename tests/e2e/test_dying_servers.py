# SPDX-License-Identifier: Apache-2.0
"""Model servers that are killed under load, behind a real Envoy: how many requests are lost, and how that is told."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from itertools import count

import aiohttp
import pytest

from tests.support.config_files import picker_config
from tests.support.gateways import Gateway, gateway_of
from tests.support.killed_servers import MODEL, Load, Mortal, killed_in_turn, mortals
from tests.support.waiting import until
from tests.support.world import question

pytestmark = pytest.mark.slow

SUSPICIONS = "llm_d_epp_outlier_detection_suspicions_total"
EJECTED = "llm_d_epp_outlier_detection_ejections_active"
OVERRIDE_HOST = "--cluster-type=override-host"
FALLBACKS = "--config-text=" + picker_config("""
plugins:
- type: active-request-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]}]
""")


@contextlib.asynccontextmanager
async def gateway_before(servers: Sequence[Mortal], *flags: str) -> AsyncIterator[Gateway]:
    endpoints = ",".join(f"{server.name}={server.address}" for server in servers)
    async with gateway_of(f"--endpoints={endpoints}", *flags) as gateway:
        await until(lambda: all_used(gateway, len(servers)), "all servers are used")
        yield gateway


async def all_used(gateway: Gateway, number: int) -> bool:
    _, health = await gateway.health()
    return health["reachable"] == number


async def is_used(gateway: Gateway, server: Mortal) -> bool:
    _, health = await gateway.health()
    return server.name not in {one["endpoint"] for one in health["unreachable"]}


async def ask(gateway: Gateway, prompt: str) -> tuple[int, str]:
    """Return the status, and the server that answered."""
    response = await gateway.post("/v1/chat/completions", question(prompt, model=MODEL))
    return response.status, response.headers.get("x-sim-server", "")


async def lines_of(gateway: Gateway, outcome: str) -> list[dict[str, object]]:
    """The log lines of requests that ended so."""
    lines = [json.loads(line) for line in gateway.process.err if line.startswith("{")]
    return [line for line in lines if line.get("outcome") == outcome]


async def test_with_the_list_of_fallbacks_and_retries_none_is_lost():
    flags = (OVERRIDE_HOST, "--retry-on-reset", FALLBACKS)
    async with mortals(4) as servers, gateway_before(servers, *flags) as gateway:
        campaign = await killed_in_turn(
            gateway.url, servers, Load(rate=60), kills=6, is_back=lambda server: is_used(gateway, server)
        )
        assert len(campaign.sent) > 300
        assert not campaign.lost, str(campaign)


async def test_safe_retries_lose_only_what_a_server_takes_with_it():
    async with mortals(4) as servers, gateway_before(servers, OVERRIDE_HOST, FALLBACKS) as gateway:
        campaign = await killed_in_turn(
            gateway.url, servers, Load(rate=60), kills=4, is_back=lambda server: is_used(gateway, server)
        )
        assert not campaign.lost_long_after(), str(campaign)


async def test_lost_server_and_client_that_left_are_told_apart():
    async with mortals(1) as (server,), gateway_before([server]) as gateway, aiohttp.ClientSession() as http:
        url = f"{gateway.url}/v1/chat/completions"
        response = await http.post(url, json=question("long", 60_000, model=MODEL, stream=True))
        await response.content.readline()
        response.close()
        await until(lambda: lines_of(gateway, "client-disconnect"), "the client that left is in the log")

        response = await http.post(url, json=question("long", 60_000, model=MODEL, stream=True))
        await response.content.readline()
        await server.end()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await until(lambda: lines_of(gateway, "server-lost"), "the lost server is in the log")

        samples = (await gateway.metrics())["llm_d_epp_endpoint_responses_total"]
        outcomes = {label: count for labels, count in samples.items() for label in labels if "outcome" in label}
        assert outcomes == {"outcome=client-disconnect": 1, "outcome=server-lost": 1}
        (lost,) = await lines_of(gateway, "server-lost")
        assert (lost["endpoint"], lost["status"]) == ("s0", 200)


async def test_server_that_takes_polls_and_cuts_requests_is_ejected_and_tried_again():
    flags = ("--outlier-base-ejection-time=1s", "--outlier-max-ejection-time=1s")
    async with mortals(2) as servers, gateway_before(servers, *flags) as gateway:
        for number in range(40):  # both are picked, in turns
            await ask(gateway, f"cut {number}")
            if (await gateway.metrics())[EJECTED][frozenset()]:
                break
        _, health = await gateway.health()
        (unused,) = health["unreachable"]
        assert unused["why"].startswith("ejected: 3 failed connections in a row")
        assert (await gateway.metrics())[SUSPICIONS][frozenset({"verdict=answers"})] >= 3
        other = next(server.name for server in servers if server.name != unused["endpoint"])
        assert [await ask(gateway, "hello") for _ in range(4)] == [(200, other)] * 4

        numbers = count()

        async def asked() -> bool:
            return await ask(gateway, f"{next(numbers)} is a prompt of its own") == (200, unused["endpoint"])

        await until(asked, "a request is its trial")
        await until(lambda: is_used(gateway, next(s for s in servers if s.name == unused["endpoint"])), "it is back")


@pytest.mark.parametrize("prompts", [["500"], [f"500 {number}" for number in range(30)]])
async def test_requests_that_fail_wherever_they_go_eject_no_server(prompts):
    async with mortals(3) as servers, gateway_before(servers) as gateway:
        asked = [ask(gateway, prompts[number % len(prompts)]) for number in range(120)]
        assert {status for status, _ in await asyncio.gather(*asked)} == {500}
        assert (await gateway.metrics())[EJECTED][frozenset()] == 0
        assert await all_used(gateway, 3)
