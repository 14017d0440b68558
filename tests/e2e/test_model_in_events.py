# SPDX-License-Identifier: Apache-2.0
"""Wherever an event of a stream has the name of a rewritten model, the client finds its own, through a real Envoy."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from epp.lab.gateway.settings import BodyMode
from tests.support.config_files import picker_config
from tests.support.echo import Echo, echo, gateway_in_front_of

RESPONSES = [
    {"type": "response.created", "sequence_number": 0, "response": {"id": "r", "model": "served", "output": []}},
    {"type": "response.output_text.delta", "sequence_number": 1, "delta": 'the "model":"served" is'},
    {
        "response": {"object": "response", "output": [{"text": "served"}], "model": "served"},
        "type": "response.completed",
    },
]
MESSAGES = [
    {"type": "message_start", "message": {"id": "m", "role": "assistant", "model": "served", "content": []}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": '{"model":"served"}'}},
    {"type": "message_stop"},
]
CHUNKS = [{"id": "c", "model": "served", "choices": [{"delta": {"content": "served"}}]}]
CONFIG = picker_config("""
plugins: [{type: openai-parser}, {type: anthropic-parser}, {type: random-picker}]
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: anthropic-parser}]}
dataLayer: {injectDefaults: false}
""")
MODES = [{}, {"request_body_mode": BodyMode.BUFFERED, "response_body_mode": BodyMode.STREAMED}]


class Scripted(Echo):
    """Streams these bytes, a few at a time."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body
        self.models: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.models = [json.loads(await request.read())["model"]]
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for start in range(0, len(self.body), 37):
            await response.write(self.body[start : start + 37])
            await asyncio.sleep(0)
        return response


@pytest.mark.parametrize("modes", MODES, ids=["full duplex", "streamed"])
@pytest.mark.parametrize(
    ("path", "events", "held_in"),
    [
        ("/v1/responses", RESPONSES, ["response"]),
        ("/v1/messages", MESSAGES, ["message"]),
        ("/v1/chat/completions", CHUNKS, []),
    ],
)
async def test_model_is_put_back_in_every_event_that_has_it(path, events, held_in, modes):
    end = "\r\n" if path == "/v1/responses" else "\n"
    body = "".join(f"event: {event.get('type', 'chunk')}{end}data: {json.dumps(event)}{end}{end}" for event in events)
    asked = {"model": "mine", "stream": True, "max_tokens": 5, "input": "hi"}
    asked["messages"] = [{"role": "user", "content": "hi"}]
    rewrite = {"x-llm-d-model-name-rewrite": "served"}
    async with (
        echo(Scripted(body.encode())) as server,
        gateway_in_front_of(server, config=CONFIG, **modes) as gateway,
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}{path}", json=asked, headers=rewrite) as response,
    ):
        assert response.status == 200
        received = (await response.read()).decode()
    assert server.models == ["served"]
    for event in events:
        of_model = event[held_in[0]] if held_in and held_in[0] in event else event
        if "model" in of_model:
            of_model = json.dumps(of_model)
            body = body.replace(of_model, of_model.replace('"model": "served"', '"model": "mine"', 1))
    assert received == body
    assert '"model": "mine"' in received
