# SPDX-License-Identifier: Apache-2.0
"""All objects of a resource, listed once."""

import asyncio
from collections.abc import Mapping

from epp.kube.access import KubeApi
from epp.kube.errors import ApiError
from epp.kube.object_set import Decode, Item, ObjectSet, T
from epp.kube.resources import Resource

ABSENT = frozenset({404, 405})
"""Statuses of a kind, or a version of it, that is not installed."""
_PAGE = 500


async def list_objects(
    api: KubeApi,
    resource: Resource,
    decode: Decode[T],
    *,
    namespace: str = "",
    selector: Mapping[str, str] | None = None,
) -> tuple[Item[T], ...]:
    """Return all objects, in the first version that the server has; raises ApiError and ApiUnreachableError."""
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
    """Return the first version that the server has, and the answer of a list in it; raises as `list_objects`."""
    *others, last = resource.versions
    for version in others:
        try:
            return version, await api.request("GET", resource.path(version, namespace), params=params)
        except ApiError as error:
            if error.status not in ABSENT:
                raise
    return last, await api.request("GET", resource.path(last, namespace), params=params)
