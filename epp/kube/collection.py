# SPDX-License-Identifier: Apache-2.0
"""Collections of an API server: version, plural and namespace of a resource, and lists of its objects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from epp.kube.access import ApiError, KubeApi
from epp.kube.object_set import Decode, Item, ObjectSet, T
from epp.kube.objects.base import Part, decoded
from epp.kube.resources import Resource

R = TypeVar("R")

_NOT_FOUND = 404
ABSENT = frozenset({404, 405})
"""Statuses for a kind, or a version of it, that is not installed."""
_PAGE = 500
_SMALL_PAGE = 50
"""For kinds of which some objects are read by their names: the others may be large."""


class _Group(Part, frozen=True):
    version: str = msgspec.field(default="", name="preferredVersion.version")


class _Entry(Part, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ApiResources(Part, frozen=True):
    """The kinds of a version of an API group."""

    resources: tuple[_Entry, ...] = ()


class ApiCollection:
    """The collection of a resource in use; `next_version` and `narrow` select another one if it cannot be read."""

    def __init__(self, resource: Resource, namespace: str = "", fallback: str = "") -> None:
        """Select the namespace, or all if it is empty; `fallback` is for `narrow`."""
        self.resource = resource
        self._given = resource
        self._wide = namespace
        self._fallback = fallback
        self._namespace = namespace
        self.version = ""
        """Selected version; empty before the first one of an unknown kind is discovered."""
        self._untried: list[str] = []
        self._begin()

    @property
    def namespace(self) -> str:
        """Empty for all namespaces, and for kinds of cluster scope."""
        return self._namespace if self.resource.namespaced else ""

    @property
    def is_narrowed(self) -> bool:
        """Whether the fallback namespace is selected."""
        return self._namespace != self._wide

    @property
    def title(self) -> str:
        """Resource and namespace, for messages."""
        return f"{self.resource.title} in {self.namespace}" if self.namespace else self.resource.title

    @property
    def path(self) -> str:
        """URL path."""
        return self.resource.path(self.version, self.namespace)

    @property
    def api_version(self) -> str:
        """`apiVersion` of the objects."""
        return self.resource.api_version(self.version)

    async def find(self, api: KubeApi) -> None:
        """Discover the plural, and the version if unset; raises ApiError and ApiUnreachableError."""
        if self.resource.plural:
            return
        group = self._given.group
        version = self.version or "v1"
        if group and not self.version:
            answer = await api.request("GET", f"/apis/{group}")
            version = _read(answer, _Group, group).version
        root = self._given.path(version).removesuffix("/")
        entries = _read(await api.request("GET", root), ApiResources, root).resources
        found = next((each for each in entries if each.kind == self._given.kind and "/" not in each.name), None)
        if found is None:
            raise ApiError(_NOT_FOUND, "NotFound", f"{root} has no {self._given.kind}")
        self.version = version
        self.resource = self._given._replace(versions=(version,), plural=found.name, namespaced=found.namespaced)

    async def list_all(
        self, api: KubeApi, objects: ObjectSet[T], selector: Mapping[str, str]
    ) -> tuple[list[Item[T]], str]:
        """Return all objects, read in pages, and the resourceVersion of the list; `objects` decodes them."""
        params = {"limit": str(_SMALL_PAGE if self.resource.names else _PAGE), **selector}
        items: list[Item[T]] = []
        while True:
            content = await api.request("GET", self.path, params=params)
            found, version, more = await asyncio.to_thread(objects.read_page, content, self.api_version)
            items += found
            if not more:
                return items, version
            params["continue"] = more

    def found(self) -> None:
        """Record that the selected version works."""
        self._untried = [version for version in self.resource.versions if version != self.version]

    def next_version(self) -> bool:
        """Select the next version; return False and restart with the first one if all were tried."""
        if self._untried:
            self.version = self._untried.pop(0)
            return True
        self._begin()
        return False

    def narrow(self) -> bool:
        """Select the fallback namespace; return False and select all namespaces if it is unset or was tried."""
        if not self._fallback or not self.resource.namespaced or self.is_narrowed:
            self.widen()
            return False
        self._namespace = self._fallback
        return True

    def widen(self) -> None:
        """Select all namespaces."""
        self._namespace = self._wide

    def _begin(self) -> None:
        self.resource = self._given
        self.version, *self._untried = self._given.versions or ("",)


def _read(answer: bytes, cls: type[T], place: str) -> T:
    try:
        return decoded(answer, cls)
    except ValueError as error:
        raise ApiError(0, "Malformed", f"the answer to {place} is unreadable: {error}") from error


async def list_objects(
    api: KubeApi,
    resource: Resource,
    decode: Decode[T],
    *,
    namespace: str = "",
    selector: Mapping[str, str] | None = None,
) -> tuple[Item[T], ...]:
    """Return all objects in the first version on the server; raises ApiError and ApiUnreachableError."""
    collection, objects = ApiCollection(resource, namespace), ObjectSet(resource, decode)
    items, _ = await in_first_version(collection, lambda: collection.list_all(api, objects, selector or {}))
    return tuple(items)


async def in_first_version(collection: ApiCollection, request: Callable[[], Awaitable[R]]) -> R:
    """Return the response in the first version that the server has; raises the error of the last version."""
    while True:
        try:
            return await request()
        except ApiError as error:
            if error.status not in ABSENT or not collection.next_version():
                raise
