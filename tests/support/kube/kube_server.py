# SPDX-License-Identifier: Apache-2.0
"""The lists and watches of an API server, over plain HTTP, with faults on request."""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from epp.kube.access import KubeApi
from epp.kube.resources import Resource
from epp.kube.watched import Watched
from tests.support.kube.kubeconfig import NO_CERTIFICATES, kubeconfig
from tests.support.listening import listening
from tests.support.waiting import until

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]

COLLECTION = "/apis/example.com/v2/namespaces/ns/widgets"
WIDGETS = Resource("example.com", ("v2", "v1"), "widgets", "Widget")
_PAGE = 2
"""Most objects in an answer."""


class KubeServer:
    """Widgets in the namespace `ns`; each change has a revision of its own, and its event is sent at once."""

    def __init__(self) -> None:
        self.url = ""
        self.version = "v2"
        """The one version of widgets that there is; empty for none."""
        self.faults: deque[Fault] = deque()
        """Answers to the next requests, in place of those that they are to have."""
        self.lists: list[Mapping[str, str]] = []
        self.watches: list[Mapping[str, str]] = []
        """Parameters of all requests."""
        self.tokens: list[str] = []
        """What the requests had in their header Authorization."""
        self.token = ""
        """The one that is accepted; empty for any."""
        self._revision = 10
        self._oldest = 0
        self._widgets: dict[str, dict] = {}
        self._events: list[tuple[int, dict]] = []
        self._changed = asyncio.Condition()
        self._generation = 0

    async def put(self, name: str, color: object, **metadata: object) -> None:
        """Create or change a widget; its color is to be a string."""
        kind = "MODIFIED" if name in self._widgets else "ADDED"
        widget = {"metadata": {"name": name, "namespace": "ns", **metadata}, "spec": {"color": color}}
        await self._write(kind, name, widget)

    async def delete(self, name: str) -> None:
        await self._write("DELETED", name, self._widgets[name])

    async def compact(self) -> None:
        """Forget all events, and end all watches."""
        self._oldest = self._revision
        self._events.clear()
        await self.end_watches()

    async def end_watches(self) -> None:
        self._generation += 1
        async with self._changed:
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.token and self.tokens[-1] != f"Bearer {self.token}":
            return web.Response(status=401, text='{"kind": "Status", "code": 401, "message": "Unauthorized"}')
        params = dict(request.query)
        (self.watches if "watch" in params else self.lists).append(params)
        if self.faults:
            return await self.faults.popleft()(request)
        if request.match_info["version"] != self.version:
            return web.Response(status=404, text="404 page not found")
        return await (self._watch(request, int(params["resourceVersion"])) if "watch" in params else self._list(params))

    async def _write(self, kind: str, name: str, widget: dict) -> None:
        self._revision += 1
        widget = {**widget, "metadata": {**widget["metadata"], "resourceVersion": str(self._revision)}}
        if kind == "DELETED":
            del self._widgets[name]
        else:
            self._widgets[name] = widget
        self._events.append((self._revision, {"type": kind, "object": widget}))
        async with self._changed:
            self._changed.notify_all()

    async def _list(self, params: Mapping[str, str]) -> web.Response:
        names = sorted(self._widgets)
        start = int(params.get("continue", "0"))
        end = start + _PAGE
        metadata = {"resourceVersion": str(self._revision), "continue": str(end) if end < len(names) else ""}
        return web.json_response({"metadata": metadata, "items": [self._widgets[name] for name in names[start:end]]})

    async def _watch(self, request: web.Request, revision: int) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if revision < self._oldest:
            await response.write(line_of("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))
            return response
        generation, sent = self._generation, revision
        while generation == self._generation:
            events, sent = [event for number, event in self._events if number > sent], self._revision
            for event in events:
                await response.write(line_of(**event))
            async with self._changed:
                if generation == self._generation and sent == self._revision:
                    await self._changed.wait()
        return response


def line_of(type: str, object: object) -> bytes:  # noqa: A002  names of the API
    """Return an event as a watch has it."""
    return json.dumps({"type": type, "object": object}).encode() + b"\n"


def with_status(status: int, text: str = "", **headers: str) -> Fault:
    """Answer with a status of 400 or more."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(
            status=status, text=text, headers={name.replace("_", "-"): each for name, each in headers.items()}
        )

    return answer


def with_lines(*lines: bytes) -> Fault:
    """Answer a watch with this, then end it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        return response

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    """Reset the connection in the middle of an event."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"type": "MODI')
    assert request.transport is not None
    request.transport.abort()
    return response


async def silence(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and say nothing more."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def no_widgets(_: web.Request) -> web.Response:
    """Answer a list: no widgets."""
    return web.json_response({"metadata": {"resourceVersion": "5"}, "items": None})


@asynccontextmanager
async def kube_server(context: ssl.SSLContext | None = None) -> AsyncIterator[KubeServer]:
    """Run the server until the block ends, over TLS with a context."""
    server = KubeServer()
    app = web.Application()
    app.router.add_get("/apis/example.com/{version}/namespaces/ns/widgets", server.answer)
    async with listening(app, tls=context) as address:
        server.url = f"{'http' if context is None else 'https'}://{address}"
        try:
            yield server
        finally:
            await server.end_watches()


async def shows(watched: Watched[str], **colors: str) -> None:
    """Wait until these are the objects."""
    wanted = {f"ns/{name}": color for name, color in colors.items()}
    await until(lambda: watched.objects == wanted, f"the widgets are {wanted}")


@asynccontextmanager
async def access_to(server: KubeServer, directory: Path) -> AsyncIterator[KubeApi]:
    """Open access to the server."""
    api = KubeApi(kubeconfig(directory / "kubeconfig", server.url, cluster=NO_CERTIFICATES))
    try:
        yield api
    finally:
        await api.close()
