# SPDX-License-Identifier: Apache-2.0
"""Context of an endpoint: its pod, node and cluster, options, templates; endpoints that a change of objects affects."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from epp.framework.cluster_objects import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, every_endpoint, no_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import Parameters
from epp.hardware.catalogue import CATALOGUE, Catalogue, InstanceType
from epp.hardware.facts.declared import AcceleratorOverride
from epp.hardware.facts.merge import DrainOrIgnore, PassOrDrain
from epp.hardware.inventory import HOSTNAME, Inventory, gpu_users
from epp.hardware.mig_slices import SliceNode
from epp.kube.objects.base import Object
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import PoolName, ResourceClaim, ResourceSlice
from epp.kube.objects.followed import ClusterObjects
from epp.kube.objects.instaslice import AllocationClaim, Instaslice, NodeAccelerator
from epp.kube.objects.tensor_fusion import Gpu, GpuNode, GpuResourceQuota


@dataclass(frozen=True, slots=True)
class AffectedPlaces:
    pods: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    def __contains__(self, endpoint: Endpoint) -> bool:
        return (endpoint.uid in self.pods and endpoint.uid != "") or endpoint.node in self.nodes


def affected_endpoints(
    changes: Iterable[ObjectsOfKind],
    before: ClusterObjects,
    after: ClusterObjects,
    inventories: tuple[Inventory, Inventory],
) -> AffectedEndpoints:
    """Return the endpoints affected by the old or the new version of each changed object."""
    pods: set[str] = set()
    nodes: set[str] = set()
    for change in changes:
        for name in change.changed:
            old, new = before.find(change.kind, name), after.find(change.kind, name)
            for each in (old, new) if old is not new else ():
                if each is not None:
                    places = places_of(each, inventories)
                    if places is None:
                        return every_endpoint
                    pods |= places.pods
                    nodes |= places.nodes
    found = AffectedPlaces(frozenset(pods), frozenset(nodes))
    return found.__contains__ if found != AffectedPlaces() else no_endpoint


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
    for each in claims:
        yield from (user.uid for user in each.reserved_for)
        yield from (pod.metadata.uid for pod in inventory.pods_by_claim.get(each.id, ()))


DOMAIN = "tensor-fusion.ai"
"""Domain of the attributes of TensorFusion, and the default domain of its annotations."""


class TaggerOptions(Parameters, frozen=True):
    """Trust in sources, and defaults for missing facts."""

    trust_pod_labels: bool = False
    """Use the AcceleratorClass in labels of a pod, and use labels of a pod in place of those of an unknown node."""
    on_missing_claim: PassOrDrain = "Pass"
    """Treatment of an endpoint whose pod requests a slice without a claim for it."""
    on_node_not_ready: DrainOrIgnore = "Drain"
    """Treatment of endpoints on a node whose InstaSlice agent is not ready."""
    on_unhealthy_device: DrainOrIgnore = "Drain"
    """Treatment of an endpoint with a device that the kubelet reports as unhealthy."""
    on_pending_gpu: PassOrDrain = "Drain"
    """Treatment of an endpoint with a GPU in the TensorFusion phase Pending. To send requests there, also set
    `allowPending` of `accelerator-availability-filter`, if that is configured."""
    cost_unit: Literal["cents", "dollars"] = "cents"
    """Unit of the hourly prices of the variant autoscaler."""
    instance_types: Mapping[str, InstanceType] = msgspec.field(default_factory=dict)
    """Accelerators by machine type; they take precedence over the built-in table."""
    overrides: tuple[AcceleratorOverride, ...] = ()
    """Accelerators of endpoints, in place of those of other sources; the first matching entry is used."""
    tensor_fusion_domain: str = DOMAIN
    """Domain of the TensorFusion annotations on pods."""
    cluster: str = ""
    """Name of the cluster of the objects. Endpoints in other clusters do not match its pods and nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointContext:
    """Pod and node of an endpoint, and everything else that its facts depend on."""

    endpoint: Endpoint
    inventory: Inventory
    catalogue: Catalogue
    options: TaggerOptions
    pod: Pod | None = None
    node: Node | None = None
    node_name: str = ""
    node_labels: Mapping[str, str]

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """Index keys of references to the pod (see PodReference.keys).

        A known UID excludes references to a former pod of the same name, which has another UID.
        """
        uid = self.endpoint.uid if self.pod is None else self.pod.metadata.uid
        return (uid, self.pod_id) if uid else (f"name:{self.pod_id}",)

    @property
    def pod_id(self) -> str:
        return self.endpoint.id if self.pod is None else self.pod.id

    @property
    def annotations(self) -> Mapping[str, str]:
        return {} if self.pod is None else self.pod.metadata.annotations

    @property
    def slicer(self) -> SliceNode | None:
        """The node as described by InstaSlice."""
        return self.inventory.slice_nodes.get(self.node_name)

    @property
    def boot_id(self) -> str:
        return "" if self.node is None else self.node.boot_id


def context_of(
    endpoint: Endpoint, inventory: Inventory, options: TaggerOptions, catalogue: Catalogue = CATALOGUE
) -> EndpointContext:
    """Return pod and node of the endpoint.

    The labels of an endpoint with a pod are those of the pod; they describe the node only if pods are trusted.
    """
    pod = _pod_of(endpoint, inventory)
    labels = endpoint.labels if pod is None or options.trust_pod_labels else {}
    name = (pod.spec.node_name if pod is not None else "") or endpoint.node or labels.get(HOSTNAME, "")
    node = inventory.nodes.get(name) or inventory.nodes_by_hostname.get(name)
    return EndpointContext(
        endpoint=endpoint,
        inventory=inventory,
        catalogue=catalogue,
        options=options,
        pod=pod,
        node=node,
        node_name=name if node is None else node.name,
        node_labels=labels if node is None else node.metadata.labels,
    )


def _pod_of(endpoint: Endpoint, inventory: Inventory) -> Pod | None:
    """Return the pod with the UID of the endpoint, or with its name or address unless the UID differs."""
    if endpoint.uid and (found := inventory.pods_by_uid.get(endpoint.uid)):
        return found[-1]
    named = inventory.pods.get(endpoint.id)
    if named is not None and _uid_matches(named, endpoint):
        return named
    here = inventory.pods_by_ip.get(endpoint.address, ())
    return here[0] if len(here) == 1 and _uid_matches(here[0], endpoint) else None


def _uid_matches(pod: Pod, endpoint: Endpoint) -> bool:
    """Return whether known UIDs match, because a former pod may have had this name or address."""
    return not endpoint.uid or pod.metadata.uid in {"", endpoint.uid}
