# SPDX-License-Identifier: Apache-2.0
"""A server that fails every request at once, beside good ones: few requests are lost, whatever clients do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from epp.lab.sim.profile import PRESETS
from epp.lab.sim.server import running
from tests.support.gateways import gateway_of
from tests.support.listening import Handler, listening
from tests.support.world import MODEL, question

IDLE = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.0\n"
REQUESTS, AT_A_TIME, MOST_LOST = 100, 4, 12


def failing(kind: str) -> Handler:
    """The handler of a server with the metrics page of an idle one, which fails every other request."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.method == "GET":
            return web.Response(text=IDLE)
        if kind == "empty stream":
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"data: [DONE]\n\n")
            return response
        body = {"error": {"message": "broken"}}
        return web.json_response(body, status=int(kind) if kind.isdecimal() else 200)

    return answer


@asynccontextmanager
async def good_servers(machines: Sequence[str]) -> AsyncIterator[list[str]]:
    """Run simulated servers, ten times as fast as these machines; yields their addresses."""
    async with AsyncExitStack() as stack:
        profiles = [replace(PRESETS[machine], model=MODEL, time_scale=0.1) for machine in machines]
        yield [(await stack.enter_async_context(running(each))).address for each in profiles]


async def send(http: aiohttp.ClientSession, url: str, number: int, *, stream: bool, closes: bool) -> bool:
    """Return whether the request was answered with a token."""
    prompt = f"question {number} " + f"{number} " * 200
    async with http.post(f"{url}/v1/chat/completions", json=question(prompt, 20, stream=stream)) as response:
        if response.status != 200:
            if closes:
                response.close()
            else:
                await response.read()
            return False
        return '"content"' in await response.text()


async def lost(kind: str, machines: Sequence[str], *, closes: bool) -> tuple[int, list[str]]:
    """Return how many requests were lost beside a failing server, and the endpoints that are out at the end."""
    async with listening(failing(kind)) as address, good_servers(machines) as servers:
        endpoints = ",".join([f"failing={address}", *servers])
        async with gateway_of(f"--endpoints={endpoints}") as gateway, aiohttp.ClientSession() as http:
            await gateway.shows(lambda health: health["reachable"] == len(servers) + 1, "all servers are used")
            numbers = iter(range(REQUESTS))
            answered = []

            async def client() -> None:
                for number in numbers:
                    stream = kind == "empty stream"
                    answered.append(await send(http, gateway.url, number, stream=stream, closes=closes))

            if kind == "404":  # which counts once another server has answered for the model
                while not await send(http, gateway.url, REQUESTS, stream=False, closes=closes):
                    pass
            await asyncio.gather(*(client() for _ in range(AT_A_TIME)))
            _, health = await gateway.health()
            return answered.count(False), [one["endpoint"] for one in health["unreachable"]]


@pytest.mark.parametrize(
    ("machines", "closes"),
    [
        (("h100", "t4"), True),
        pytest.param(("t4",), False, marks=pytest.mark.slow),
        pytest.param(("a100", "a100", "t4"), False, marks=pytest.mark.slow),
    ],
)
async def test_server_that_answers_500_at_once_is_ejected_though_clients_do_not_read_that(machines, closes):
    count, out = await lost("500", machines, closes=closes)
    assert count <= MOST_LOST
    assert out == ["failing"]


@pytest.mark.parametrize(
    "kind",
    [
        "200 with an error",
        pytest.param("empty stream", marks=pytest.mark.slow),
        pytest.param("404", marks=pytest.mark.slow),
    ],
)
async def test_server_that_fails_otherwise_is_ejected_too(kind):
    count, out = await lost(kind, ("h100", "h100"), closes=False)
    assert count <= MOST_LOST
    assert out == ["failing"]
