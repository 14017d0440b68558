# SPDX-License-Identifier: Apache-2.0
"""Headers that an operator has switched off do nothing, unless a gateway that is trusted sends them."""

import json

import aiohttp
import pytest

from epp.lab.sim.server import RunningSim
from tests.support.gateways import gateway_of
from tests.support.serving import PLAIN, request, serving
from tests.support.world import MODEL, question

REWRITE = "x-llm-d-model-name-rewrite"


async def asked_of_the_server(sim: RunningSim, *flags: str) -> str:
    """Ask for another model as a gateway on this machine does; return the one that the server would be asked for."""
    async with serving(sim, PLAIN, *flags) as served, served.channel() as channel:
        call = await request(channel, json.dumps(question()).encode(), **{REWRITE: "tuned", "x-tag": "1"})
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


async def test_clients_of_the_gateway_command_cannot_use_what_is_switched_off(sim):
    sent = {REWRITE: "tuned", "x-session-id": "s", "x_session_id": "s", "prefer": "if-available", "x-tag": "1"}
    async with (
        gateway_of(f"--endpoints=a={sim.address}", "--ignore-client-headers=all") as gateway,
        aiohttp.ClientSession(f"http://{sim.address}") as client,
    ):
        response = await gateway.post("/v1/chat/completions", question(), **sent)
        assert (response.status, (await response.json())["model"]) == (200, MODEL)
        async with client.get("/sim/requests") as requests:
            (record,) = await requests.json()
    assert record["model"] == MODEL
    arrived = {name for name, _ in record["headers"]}
    assert not arrived & sent.keys() - {"x-tag"}
    assert "x-tag" in arrived
