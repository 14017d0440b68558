# SPDX-License-Identifier: Apache-2.0
"""A client of tests, that takes and returns objects as plain data: `{"apiVersion": ..., "kind": ..., ...}`."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from tests.support.kube.apiserver import Access

Manifest = dict[str, Any]

_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


class RefusedError(Exception):
    """An answer of the API server of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Resource:
    """Place of a kind in the API."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        space = f"namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (self.prefix, space, self.plural, name, subresource) if part)


class Client:
    """Requests of one user. An object in an argument need not be complete: kind, name and namespace name it."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._resources: dict[tuple[str, str], Resource] = {}

    async def create(self, manifest: Manifest, **params: str) -> Manifest:
        resource = await self.resource(manifest)
        return await self.request("POST", resource.path(_namespace(manifest)), manifest, params=params)

    async def apply(self, manifest: Manifest, **params: str) -> Manifest:
        """Create or change it, as `kubectl apply --server-side --force-conflicts` does."""
        params = {"fieldManager": "tests", "force": "true", **params}
        return await self.request("PATCH", await self._path(manifest), manifest, kind=_APPLY, params=params)

    async def get(self, manifest: Manifest) -> Manifest:
        return await self.request("GET", await self._path(manifest))

    async def replace(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Write it whole; 409 if its resourceVersion is not the latest."""
        return await self.request("PUT", await self._path(manifest, subresource), manifest)

    async def patch(self, manifest: Manifest, change: Manifest, subresource: str = "") -> Manifest:
        """Merge the change into it."""
        return await self.request("PATCH", await self._path(manifest, subresource), change, kind=_MERGE)

    async def status(self, manifest: Manifest, status: Manifest) -> Manifest:
        """Merge the status into that of the object."""
        return await self.patch(manifest, {"status": status}, "status")

    async def delete(self, manifest: Manifest, *, grace_seconds: int = 0) -> None:
        options = {"gracePeriodSeconds": grace_seconds, "propagationPolicy": "Background"}
        await self.request("DELETE", await self._path(manifest), options)

    async def empty(self, namespace: str) -> None:
        """Delete the objects in a namespace, those of all groups that this client was used for."""
        paths = {each.path(namespace) for each in self._resources.values() if each.namespaced}
        await asyncio.gather(*(self._delete_all(path) for path in paths))

    async def list(self, api_version: str, kind: str, namespace: str = "", **params: str) -> Manifest:
        """Return the list object, of one namespace or of all; `items` and `metadata.resourceVersion` are of use."""
        resource = await self.resource({"apiVersion": api_version, "kind": kind})
        return await self.request("GET", resource.path(namespace), params=params)

    async def watch(self, api_version: str, kind: str, namespace: str = "", **params: str) -> AsyncIterator[Manifest]:
        """Yield the events of a watch until the server ends it; aiohttp.ClientError if it dies."""
        resource = await self.resource({"apiVersion": api_version, "kind": kind})
        path, endless = resource.path(namespace), aiohttp.ClientTimeout(total=None)
        async with self._http.get(path, params={"watch": "true", **params}, timeout=endless) as response:
            await _refuse(response)
            async for line in response.content:
                yield json.loads(line)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Return the answer. Raises RefusedError, and aiohttp.ClientError if there is none."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        async with self._http.request(method, path, data=data, headers=headers, params=params) as response:
            await _refuse(response)
            return json.loads(await response.read())

    async def resource(self, manifest: Manifest) -> Resource:
        """Look the kind up in what the server serves. Raises RefusedError with 404 for a kind it does not serve."""
        key = (manifest["apiVersion"], manifest["kind"])
        if key not in self._resources:
            api_version, kind = key
            prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            for found in (await self.request("GET", prefix))["resources"]:
                if "/" not in found["name"]:
                    self._resources[api_version, found["kind"]] = Resource(prefix, found["name"], found["namespaced"])
            if key not in self._resources:
                raise RefusedError(404, "NotFound", f"{prefix} has no {kind}")
        return self._resources[key]

    async def _delete_all(self, path: str) -> None:
        try:
            await self.request("DELETE", path, {"gracePeriodSeconds": 0})
        except RefusedError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):  # no such definition now
                raise

    async def _path(self, manifest: Manifest, subresource: str = "") -> str:
        resource = await self.resource(manifest)
        return resource.path(_namespace(manifest), manifest["metadata"]["name"], subresource)


@asynccontextmanager
async def client_of(access: Access, token: str) -> AsyncIterator[Client]:
    """Open a client of the user with that token."""
    connector = aiohttp.TCPConnector(ssl=access.tls(), limit=0)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(access.url, connector=connector, headers=headers, read_bufsize=2**21) as http:
        yield Client(http)


def _namespace(manifest: Manifest) -> str:
    namespace: str = manifest["metadata"].get("namespace", "default")
    return namespace


async def _refuse(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = await response.text()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        raise RefusedError(response.status, answer.get("reason", ""), answer.get("message", text))
