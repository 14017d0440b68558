# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers as an API server does, as far as a test says."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.support.kube.kubeconfig import NO_CERTIFICATES, kubeconfig
from tests.support.listening import listening

READ = ("get", "list", "watch")
_GROUP = re.compile(r"/api/v1|/apis/[^/]+/[^/]+")
_COLLECTION = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([^/]+)")
_NOT_FOUND = (404, {"code": 404, "reason": "NotFound", "message": "not found"})


class Script:
    """What the API server has, what it allows, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.user = "system:serviceaccount:llm:picker"
        self.objects: dict[str, list[dict]] = {}
        """Objects by the path of their collection, such as `/api/v1/pods`; other kinds are not installed."""
        self.rights: set[tuple[str, str]] = set()
        """Allowed pairs of verb and plural."""
        self.answers: dict[str, tuple[int, object]] = {}
        """Status and body by path, in place of all others."""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers of each request."""
        self.most_at_once = 0
        self._now = 0

    def allow(self, *plurals: str, verbs: tuple[str, ...] = READ) -> None:
        self.rights |= {(verb, plural) for verb in verbs for plural in plurals}

    def install(self, *collections: str) -> None:
        for each in collections:
            self.objects.setdefault(each, [])

    def write_kubeconfig(self, path: Path) -> Path:
        return kubeconfig(path, self.url, cluster=NO_CERTIFICATES, namespace="default", token="t")  # noqa: S106  of nobody

    async def answer(self, request: web.Request) -> web.Response:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            await asyncio.sleep(0.001)  # others may come in
            self.asked.append((request.method, request.path, dict(request.headers)))
            status, body = await self._answer(request)
        finally:
            self._now -= 1
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html")
        return web.json_response(body, status=status)

    async def _answer(self, request: web.Request) -> tuple[int, object]:
        path = request.path
        if path in self.answers:
            return self.answers[path]
        if path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": self.user}}}
        if path.endswith("/selfsubjectaccessreviews"):
            attributes = (await request.json())["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": (attributes["verb"], attributes["resource"]) in self.rights}}
        if _GROUP.fullmatch(path):
            there = [{"name": each.rpartition("/")[2]} for each in self.objects if each.rpartition("/")[0] == path]
            return (200, {"resources": there}) if there else _NOT_FOUND
        return self._listed(path, request.query)

    def _listed(self, path: str, query: Mapping[str, str]) -> tuple[int, object]:
        group, namespace, plural = _COLLECTION.fullmatch(path).groups()
        verb = "watch" if "watch" in query else "list"
        if (verb, plural) not in self.rights:
            return 403, {"code": 403, "reason": "Forbidden", "message": f"{plural} is forbidden"}
        objects = self.objects.get(f"{group}/{plural}")
        if objects is None:
            return _NOT_FOUND
        if verb == "watch":
            return 200, {}
        there = [each for each in objects if namespace in (None, each["metadata"].get("namespace"))]
        wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
        labelled = [(each, each["metadata"].get("labels", dict(wanted))) for each in there]  # without any: of all
        there = [each for each, labels in labelled if all(labels.get(name) == value for name, value in wanted)]
        begin, end = int(query.get("continue", 0)), int(query.get("continue", 0)) + int(query["limit"])
        more = str(end) if end < len(there) else ""
        return 200, {"metadata": {"resourceVersion": "7", "continue": more}, "items": there[begin:end]}


@asynccontextmanager
async def scripted_api() -> AsyncIterator[Script]:
    """Serve a script that allows and has nothing."""
    script = Script()
    async with listening(script.answer) as address:
        script.url = f"http://{address}"
        yield script
