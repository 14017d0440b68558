# SPDX-License-Identifier: Apache-2.0
"""The priority of a request, from its objective to the body that a model server gets."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.test_policies import OBJECTIVE, objective, written
from tests.support.config_files import picker_config
from tests.support.gateways import gateway_of
from tests.support.listening import listening

CONFIG = picker_config("""
plugins: [{type: openai-parser, parameters: {propagatePriority: true}}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
""")


@pytest.mark.parametrize(("label", "sent"), [("", -7), (";llm-d.ai/engine-type=sglang", 7)], ids=["vllm", "sglang"])
async def test_engine_gets_the_priority_of_the_objective_in_its_own_direction(tmp_path, label, sent):
    bodies: asyncio.Queue[dict] = asyncio.Queue()

    async def serve(request: web.Request) -> web.Response:
        if request.method == "POST":
            bodies.put_nowait(await request.json())
        return web.json_response({})

    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    objects = written(tmp_path / "objects.yaml", objective("urgent", 7))
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "priority": 1000}
    async with (
        listening(serve) as address,
        gateway_of(f"--config-file={config}", f"--endpoints={address}{label}", f"--objects={objects}") as gateway,
        aiohttp.ClientSession(gateway.url) as http,
    ):
        for headers, priority in (({OBJECTIVE: "urgent"}, sent), ({}, 0)):
            async with http.post("/v1/chat/completions", json=chat, headers=headers) as response:
                assert response.status == 200
            assert await bodies.get() == chat | {"priority": priority}
