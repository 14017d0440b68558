# SPDX-License-Identifier: Apache-2.0
"""The render API of a vLLM server, as vLLM 0.32 answers; it can hang, fail, or answer anything."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.listening import listening


class RenderServer:
    """Renders each message or prompt as one token for each byte; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.hangs = False
        self.answer: Callable[[dict[str, Any]], Any] | bytes | None = None
        self.released = asyncio.Event()
        """Ends the requests that hang."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((request.path, body))
        if self.hangs:
            await self.released.wait()
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, status=self.status)
        found = self.answer(body) if self.answer is not None else rendered(body)
        return web.Response(text=json.dumps(found), status=self.status)


def rendered(body: dict[str, Any]) -> Any:
    """Return what the server answers by default."""
    if "messages" in body:
        return {"request_id": "r", "token_ids": ids("".join(each["content"] for each in body["messages"]))}
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    return [{"request_id": "r", "token_ids": ids(prompt), "features": None} for prompt in prompts]


def ids(text: str) -> list[int]:
    return list(text.encode())


@asynccontextmanager
async def render_server() -> AsyncIterator[RenderServer]:
    server = RenderServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/{path:.*}/render", server.handle)
    async with listening(app) as address:
        server.url = f"http://{address}"
        yield server
