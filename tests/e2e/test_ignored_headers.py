# SPDX-License-Identifier: Apache-2.0
"""Headers that an operator has switched off do nothing, unless a gateway that is trusted sends them."""

import json

import aiohttp
import pytest

from epp.extproc.wire import FULL_DUPLEX_STREAMED
from epp.lab.sim.server import RunningSim
from tests.support.commands import command
from tests.support.exchanges import request_body, request_headers
from tests.support.serving import PLAIN, exchange, serving
from tests.support.world import MODEL

REWRITE = "x-llm-d-model-name-rewrite"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


async def asked_of_the_server(sim: RunningSim, *flags: str) -> str:
    """Ask for another model as a gateway on this machine does; return the one that the server would be asked for."""
    async with serving(sim, PLAIN, *flags) as served, served.channel() as channel:
        call = exchange(channel)
        message = request_headers(**{REWRITE: "tuned", "x-tag": "1"})
        message.protocol_config.request_body_mode = FULL_DUPLEX_STREAMED
        await call.write(message)
        await call.write(request_body(json.dumps(BODY).encode()))
        mutation = (await call.read()).request_headers.response.header_mutation
        assert REWRITE in mutation.remove_headers
        assert "x-tag" not in mutation.remove_headers
        piece = (await call.read()).request_body.response.body_mutation.streamed_response
        return json.loads(piece.body)["model"]


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (("--ignore-client-headers=all", "--trusted-gateways=10.0.0.0/8,::1"), MODEL),
        (("--ignore-client-headers=all", "--trusted-gateways=127.0.0.0/8"), "tuned"),
    ],
)
async def test_header_counts_from_trusted_gateways_alone_where_it_is_switched_off(sim, flags, model):
    assert await asked_of_the_server(sim, *flags) == model


async def test_clients_of_the_gateway_command_cannot_use_what_is_switched_off(simulated):
    sims = await simulated("a")
    flags = ("--listen=127.0.0.1:0", f"--endpoints=a={sims['a'].address}", "--ignore-client-headers=all")
    async with command("gateway", *flags) as process, aiohttp.ClientSession() as client:
        url = (await process.says("listening on ")).split()[2]
        sent = {REWRITE: "tuned", "x-session-id": "s", "x_session_id": "s", "prefer": "if-available", "x-tag": "1"}
        async with client.post(f"{url}/v1/chat/completions", json=BODY, headers=sent) as response:
            assert response.status == 200
            assert (await response.json())["model"] == MODEL
        async with client.get(f"http://{sims['a'].address}/sim/requests") as response:
            (record,) = await response.json()
    assert record["model"] == MODEL
    arrived = {name for name, _ in record["headers"]}
    assert not arrived & sent.keys() - {"x-tag"}
    assert "x-tag" in arrived
