# SPDX-License-Identifier: Apache-2.0
"""Endpoints affected by a change of cluster objects: those of some pods, those on some nodes, or all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from epp.framework.cluster import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, EveryEndpoint, no_endpoint
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory, gpu_users
from epp.kube.objects.base import Object
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import PoolName, ResourceClaim, ResourceSlice
from epp.kube.objects.followed import ClusterObjects
from epp.kube.objects.instaslice import AllocationClaim, Instaslice, NodeAccelerator
from epp.kube.objects.tensor_fusion import Gpu, GpuNode, GpuResourceQuota


@dataclass(frozen=True, slots=True)
class AffectedPlaces:
    """Pods and nodes that an object affects."""

    pods: frozenset[str] = frozenset()
    """UIDs."""
    nodes: frozenset[str] = frozenset()

    def __contains__(self, endpoint: Endpoint) -> bool:
        """Return whether the endpoint is affected."""
        return (endpoint.uid in self.pods and endpoint.uid != "") or endpoint.node in self.nodes


def affected_endpoints(
    changes: Iterable[ObjectsOfKind],
    before: ClusterObjects,
    after: ClusterObjects,
    inventories: tuple[Inventory, Inventory],
) -> AffectedEndpoints:
    """Return the endpoints affected by the old or the new version of each changed object."""
    places = [places_of(each, inventories) for each in _versions(changes, before, after)]
    known = [each for each in places if each is not None]
    found = AffectedPlaces(
        frozenset[str]().union(*(each.pods for each in known)), frozenset[str]().union(*(each.nodes for each in known))
    )
    affected = found.__contains__ if found != AffectedPlaces() else no_endpoint
    return affected if len(known) == len(places) else EveryEndpoint(first=affected)


def places_of(each: Object, inventories: Iterable[Inventory]) -> AffectedPlaces | None:
    """Return the places that an object affects; None for all, as for an AcceleratorClass. A quota affects none."""
    if isinstance(each, GpuResourceQuota):
        return AffectedPlaces()
    nodes: list[str] = []
    pods: list[str] = []
    if isinstance(each, Pod):
        pods = [each.metadata.uid]
    elif isinstance(each, (Node, NodeAccelerator, GpuNode)):
        nodes = [each.name]
    elif isinstance(each, Instaslice):
        results = each.results
        nodes = [each.name, *(result.nodename for result in results.values())]
        pods = [*each.requests, *results]
    elif isinstance(each, AllocationClaim):
        nodes, pods = [each.spec.nodename], [each.spec.pod_ref.uid]
    elif isinstance(each, Gpu) and each.node:
        nodes, pods = [each.node], [user.uid for user in gpu_users(each)]
    elif isinstance(each, ResourceSlice):
        named = [each.node_name or device.node_name for device in each.devices] or [each.node_name]
        if not all(named):
            return None
        pool = PoolName(each.driver, each.pool)  # since the node of a device may be unknown
        nodes, pods = named, [uid for one in inventories for uid in _users(one.claims_by_pool.get(pool, ()), one)]
    elif isinstance(each, ResourceClaim):
        return _of_claim(each, inventories)
    found = AffectedPlaces(frozenset(pods) - {""}, frozenset(nodes) - {""})
    return found if found != AffectedPlaces() else None


def _of_claim(claim: ResourceClaim, inventories: Iterable[Inventory]) -> AffectedPlaces:
    """Return the pods that use or name the claim, or another claim for its devices."""
    uids = {user.uid for user in claim.reserved_for}
    for inventory in inventories:
        alike = [each for result in claim.results for each in inventory.claims_by_device.get(result.id, ())]
        uids.update(_users((claim, *alike), inventory))
    return AffectedPlaces(pods=frozenset(uids))


def _users(claims: Iterable[ResourceClaim], inventory: Inventory) -> Iterator[str]:
    """Yield the UIDs of pods that use or name the claims."""
    for each in claims:
        yield from (user.uid for user in each.reserved_for)
        yield from (pod.metadata.uid for pod in inventory.pods_by_claim.get(each.id, ()))


def _versions(changes: Iterable[ObjectsOfKind], before: ClusterObjects, after: ClusterObjects) -> Iterator[Object]:
    """Yield the old and the new version of each changed object."""
    for change in changes:
        for name in change.changed:
            versions = (before.find(change.kind, name), after.find(change.kind, name))
            if versions[0] is not versions[1]:
                yield from (each for each in versions if each is not None)
