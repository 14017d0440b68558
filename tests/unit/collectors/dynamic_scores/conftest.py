# SPDX-License-Identifier: Apache-2.0
"""A scorer and a Prometheus over real HTTP, which do what a test tells them to."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from aiohttp import web

SERIES = [{"metric": {"node": "n1", "pod": "vllm-a"}, "values": [[1767225600, "310"], [1767225615, "305"]]}]


@dataclass
class Stub:
    """Both servers at one address."""

    url: str = ""
    results: list = field(default_factory=lambda: [{"metric": {"pod": "vllm-a"}, "score": 42.7}])
    mode: str = "well"
    """`well`, `hangs`, `redirects`, `huge`, `fails`, `compressed`, `drips`."""
    posted: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    config: dict | None = None
    healthy: bool = True

    async def scoring(self, request):
        self.posted.append((await request.json(), dict(request.headers)))
        match self.mode:
            case "hangs":
                await asyncio.sleep(3600)
            case "redirects":
                raise web.HTTPFound(f"{self.url}/elsewhere")
            case "fails":
                raise web.HTTPInternalServerError
            case "huge":
                return web.Response(body=b'{"results":[' + b"0," * (4 * 1024 * 1024) + b"0]}")
            case "compressed":
                return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})
            case "drips":
                answer = web.StreamResponse()
                await answer.prepare(request)
                for _ in range(3600):
                    await answer.write(b" ")
                    await asyncio.sleep(0.05)
        return web.json_response({"results": self.results})

    async def query(self, request):
        self.asked.append((dict(request.query), dict(request.headers)))
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": SERIES}})

    async def page(self, request):
        lines = "".join(
            f'dynamic_score{{ds_pod="{each["metric"].get("pod", "")}",ds_score_name="power"}} {each["score"]}\n'
            for each in self.results
        )
        return web.Response(text=lines)

    async def elsewhere(self, request):
        return web.json_response({"results": [{"metric": {"pod": "vllm-a"}, "score": 99}]})

    async def health(self, request):
        return web.Response(status=200 if self.healthy else 503)

    async def said(self, request):
        return web.Response(text=json.dumps(self.config))


@pytest.fixture
async def stub():
    stub = Stub()
    app = web.Application()
    app.add_routes([web.post(path, stub.scoring) for path in ("/scoring", "/other")])
    pages = {"/metrics": stub.page, "/elsewhere": stub.elsewhere, "/healthz": stub.health, "/config": stub.said}
    app.add_routes([web.get(path, page) for path, page in {**pages, "/api/v1/query_range": stub.query}.items()])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield stub
    await runner.cleanup()
