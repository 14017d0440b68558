# SPDX-License-Identifier: Apache-2.0
"""A model server that answers as it is told, and a gateway in front of it in any modes."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from epp.app import PickerSettings
from epp.config import load_text
from epp.lab.gateway.local import local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.support.config_files import picker_config
from tests.support.listening import listening
from tests.support.transports import server_settings

MIB = 2**20
CONFIG = picker_config("""
plugins: [{type: openai-parser}, {type: passthrough-parser}, {type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: passthrough-parser}]}
dataLayer: {injectDefaults: false}
""")


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
async def echo(server: Echo | None = None) -> AsyncIterator[Echo]:
    server = server or Echo()
    async with listening(server.answer) as server.address:
        yield server


@asynccontextmanager
async def gateway_in_front_of(server: Echo, *, config: str = CONFIG, **settings):
    picker = PickerSettings(
        server=server_settings(), config=load_text(config), discovery=StaticDiscovery(parse_targets(server.address))
    )
    async with local_gateway(picker, GatewaySettings(listen_port=0, **settings)) as gateway:
        yield gateway


def chat(size: int) -> bytes:
    """A chat request of exactly so many bytes."""
    empty = {"model": "m", "messages": [{"role": "user", "content": ""}]}
    empty["messages"][0]["content"] = "x" * (size - len(json.dumps(empty)))
    return json.dumps(empty).encode()
