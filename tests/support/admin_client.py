# SPDX-License-Identifier: Apache-2.0
"""A client of the admin port, and a port with a few routes."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import NamedTuple

from aiohttp import web

from epp.admin.answers import LoopCalls, as_json, read_object
from epp.admin.port import AdminPort
from epp.telemetry.settings import AdminSettings

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105  of these tests alone


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: dict

    @property
    def error(self) -> str:
        return self.body["error"]["type"]


def asked(port: AdminPort, method: str = "GET", path: str = "/api/echo", body: object = None, **headers: str | None):
    """Ask for something on a connection of its own; headers with None are left out."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    own = {"Host": f"127.0.0.1:{port.port}", **({} if data is None else {"Content-Type": "application/json"})}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    client = HTTPConnection("127.0.0.1", port.port, timeout=60)
    try:
        client.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {**own, **given}.items():
            if value is not None:
                client.putheader(name, value)
        if data is not None:
            client.putheader("Content-Length", str(len(data)))
        client.endheaders(data)
        answer = client.getresponse()
        text = answer.read()
        return Answered(answer.status, dict(answer.headers), json.loads(text) if text else {})
    finally:
        client.close()


async def echo(request):
    body = await read_object(request) if request.method == "POST" else None
    return as_json({"rest": request.match_info.get("rest", ""), "body": body})


async def broken(request):
    raise RuntimeError("secret")


ROUTES = (
    web.get("/api/echo", echo),
    web.post("/api/echo", echo),
    web.get("/api/echo/{rest:.+}", echo),
    web.get("/api/broken", broken),
)


@contextmanager
def loop_calls() -> Iterator[LoopCalls]:
    """Calls into an event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield LoopCalls(loop, timeout_seconds=60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def opened(routes=ROUTES, **settings) -> Iterator[AdminPort]:
    port = AdminPort(AdminSettings(port=0, **settings))
    port.open(routes)
    try:
        yield port
    finally:
        port.close()
