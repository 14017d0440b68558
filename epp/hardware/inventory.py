# SPDX-License-Identifier: Apache-2.0
"""All cluster objects in effect at one moment, with indexes for tagging."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.plugin_status import IgnoredValue
from epp.hardware.mig_slices import Issue, SliceClaim, SliceNode, sanitized_claims, slice_claims, slice_nodes
from epp.hardware.objectives import ignored_values
from epp.hardware.tensor_fusion import placement_faults
from epp.hardware.validation import Computed, Validation, computed, gpus_of_node
from epp.kube.objects.base import Object
from epp.kube.objects.core import MigUuids, Node, Pod, PodReference, UnitCost, UnitCosts, VariantAutoscaling
from epp.kube.objects.decode import KNOWN_GROUPS
from epp.kube.objects.dra import (
    DeviceClass,
    DevicePool,
    DeviceTaintRule,
    PoolName,
    ResourceClaim,
    ResourceSlice,
    device_pools,
)
from epp.kube.objects.instaslice import AllocationClaim, Instaslice, NodeAccelerator
from epp.kube.objects.last_good import FileObjects, ObjectsByKind
from epp.kube.objects.ocm import OCM
from epp.kube.objects.ome import AcceleratorClass, ResourceFlavor, device_expression, issues_of
from epp.kube.objects.ome_services import ClusterServingRuntime, InferenceService, ServingRuntime, selects_accelerators
from epp.kube.objects.tensor_fusion import Gpu, GpuNode, GpuPool, GpuResourceQuota, SchedulingConfigTemplate

O = TypeVar("O", bound=Object)  # noqa: E741  an object
K = TypeVar("K", bound=Hashable)
HOSTNAME = "kubernetes.io/hostname"
_T = TypeVar("_T")
_Slices: TypeAlias = tuple[Mapping[str, SliceNode], tuple[SliceClaim, ...], tuple[Issue, ...]]


class _Devices(NamedTuple):
    """Pools and claims of DRA."""

    pools: Mapping[PoolName, DevicePool]
    claims_by_pod: Mapping[str, tuple[ResourceClaim, ...]]
    claims_by_device: Mapping[str, tuple[ResourceClaim, ...]]
    claims_by_pool: Mapping[PoolName, tuple[ResourceClaim, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All objects in effect; the mappings are immutable, too."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
    pods_by_uid: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """One pod for each UID, unless a file has the same UID under another name."""
    pods_by_ip: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Without ended pods; several pods share an address in the network of their host."""
    pods_by_node: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Without ended pods."""
    pods_by_claim: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Keyed by `namespace/name` of their ResourceClaims."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    nodes_by_hostname: Mapping[str, Node] = field(default_factory=dict)
    """Keyed by the label `kubernetes.io/hostname`, which may differ from the name of the node."""
    classes: Mapping[str, AcceleratorClass] = field(default_factory=dict)
    expressions: Mapping[str, DeviceExpression] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    instaslices: Mapping[str, Instaslice] = field(default_factory=dict)
    slice_claims_by_pod: Mapping[str, tuple[SliceClaim, ...]] = field(default_factory=dict)
    """Keyed by PodReference.keys, like all `..._by_pod`, and by the ConfigMap of the pod (`SliceClaim.keys`)."""
    mig_uuids: Mapping[str, MigUuids] = field(default_factory=dict)
    """Keyed by `namespace/name` of the ConfigMap."""
    mig_maps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """ConfigMaps by the UUID of the slice."""
    slice_claims_by_node: Mapping[str, tuple[SliceClaim, ...]] = field(default_factory=dict)
    slice_nodes: Mapping[str, SliceNode] = field(default_factory=dict)
    resource_claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    resource_claims_by_pod: Mapping[str, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    claims_by_device: Mapping[str, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    """Keyed by `driver/pool/device`, without admin access."""
    claims_by_pool: Mapping[PoolName, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    pools: Mapping[PoolName, DevicePool] = field(default_factory=dict)
    device_classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    gpus_by_pod: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    """Keyed by the pods that use the GPU."""
    gpus_by_uuid: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    gpus_by_node: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    gpu_nodes: Mapping[str, GpuNode] = field(default_factory=dict)
    gpu_pools: Mapping[str, GpuPool] = field(default_factory=dict)
    scheduling_templates: Mapping[str, SchedulingConfigTemplate] = field(default_factory=dict)
    gpu_quotas: Mapping[str, GpuResourceQuota] = field(default_factory=dict)
    """Keyed by `namespace/name`."""
    unit_costs: Mapping[str, UnitCost] = field(default_factory=dict)
    variants: tuple[VariantAutoscaling, ...] = ()
    of_dra: Computed[_Devices] | None = None
    """Indexes of claims and pools, which the next inventory takes over if it has the same objects."""
    of_instaslice: Computed[_Slices] | None = None
    """Nodes and claims of slices, which the next inventory takes over if it has the same objects."""
    issues: Validation = field(default_factory=Validation)
    """Values that contradict those of other objects."""
    ignored: tuple[IgnoredValue, ...] = ()
    """All impossible values, which are ignored."""
    remarks: tuple[str, ...] = ()
    """Further messages about objects in effect."""
    other_problems: tuple[str, ...] = ()
    """Messages about objects that another plugin reports if it is configured."""
    selectors: tuple[str, ...] = ()
    """Kind and name of objects that select accelerators for requests."""
    skipped: int = 0
    """Number of rejected versions of files and objects."""

    @classmethod
    def build(cls, files: Iterable[FileObjects], previous: "Inventory | None" = None) -> "Inventory":
        """Return the inventory of the files; a later object replaces one with the same name.

        `previous` has complete versions of now incomplete device pools, and results that hold for the same objects.
        """
        files, before = tuple(files), previous or cls()
        found = ObjectsByKind(files)
        pods, claims, gpus = _by_id(found.of(Pod)), _by_id(found.of(ResourceClaim)), _by_id(found.of(Gpu))
        nodes, classes, flavors = found.of(Node), found.of(AcceleratorClass), found.of(ResourceFlavor)
        running = [pod for pod in pods.values() if not pod.ended]
        mig_uuids = found.of(MigUuids)
        slices = found.of(ResourceSlice)
        devices = computed(
            before.of_dra,
            (*slices.values(), *claims.values()),
            lambda: _devices_of(slices.values(), claims.values(), before.pools),
        )
        instaslices, allocations = found.of(Instaslice), found.of(AllocationClaim)
        accelerators = found.of(NodeAccelerator)

        def read_slices() -> _Slices:
            slicers = slice_nodes(instaslices.values(), accelerators.values())
            unchecked = slice_claims(instaslices.values(), allocations.values())
            return slicers, *sanitized_claims(unchecked, slicers, lambda name: gpus_of_node(nodes.get(name), None))

        sources = (*instaslices.values(), *allocations.values(), *accelerators.values(), *nodes.values())
        mig_slices = computed(before.of_instaslice, sources, read_slices)
        slicers, claims_of_slices, slice_issues = mig_slices.value
        issues = before.issues.after(
            nodes=nodes,
            pods=_grouped(pods.values(), lambda pod: (pod.spec.node_name,)),
            slicers=slicers,
            slices=slices,
            gpus=gpus,
            claims=slice_issues,
            classes=classes,
        )
        templates, gpu_pools = found.of(SchedulingConfigTemplate), found.of(GpuPool)
        of_others = (*issues, *placement_faults(templates, gpu_pools.values()))
        ignored = (*found.ignored, *(IgnoredValue(found.file_of(*each[:2]), *each) for each in of_others))
        remarks = (
            *found.problems,
            *(note for file in files for note in file.notes),
            *_pool_problems(devices.value.pools.values()),
            *_class_problems(classes.values(), flavors),
            *issues.remarks,
            *found.unused(KNOWN_GROUPS - {OCM}),
        )
        return cls(
            pods=pods,
            pods_by_uid=_grouped(pods.values(), lambda pod: {pod.metadata.uid} - {""}),
            pods_by_ip=_grouped(running, lambda pod: pod.addresses),
            pods_by_node=_grouped(running, lambda pod: {pod.spec.node_name} - {""}),
            pods_by_claim=_grouped(pods.values(), lambda pod: set(pod.claims)),
            nodes=nodes,
            nodes_by_hostname={
                name: node
                for node in reversed(tuple(nodes.values()))
                if (name := node.metadata.labels.get(HOSTNAME, ""))
            },
            classes=classes,
            expressions=_expressions(classes.values()),
            flavors=flavors,
            instaslices=instaslices,
            slice_claims_by_pod=_grouped(claims_of_slices, lambda claim: claim.keys),
            slice_claims_by_node=_grouped(claims_of_slices, lambda claim: {claim.node} - {""}),
            slice_nodes=slicers,
            mig_uuids=mig_uuids,
            mig_maps=_grouped(mig_uuids, lambda name: mig_uuids[name].uuids),
            resource_claims=claims,
            resource_claims_by_pod=devices.value.claims_by_pod,
            claims_by_device=devices.value.claims_by_device,
            claims_by_pool=devices.value.claims_by_pool,
            pools=devices.value.pools,
            device_classes=found.of(DeviceClass),
            taint_rules=tuple(found.of(DeviceTaintRule).values()),
            gpus=gpus,
            gpus_by_pod=_grouped(gpus.values(), lambda gpu: {key for pod in gpu_users(gpu) for key in pod.keys}),
            gpus_by_uuid=_grouped(gpus.values(), lambda gpu: {gpu.status.uuid} - {""}),
            gpus_by_node=_grouped(gpus.values(), lambda gpu: {gpu.node} - {""}),
            gpu_nodes=found.of(GpuNode),
            gpu_pools=gpu_pools,
            scheduling_templates=templates,
            gpu_quotas=found.of(GpuResourceQuota),
            unit_costs={name: cost for each in found.of(UnitCosts).values() for name, cost in each.costs.items()},
            variants=tuple(found.of(VariantAutoscaling).values()),
            of_dra=devices,
            of_instaslice=mig_slices,
            issues=issues,
            ignored=ignored,
            remarks=remarks,
            other_problems=tuple(map(str, ignored_values(files))),
            selectors=tuple(
                f"{kind.__name__} {each.id}"
                for kind in (InferenceService, ServingRuntime, ClusterServingRuntime)
                for each in found.of(kind).values()
                if selects_accelerators(each)
            ),
            skipped=sum(len(file.problems) for file in files),
        )

    @property
    def has_prices(self) -> bool:
        unpriced = (None, None, None, "")
        costs = (each.spec.cost for each in self.classes.values())
        of_class = any((c.per_hour, c.spot_per_hour, c.per_million_tokens, c.tier) != unpriced for c in costs)
        of_node = any(each.cost_per_hour is not None for each in self.gpu_nodes.values())
        return of_class or of_node or bool(self.unit_costs) or any(each.price is not None for each in self.variants)

    def device_users(self, device: str) -> frozenset[str]:
        """Return the UIDs of the pods that use the device `driver/pool/device`.

        A claim that is reserved for a group of pods is used by the pods that name it.
        """
        claims = self.claims_by_device.get(device, ())
        found = {user.uid for claim in claims for user in claim.reserved_for}
        for claim in claims:
            if any(user.resource != "pods" for user in claim.consumers):
                found |= {pod.metadata.uid for pod in self.pods_by_claim.get(claim.id, ()) if not pod.ended}
        return frozenset(found)

    def all_by_pod(self, index: Mapping[str, tuple[_T, ...]], keys: Iterable[str]) -> tuple[_T, ...]:
        """Return the entries for any of the keys of a pod, without duplicates."""
        found = [item for key in keys for item in index.get(key, ())]
        return tuple({id(item): item for item in found}.values())


def _devices_of(
    slices: Iterable[ResourceSlice], claims: Collection[ResourceClaim], before: Mapping[PoolName, DevicePool]
) -> _Devices:
    by_pool = _grouped(claims, lambda claim: {PoolName(each.driver, each.pool) for each in claim.results})
    return _Devices(
        pools=device_pools(slices, before, frozenset(by_pool)),
        claims_by_pod=_grouped(claims, lambda claim: {key for user in claim.reserved_for for key in user.keys}),
        claims_by_device=_grouped(claims, lambda claim: {each.id for each in claim.results if not each.admin_access}),
        claims_by_pool=by_pool,
    )


def _by_id(objects: Mapping[str, O]) -> dict[str, O]:
    return dict(sorted(objects.items()))


def _grouped(items: Iterable[_T], keys: Callable[[_T], Iterable[K]]) -> dict[K, tuple[_T, ...]]:
    groups: defaultdict[K, list[_T]] = defaultdict(list)
    for item in items:
        for key in keys(item):
            groups[key].append(item)
    return {key: tuple(members) for key, members in groups.items()}


def gpu_users(gpu: Gpu) -> Iterator[PodReference]:
    """Yield the pods that use the GPU; a pod with a partition may appear twice."""
    for app in gpu.status.running_apps:
        yield from app.pods
    for uid, part in gpu.status.allocated_partitions.items():
        yield PodReference(namespace=part.namespace, name=part.pod_name, uid=part.pod_uid or uid)


def _pool_problems(pools: Iterable[DevicePool]) -> Iterator[str]:
    for pool in pools:
        if pool.stale:
            used = "the last complete one is used" if pool.complete else "it is used, since there is no complete one"
            yield f"device pool {pool.name.driver}/{pool.name.pool}: its newest generation is incomplete; {used}"


def _expressions(classes: Iterable[AcceleratorClass]) -> dict[str, DeviceExpression]:
    found: dict[str, DeviceExpression] = {}
    for each in classes:
        with contextlib.suppress(ValueError):  # reported by `issues_of`
            if (expression := device_expression(each)) is not None:
                found[each.id] = expression
    return found


def _class_problems(classes: Iterable[AcceleratorClass], flavors: Mapping[str, ResourceFlavor]) -> Iterator[str]:
    for each in classes:
        discovery = each.spec.discovery
        found = list(issues_of(each))
        flavor = each.spec.integration.kueue_resource_flavor
        no_selector = not discovery.node_selector and each.affinity is None
        if flavor and flavor not in flavors and no_selector:
            found.append(f"there is no ResourceFlavor {flavor} to select its nodes by: add it, or write a nodeSelector")
        yield from (f"AcceleratorClass {each.id}: {text}" for text in found)
