"""Every pair of body modes through a real Envoy: each body arrives as it was sent, both ways."""

import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from world import until

from epp.config import load_text
from epp.discovery import StaticDiscovery, parse_targets
from epp.extproc.server import ServerSettings
from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.gateway import BodyMode, GatewaySettings, HeaderMode
from epp.local import local_gateway
from epp.picker import PickerSettings

SIZES = (0, 1, 62_000, 62_001, 5_000_000)
MIB = 2**20
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: openai-parser}, {type: passthrough-parser}, {type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: passthrough-parser}]}
dataLayer: {injectDefaults: false}
"""


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(size)


@dataclass
class Echo:
    """A model server that notes what arrives and answers with as many bytes as it is asked for."""

    address: str = ""
    arrived: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.arrived.append((request.path, digest(await request.read())))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = noise(int(request.headers["answer-bytes"]))
        if request.headers["answer-as"] == "whole":
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(body), 50_000):
            await response.write(body[start : start + 50_000])
        return response


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    app = web.Application(client_max_size=64 * MIB)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway_in_front_of(server: Echo, **settings):
    picker = PickerSettings(
        server=ServerSettings("unix:unset"),
        config=load_text(CONFIG),
        discovery=StaticDiscovery(parse_targets(server.address)),
    )
    async with local_gateway(picker, GatewaySettings(listen_port=0, **settings)) as gateway:
        yield gateway


def buffer_limit(*modes: BodyMode) -> int:
    """What a whole body fits in, but where a part of it is the point."""
    return MIB if BodyMode.BUFFERED_PARTIAL in modes else 16 * MIB


def chat(size: int) -> bytes:
    """A chat request of exactly so many bytes."""
    empty = {"model": "m", "messages": [{"role": "user", "content": ""}]}
    empty["messages"][0]["content"] = "x" * (size - len(json.dumps(empty)))
    return json.dumps(empty).encode()


@pytest.mark.parametrize("response_mode", BodyMode)
@pytest.mark.parametrize("request_mode", BodyMode)
async def test_bodies_pass_unchanged(request_mode, response_mode):
    limit = buffer_limit(request_mode, response_mode)
    modes = {"request_body_mode": request_mode, "response_body_mode": response_mode}
    async with (
        echo() as server,
        gateway_in_front_of(server, **modes, buffer_limit_bytes=limit) as gateway,
        aiohttp.ClientSession() as client,
    ):
        sent = [("/raw", noise(size)) for size in SIZES] + [
            ("/v1/chat/completions", chat(size)) for size in SIZES if size > 1
        ]
        if BodyMode.BUFFERED in (request_mode, response_mode):
            sent = [(path, body) for path, body in sent if len(body) <= limit]  # Envoy's own limit on whole bodies
        for path, body in sent:
            for way in ("whole", "stream"):
                expected = noise(len(body))
                headers = {"answer-bytes": str(len(body)), "answer-as": way, "content-type": "application/json"}
                async with client.post(gateway.url + path, data=io.BytesIO(body), headers=headers) as response:
                    answer = await response.read()
                    assert response.status == 200, answer[:500]
                assert digest(answer) == digest(expected)
                assert server.arrived.pop() == (path, digest(body))
        async with client.get(
            f"{gateway.url}/v1/models", headers={"answer-bytes": "3", "answer-as": "whole"}
        ) as response:
            assert (response.status, await response.read()) == (200, noise(3))
        store = gateway.picker.store
        await until(lambda: store.snapshot().column(IN_FLIGHT)[0] == 0, "nothing is in flight")
        assert store.snapshot().column(SERVED)[0] == 2 * len(sent) + 1


@pytest.mark.parametrize("claims_length", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [1_000, 300_000])
@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
async def test_rewritten_body_arrives_whole(mode, size, claims_length):
    limit = 65_536 if mode is BodyMode.BUFFERED_PARTIAL else MIB
    body = chat(size)
    headers = {"answer-bytes": "1", "answer-as": "whole", "x-llm-d-model-name-rewrite": "a-longer-name"}

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with (
        echo() as server,
        gateway_in_front_of(server, request_body_mode=mode, buffer_limit_bytes=limit) as gateway,
        aiohttp.ClientSession() as client,
        client.post(
            f"{gateway.url}/v1/chat/completions", data=io.BytesIO(body) if claims_length else chunks(), headers=headers
        ) as response,
    ):
        assert response.status == 200
        assert server.arrived == [("/v1/chat/completions", digest(body.replace(b'"m"', b'"a-longer-name"')))]


SKIP, DEFAULT = HeaderMode.SKIP, HeaderMode.DEFAULT
BUFFERED, STREAMED, DUPLEX = BodyMode.BUFFERED, BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED


@pytest.mark.parametrize(
    "modes",
    [
        {"request_body_mode": DUPLEX, "response_body_mode": STREAMED, "response_header_mode": SKIP},
        {"request_body_mode": BUFFERED, "response_body_mode": BUFFERED, "response_header_mode": SKIP},
        {
            "request_body_mode": BUFFERED,
            "response_body_mode": STREAMED,
            "request_trailer_mode": SKIP,
            "response_trailer_mode": SKIP,
        },
        {
            "request_body_mode": STREAMED,
            "response_body_mode": STREAMED,
            "request_header_mode": DEFAULT,
            "response_header_mode": DEFAULT,
            "request_trailer_mode": DEFAULT,
            "response_trailer_mode": DEFAULT,
        },
    ],
    ids=lambda modes: "-".join(f"{side}:{mode}" for side, mode in modes.items()),
)
async def test_bodies_pass_unchanged_where_headers_or_trailers_are_not_shown(modes):
    async with (
        echo() as server,
        gateway_in_front_of(server, **modes, buffer_limit_bytes=16 * MIB) as gateway,
        aiohttp.ClientSession() as client,
    ):
        body = json.dumps({"model": "m", "prompt": "p" * 62_001}).encode()
        for way in ("whole", "stream"):
            headers = {"answer-bytes": "62001", "answer-as": way, "content-type": "application/json"}
            async with client.post(f"{gateway.url}/v1/completions", data=io.BytesIO(body), headers=headers) as response:
                assert digest(await response.read()) == digest(noise(62_001))
            assert server.arrived.pop() == ("/v1/completions", digest(body))
        store = gateway.picker.store
        await until(lambda: store.snapshot().column(IN_FLIGHT)[0] == 0, "nothing is in flight")


async def test_request_headers_that_are_not_shown_are_refused_by_the_gateway():
    """They leave before a destination is named: Envoy itself answers 503, and the picker says what to set."""
    modes = {"request_body_mode": BUFFERED, "response_body_mode": STREAMED, "request_header_mode": SKIP}
    async with (
        echo() as server,
        gateway_in_front_of(server, **modes) as gateway,
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}/v1/completions", json={"model": "m", "prompt": "p"}) as response,
    ):
        assert response.status == 503
        assert server.arrived == []
