# SPDX-License-Identifier: Apache-2.0
"""An API server of unit tests: collections by path, that can be absent or forbidden, and watches of them."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from epp.kube.access import ApiError, ApiUnreachableError


class FakeApi:
    """Answers lists and watches by name and by label, and remembers all events; `tests/kube` has a real one."""

    server = "https://fake"

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, dict[str, Any]]] = {}
        """Objects by name, of each path that is installed."""
        self.documents: dict[str, object] = {}
        """Answers at other paths, such as those of API discovery."""
        self.forbidden: set[str] = set()
        self.is_away = False
        self.requests: list[str] = []
        self._version = 1
        self._watches: defaultdict[str, set[_Watch]] = defaultdict(set)
        self._events: defaultdict[str, list[tuple[int, str, Mapping[str, Any]]]] = defaultdict(list)

    def put(self, path: str, name: str, **content: Any) -> None:
        """Create or change an object."""
        self._version += 1
        metadata = {"name": name, "resourceVersion": str(self._version), **content.pop("metadata", {})}
        document = {"metadata": metadata, **content}
        known = self.collections.setdefault(path, {})
        kind = "MODIFIED" if name in known else "ADDED"
        known[name] = document
        self._send(path, kind, document)

    def delete(self, path: str, name: str) -> None:
        self._version += 1
        gone = self.collections[path].pop(name)
        self._send(path, "DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}})

    def install(self, *paths: str) -> None:
        for path in paths:
            self.collections.setdefault(path, {})

    def forbid(self, *paths: str) -> None:
        """Forbid these from now on, watches that are open included."""
        self.forbidden.update(paths)
        for path in paths:
            for watch in self._watches[path]:
                watch.queue.put_nowait(ApiError(403, "Forbidden", "no"))

    def end_watches(self) -> None:
        """End all watches as a server does whose time for them is over."""
        for watches in self._watches.values():
            for watch in watches:
                watch.queue.put_nowait(None)

    def watches(self, path: str) -> int:
        """Return how many watches of a path are open."""
        return len(self._watches[path])

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: object = None
    ) -> bytes:
        await asyncio.sleep(0)
        self.requests.append(path)
        self._refuse(path)
        if path in self.documents:
            return json.dumps(self.documents[path]).encode()
        found = self._collection(path)
        metadata = {"resourceVersion": str(self._version)}
        items = [each for each in found.values() if _is_selected(each, params or {})]
        return json.dumps({"metadata": metadata, "items": items}).encode()

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[AsyncIterator[list[bytes]]]:
        await asyncio.sleep(0)
        self._refuse(path)
        self._collection(path)
        watch = _Watch(params)
        for version, kind, document in self._events[path]:
            if version > int(params["resourceVersion"]):
                watch.send(kind, document)
        self._watches[path].add(watch)
        try:
            yield _lines(watch.queue)
        finally:
            self._watches[path].discard(watch)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _refuse(self, path: str) -> None:
        if self.is_away:
            raise ApiUnreachableError("no answer")
        if path in self.forbidden:
            raise ApiError(403, "Forbidden", f"no list of {path}")

    def _collection(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a path, or of the same resource in all namespaces."""
        if path not in self.collections:
            raise ApiError(404, "NotFound", f"no {path}")
        return self.collections[path]

    def _send(self, path: str, kind: str, document: Mapping[str, Any]) -> None:
        self._events[path].append((self._version, kind, document))
        for watch in self._watches[path]:
            watch.send(kind, document)


class _Watch:
    def __init__(self, params: Mapping[str, str]) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._params = params

    def send(self, kind: str, document: Mapping[str, Any]) -> None:
        """Send an event of an object that is selected; its labels never change."""
        if _is_selected(document, self._params):
            self.queue.put_nowait(json.dumps({"type": kind, "object": document}).encode())


def _is_selected(document: Mapping[str, Any], params: Mapping[str, str]) -> bool:
    metadata = document["metadata"]
    name = params.get("fieldSelector", "").removeprefix("metadata.name=")
    wanted = [pair.split("=") for pair in params.get("labelSelector", "").split(",") if pair]
    return name in {"", metadata["name"]} and all(metadata.get("labels", {}).get(key) == value for key, value in wanted)


async def _lines(queue: "asyncio.Queue[bytes | Exception | None]") -> AsyncIterator[list[bytes]]:
    while (item := await queue.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield [item]
