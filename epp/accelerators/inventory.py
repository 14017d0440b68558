# SPDX-License-Identifier: Apache-2.0
"""All cluster objects in effect at one moment, with indexes for tagging."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from epp.accelerators.classes.faults import device_expression, doubts_of
from epp.accelerators.dra.pools import DevicePool, PoolName, device_pools
from epp.accelerators.mig.slices import SliceClaim, SliceNode, slice_claims, slice_nodes
from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.objects.base import Object
from epp.objects.core import Node, Pod, PodReference
from epp.objects.costs import UnitCost, UnitCosts, VariantAutoscaling
from epp.objects.dra import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from epp.objects.files.last_good import FileObjects
from epp.objects.instaslice import AllocationClaim, Instaslice, NodeAccelerator
from epp.objects.ome import AcceleratorClass, ResourceFlavor
from epp.objects.tensor_fusion import Gpu, GpuNode

HOSTNAME = "kubernetes.io/hostname"

_O = TypeVar("_O", bound=Object)
_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All objects in effect; immutable, its mappings included."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
    """By `namespace/name`."""
    pods_by_uid: Mapping[str, Pod] = field(default_factory=dict)
    pods_by_ip: Mapping[str, Pod] = field(default_factory=dict)
    """Without addresses that several pods share on the network of their host."""
    pods_by_node: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Without ended pods."""
    pods_by_claim: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """By `namespace/name` of the ResourceClaims that they name."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    nodes_by_hostname: Mapping[str, Node] = field(default_factory=dict)
    """By the label `kubernetes.io/hostname`, which may differ from the name of the node."""
    classes: Mapping[str, AcceleratorClass] = field(default_factory=dict)
    expressions: Mapping[str, DeviceExpression] = field(default_factory=dict)
    """CEL device selectors of classes, by name of the class; without those that cannot be evaluated."""
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    slice_claims_by_pod: Mapping[str, tuple[SliceClaim, ...]] = field(default_factory=dict)
    """By PodReference.keys, as all `..._by_pod`."""
    slice_claims_by_node: Mapping[str, tuple[SliceClaim, ...]] = field(default_factory=dict)
    slice_nodes: Mapping[str, SliceNode] = field(default_factory=dict)
    resource_claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    """By `namespace/name`."""
    resource_claims_by_pod: Mapping[str, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    claims_by_device: Mapping[str, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    """By `driver/pool/device`, without admin access, as device_users."""
    device_users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """UIDs of the pods that use a device."""
    pools: Mapping[PoolName, DevicePool] = field(default_factory=dict)
    device_classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    """GPUs of TensorFusion, by name."""
    gpus_by_pod: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    """By the pods that run there or have a partition."""
    gpus_by_uuid: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    gpus_by_node: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    gpu_nodes: Mapping[str, GpuNode] = field(default_factory=dict)
    unit_costs: Mapping[str, UnitCost] = field(default_factory=dict)
    """By name of the accelerator."""
    variants: tuple[VariantAutoscaling, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems of objects, those not in effect included."""
    skipped: int = 0
    """Number of files and objects whose newest version is not in effect."""

    @classmethod
    def build(cls, files: Iterable[FileObjects], previous: "Inventory | None" = None) -> "Inventory":
        """Return the inventory of the files; of two objects with one name, the later one counts.

        Device pools that are incomplete now are kept from `previous`, the inventory before.
        """
        files = tuple(files)
        objects = [held.object for file in files for held in file.held]
        problems = [problem for file in files for problem in (*map(str, file.problems), *file.notes)]

        def by_id(kind: type[_O]) -> dict[str, _O]:
            found = [each for each in objects if isinstance(each, kind)]
            twice = [name for name, count in Counter(each.id for each in found).items() if count > 1]
            problems.extend(f"{kind.__name__} {name} occurs more than once: the last one counts" for name in twice)
            return {each.id: each for each in found}

        pods, nodes = by_id(Pod), by_id(Node)
        classes, flavors = by_id(AcceleratorClass), by_id(ResourceFlavor)
        instaslices = by_id(Instaslice).values()
        claims = slice_claims(instaslices, by_id(AllocationClaim).values())
        resource_claims = by_id(ResourceClaim)
        gpus = by_id(Gpu)
        pools = device_pools(
            by_id(ResourceSlice).values(),
            {} if previous is None else previous.pools,
            frozenset(PoolName(each.driver, each.pool) for claim in resource_claims.values() for each in claim.results),
        )
        problems.extend(_pool_problems(pools.values()))
        problems.extend(_class_problems(classes.values(), flavors))
        claims_by_device = _grouped(
            resource_claims.values(), lambda claim: {result.id for result in claim.results if not result.admin_access}
        )
        running = [pod for pod in pods.values() if not pod.ended]
        return cls(
            pods=pods,
            pods_by_uid={uid: pod for pod in pods.values() if (uid := pod.metadata.uid)},
            pods_by_ip={
                ip: owners[0] for ip, owners in _grouped(running, lambda pod: pod.addresses).items() if len(owners) == 1
            },
            pods_by_node=_grouped(running, lambda pod: {pod.spec.node_name} - {""}),
            pods_by_claim=_grouped(pods.values(), lambda pod: set(pod.claims)),
            nodes=nodes,
            nodes_by_hostname={
                name: node for node in reversed(nodes.values()) if (name := node.metadata.labels.get(HOSTNAME, ""))
            },
            classes=classes,
            expressions=_expressions(classes.values()),
            flavors=flavors,
            slice_claims_by_pod=_grouped(claims, lambda claim: claim.pod.keys),
            slice_claims_by_node=_grouped(claims, lambda claim: {claim.node} - {""}),
            slice_nodes=slice_nodes(instaslices, by_id(NodeAccelerator).values()),
            resource_claims=resource_claims,
            resource_claims_by_pod=_grouped(
                resource_claims.values(), lambda claim: {key for user in claim.reserved_for for key in user.keys}
            ),
            claims_by_device=claims_by_device,
            device_users={
                device: frozenset(user.uid for claim in owners for user in claim.reserved_for)
                for device, owners in claims_by_device.items()
            },
            pools=pools,
            device_classes=by_id(DeviceClass),
            taint_rules=tuple(by_id(DeviceTaintRule).values()),
            gpus=gpus,
            gpus_by_pod=_grouped(gpus.values(), lambda gpu: {key for pod in gpu_users(gpu) for key in pod.keys}),
            gpus_by_uuid=_grouped(gpus.values(), lambda gpu: {gpu.status.uuid} - {""}),
            gpus_by_node=_grouped(gpus.values(), lambda gpu: {gpu.node} - {""}),
            gpu_nodes=by_id(GpuNode),
            unit_costs={name: cost for each in by_id(UnitCosts).values() for name, cost in each.costs.items()},
            variants=tuple(by_id(VariantAutoscaling).values()),
            problems=tuple(problems),
            skipped=sum(len(file.problems) for file in files),
        )

    def all_by_pod(self, index: Mapping[str, tuple[_T, ...]], keys: Iterable[str]) -> tuple[_T, ...]:
        """Return the entries of an index by pod under any of the keys, without duplicates."""
        found = [item for key in keys for item in index.get(key, ())]
        return tuple({id(item): item for item in found}.values())


def _grouped(items: Iterable[_T], keys: Callable[[_T], Iterable[_K]]) -> dict[_K, tuple[_T, ...]]:
    """Return the items by each of their keys."""
    groups: defaultdict[_K, list[_T]] = defaultdict(list)
    for item in items:
        for key in keys(item):
            groups[key].append(item)
    return {key: tuple(members) for key, members in groups.items()}


def gpu_users(gpu: Gpu) -> Iterator[PodReference]:
    """Yield the pods that use the GPU; a pod that runs there and has a partition appears twice."""
    for app in gpu.status.running_apps:
        yield from app.pods
    for uid, part in gpu.status.allocated_partitions.items():
        yield PodReference(namespace=part.namespace, name=part.pod_name, uid=part.pod_uid or uid)


def _pool_problems(pools: Iterable[DevicePool]) -> Iterator[str]:
    for pool in pools:
        if pool.stale:
            used = "the last complete one is used" if pool.complete else "it is used as it is, none is complete"
            yield f"device pool {pool.name.driver}/{pool.name.pool}: its newest generation is incomplete; {used}"


def _expressions(classes: Iterable[AcceleratorClass]) -> dict[str, DeviceExpression]:
    """Return the valid CEL device selectors of the classes."""
    found: dict[str, DeviceExpression] = {}
    for each in classes:
        with contextlib.suppress(ValueError):  # reported by `doubts_of`
            if (expression := device_expression(each)) is not None:
                found[each.id] = expression
    return found


def _class_problems(classes: Iterable[AcceleratorClass], flavors: Mapping[str, ResourceFlavor]) -> Iterator[str]:
    for each in classes:
        discovery = each.spec.discovery
        found = list(doubts_of(each))
        flavor = each.spec.integration.kueue_resource_flavor
        no_selector = not discovery.node_selector and discovery.affinity.node_affinity.required is None
        if flavor and flavor not in flavors and no_selector:
            found.append(f"there is no ResourceFlavor {flavor} to select its nodes by: add it, or write a nodeSelector")
        yield from (f"AcceleratorClass {each.id}: {text}" for text in found)
