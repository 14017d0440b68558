# SPDX-License-Identifier: Apache-2.0
"""A server that fails every request at once, beside good ones: few requests are lost, whatever clients do."""

import asyncio
import sys

import aiohttp
import pytest
from aiohttp import web

from tests.support import world
from tests.support.echo import Handler, listening
from tests.support.gateways import gateway_of
from tests.support.killed_servers import Mortal, mortals
from tests.support.waiting import until

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


def preset(machines: tuple[str, ...]):
    """The command of a simulated server, ten times as fast as the machine that its name tells."""

    def command_of(name: str, port: int) -> tuple[str, ...]:
        machine = machines[int(name.removeprefix("s"))]
        return (
            sys.executable,
            "-m",
            "epp",
            "sim-server",
            f"--port={port}",
            f"--model={world.MODEL}",
            f"--preset={machine}",
            "--time-scale=0.1",
        )

    return command_of


async def send(http: aiohttp.ClientSession, url: str, number: int, *, stream: bool, closes: bool) -> bool:
    """Return whether the request was answered with a token."""
    prompt = f"question {number} " + f"{number} " * 200
    body = {"model": world.MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 20, "stream": stream}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            if closes:
                response.close()
            else:
                await response.read()
            return False
        return '"content"' in await response.text()


async def lost(kind: str, servers: list[Mortal], *, closes: bool) -> tuple[int, list[str]]:
    """Return how many requests were lost beside a failing server, and the endpoints that are out at the end."""
    async with listening(failing(kind)) as address:
        endpoints = ",".join([f"failing={address}", *(f"{server.name}={server.address}" for server in servers)])
        async with gateway_of(f"--endpoints={endpoints}") as gateway, aiohttp.ClientSession() as http:

            async def all_used() -> bool:
                return (await gateway.health())[1]["reachable"] == len(servers) + 1

            await until(all_used, "all servers are used")
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
    async with mortals(len(machines), preset(machines)) as servers:
        count, out = await lost("500", servers, closes=closes)
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
    async with mortals(2, preset(("h100", "h100"))) as servers:
        count, out = await lost(kind, servers, closes=False)
    assert count <= MOST_LOST
    assert out == ["failing"]
