# SPDX-License-Identifier: Apache-2.0
"""Nothing of what clients and model servers say to each other is in log lines or metrics, at any level."""

import asyncio
import contextlib
import itertools
import json

import aiohttp
import grpc
import pytest
from aiohttp import web

from tests.support.echo import Echo, echo
from tests.support.exchanges import request_body, request_headers, response_body, response_headers
from tests.support.gateways import gateway_of
from tests.support.serving import PATH, PLAIN, exchange, serving

CANARY = "xK7canaryQ2"
LEVELS = (2, 9)
"""The default one, and all lines that there are."""
HELLO = [{"role": "user", "content": CANARY}]
BODIES = [
    json.dumps({"model": "m", "messages": HELLO}),
    json.dumps({"model": "m", "messages": CANARY}),
    json.dumps({"model": "m", "messages": [{"role": CANARY, "content": [{"type": CANARY, CANARY: CANARY}]}]}),
    json.dumps({"model": "m", "messages": HELLO, "max_tokens": CANARY, "tools": [{"name": CANARY}]}),
    json.dumps({"model": {"a": CANARY}, "messages": HELLO}),
    json.dumps({"messages": HELLO, CANARY: 1}),
    json.dumps({"model": "m", "model2": "m", "messages": HELLO})[:-3],
    f'{{"model": "m", "messages": [{{"role": "user", "content": "{CANARY}\\ud800"}}]',
    f'{{"model": "m", "{CANARY}',
    f"{CANARY} is no JSON",
    f'["{CANARY}"]',
]
HEADERS = {
    "authorization": f"Bearer {CANARY}",
    "x-api-key": CANARY,
    "cookie": f"session={CANARY}",
    "x-anything": CANARY,
    "x-epp-accelerator-class": CANARY,
    "x-slo-ttft-ms": CANARY,
    "prefer": CANARY,
    "content-type": f"application/json; charset={CANARY}",
}


class Talkative(Echo):
    """Answers with text in every place that a picker may read, and with what is no answer."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        usage = {"prompt_tokens": CANARY, "completion_tokens": [CANARY]}
        streams = int(request.headers.get("x-turn", "0")) % 2
        if not streams:
            return web.json_response({"model": CANARY, "usage": usage, "choices": [{"text": CANARY}]}, status=500)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-answer": CANARY})
        await response.prepare(request)
        await response.write(f'data: {{"model": "{CANARY}", "usage": {json.dumps(usage)}}}\n\ndata: {CANARY}'.encode())
        assert request.transport is not None
        request.transport.close()  # in the middle of an event
        return response


@pytest.mark.parametrize("level", LEVELS)
async def test_requests_and_responses_are_not_in_log_lines(level):
    async with echo(Talkative()) as server:
        flags = (f"--endpoints=a={server.address}", f"-v={level}", "--max-request-body=4Ki")
        async with gateway_of(*flags) as gateway:
            bodies = [*BODIES, json.dumps({"model": "m", "messages": [{"role": "user", "content": CANARY * 1000}]})]
            for path in ("/v1/chat/completions", "/v1/responses", f"/generate?key={CANARY}"):
                for turn, body in enumerate(bodies):
                    with contextlib.suppress(aiohttp.ClientPayloadError):  # of the response that breaks off
                        await gateway.post(path, body.encode(), **HEADERS, **{"x-turn": str(turn)})
            metrics = await gateway.metrics()
            process = gateway.process
            process.terminate()
            await process.end()
    assert "llm_d_epp_request_total" in metrics
    assert CANARY not in str(metrics)
    assert any('"status"' in line or "status=" in line for line in process.err), process
    assert not [line for line in (*process.out, *process.err) if CANARY in line]


@pytest.mark.parametrize("level", LEVELS)
async def test_messages_that_no_gateway_would_send_are_not_in_log_lines(sim, level):
    secret = CANARY.encode()
    async with serving(sim, PLAIN, "--drain-timeout=0s", f"-v={level}") as served, served.channel() as channel:
        raw = channel.stream_stream(PATH, request_serializer=bytes, response_deserializer=bytes)
        whole = request_body(secret * 1000).SerializeToString()
        for message in (b"\xff" + secret, secret, whole[:-1], whole + b"\xff", b"\x0a" + secret):
            call = raw()
            await call.write(message)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert CANARY not in (await call.details() or "")
        headers = request_headers(**{"x-anything": CANARY}), response_headers(CANARY)
        for pair in itertools.product((*headers, request_body(secret), response_body(secret)), repeat=2):
            call = exchange(channel)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may have ended
                for message in pair:
                    await call.write(message)
                await call.done_writing()
                async for _ in call:
                    pass
        errors = (await served.metrics())["llm_d_epp_extproc_protocol_errors_total"]
        served.command.terminate()
        await served.command.end()
    assert errors[frozenset({"kind=undecodable"})] == 5
    assert errors[frozenset({"kind=headers-not-shown"})] >= 4
    assert any("stream closed: protocol error" in line for line in served.command.err)
    assert not any("Traceback" in line for line in served.command.err)
    assert not [line for line in (*served.command.out, *served.command.err) if CANARY in line]
