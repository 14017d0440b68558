# SPDX-License-Identifier: Apache-2.0
"""Collections of an API server: version, plural and namespace of a resource, and lists of its objects."""

import asyncio
from collections.abc import Mapping

import msgspec

from epp.kube.access import ApiError, KubeApi
from epp.kube.object_set import Decode, Item, ObjectSet, T
from epp.kube.objects.base import Part, decoded
from epp.kube.resources import Resource

_NOT_FOUND = 404
ABSENT = frozenset({404, 405})
"""Statuses for a kind, or a version of it, that is not installed."""
_PAGE = 500


class _Group(Part, frozen=True):
    version: str = msgspec.field(default="", name="preferredVersion.version")


class _Entry(Part, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _Entries(Part, frozen=True):
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
        self._version = ""
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
        return self.resource.path(self._version, self.namespace)

    @property
    def api_version(self) -> str:
        """`apiVersion` of the objects."""
        return self.resource.api_version(self._version)

    async def find(self, api: KubeApi) -> None:
        """Discover the plural, and the version if unset; raises ApiError and ApiUnreachableError."""
        if self.resource.plural:
            return
        group = self._given.group
        version = self._version or "v1"
        if group and not self._version:
            answer = await api.request("GET", f"/apis/{group}")
            version = _read(answer, _Group, group).version
        root = self._given.path(version).removesuffix("/")
        entries = _read(await api.request("GET", root), _Entries, root).resources
        found = next((each for each in entries if each.kind == self._given.kind and "/" not in each.name), None)
        if found is None:
            raise ApiError(_NOT_FOUND, "NotFound", f"{root} has no {self._given.kind}")
        self._version = version
        self.resource = self._given._replace(versions=(version,), plural=found.name, namespaced=found.namespaced)

    def found(self) -> None:
        """Record that the selected version works."""
        self._untried = [version for version in self.resource.versions if version != self._version]

    def next_version(self) -> bool:
        """Select the next version; return False and restart with the first one if all were tried."""
        if self._untried:
            self._version = self._untried.pop(0)
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
        self._version, *self._untried = self._given.versions or ("",)


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
    version, content = await first_page(
        api, resource, namespace=namespace, params={"limit": str(_PAGE), **(selector or {})}
    )
    objects = ObjectSet(resource, decode)
    items: list[Item[T]] = []
    while True:
        page = await asyncio.to_thread(objects.read_page, content, resource.api_version(version))
        items += page.items
        if not page.more:
            return tuple(items)
        params = {"limit": str(_PAGE), "continue": page.more, **(selector or {})}
        content = await api.request("GET", resource.path(version, namespace), params=params)


async def first_page(
    api: KubeApi, resource: Resource, *, namespace: str = "", params: Mapping[str, str]
) -> tuple[str, bytes]:
    """Return the first version on the server and the response to a list request; raises as `list_objects`."""
    *others, last = resource.versions
    for version in others:
        try:
            return version, await api.request("GET", resource.path(version, namespace), params=params)
        except ApiError as error:
            if error.status not in ABSENT:
                raise
    return last, await api.request("GET", resource.path(last, namespace), params=params)
