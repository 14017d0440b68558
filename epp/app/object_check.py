# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster as plugins would take them, read once."""

from collections.abc import Iterable
from typing import Any

from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.inputs import InputProblem
from epp.kube.access import ApiError, KubeApi
from epp.kube.collection import list_objects
from epp.kube.object_set import Decode, Item
from epp.kube.objects.inference import POOL_GROUP
from epp.kube.resources import PODS, POLICIES, Resource, pools, resource_of

_FORBIDDEN = 403
_MOST_SENTENCES = 100
_TOLD_BY_THE_POOL = frozenset(each.kind for each in (PODS, *POLICIES, pools(POOL_GROUP)))
"""Kinds whose invalid objects the report on the pool has."""


async def check_objects(api: KubeApi, readers: Iterable[ObjectReader[Any]], namespace: str) -> tuple[str, ...]:
    """Return what the plugins say of the objects that they read: those not in effect, and values that are ignored.

    Up to 100 sentences for each plugin. Kinds that cannot be listed are left out. Raises ApiUnreachableError.
    """
    found: dict[str, None] = {}
    for reader in readers:
        await reader.objects_changed([await _objects(api, reader, kind, namespace) for kind in reader.kinds])
        inputs = reader.inputs
        said = [sentence for sentence in map(str, (*inputs.problems, *inputs.ignored)) if sentence not in found]
        said += [remark for remark in inputs.remarks if remark not in found]
        found |= dict.fromkeys(said[:_MOST_SENTENCES])
        if (more := len(said) - _MOST_SENTENCES) > 0:
            found[f"cluster: and {more} more problems that {reader.name} has with objects"] = None
    return tuple(found)


async def _objects(api: KubeApi, reader: ObjectReader[Any], kind: ObjectKind, namespace: str) -> ObjectsOfKind:
    items = await _items(api, resource_of(kind), reader.decode, kind, namespace)
    objects = {item.id: item.object for item in items if item.object is not None}
    problems = tuple(
        InputProblem("cluster", f"{kind.kind} {item.id}", item.problem)
        for item in items
        if item.problem and kind.kind not in _TOLD_BY_THE_POOL
    )
    return ObjectsOfKind(kind, objects, frozenset(objects), problems)


async def _items(
    api: KubeApi, resource: Resource, decode: Decode[Any], kind: ObjectKind, namespace: str
) -> tuple[Item[Any], ...]:
    """Return the objects, from where a picker reads them."""
    everywhere = resource.everywhere or not resource.namespaced
    places = [""] if everywhere else [namespace]
    if resource.everywhere and not kind.everywhere:
        places.append(namespace)
    for place in places:
        try:
            return await list_objects(api, resource, decode, namespace=place)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                break
    return ()
