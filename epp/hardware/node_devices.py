# SPDX-License-Identifier: Apache-2.0
"""Devices of the nodes of a cluster: free slices, their number in each class, and nodes without an endpoint."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import floor

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.plugin_status import PluginMetric, Sample
from epp.hardware.classes import Evidence, matching_classes, pci_of
from epp.hardware.facts.pod import devices_of_machine
from epp.hardware.inventory import Inventory, gpu_users
from epp.hardware.label_reading import with_label_aliases
from epp.hardware.mig import Placed, mig_gpu, more_that_fit
from epp.hardware.node_labels import facts_from_labels
from epp.hardware.resources import maker_of, profile_of, resource_key, resource_requests
from epp.hardware.tag_builder import TagBuilder
from epp.hardware.validation import Computed, computed, recomputed
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.tensor_fusion import Gpu

Fit = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Number of additional slices if all are of one profile, by node, UUID of the GPU and profile."""


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[str, ...] = ()
    total: int = 0
    """Number of devices, or slices, on these nodes."""
    available: int = 0
    """Number of devices without a pod that requests them."""


def fit_report(inventory: Inventory) -> Fit:
    """Return the additional slices that fit on nodes of InstaSlice, without GPUs of unknown models.

    Staged slices do not occupy slots.
    """
    report: dict[str, dict[str, Mapping[str, int]]] = {}
    for name, node in sorted(inventory.slice_nodes.items()):
        placed: defaultdict[str, list[Placed]] = defaultdict(list)
        for claim in inventory.slice_claims_by_node.get(name, ()):
            if claim.occupies and claim.start is not None:
                placed[claim.gpu_uuid].append(Placed(claim.profile, claim.start, claim.size))
        layouts = {gpu.gpu_uuid: mig_gpu(gpu.gpu_name, gpu.memory_bytes) for gpu in node.gpus}
        report[name] = {uuid: more_that_fit(layout, placed[uuid]) for uuid, layout in layouts.items() if layout}
    return report


class ClassTotals:
    """Devices of each class; the cost of an update depends on the changed nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, Computed[Mapping[str, tuple[int, int]]]] = {}
        self._totals: Computed[Mapping[str, ClassTotal]] | None = None

    def of(self, inventory: Inventory) -> Mapping[str, ClassTotal]:
        self._totals = computed(self._totals, (inventory,), partial(self._counted, inventory))
        return self._totals.value

    def _counted(self, inventory: Inventory) -> Mapping[str, ClassTotal]:
        pods, rules = inventory.pods_by_node, (*inventory.classes.values(), *inventory.flavors.values())
        nodes = sorted(inventory.nodes.items()) if inventory.classes else ()
        objects = {name: (node, *pods.get(name, ()), *rules) for name, node in nodes}
        self._nodes = recomputed(self._nodes, objects, lambda node, *_: _devices_of(inventory, node))
        return _added(inventory, {name: each.value for name, each in self._nodes.items()})


def _devices_of(inventory: Inventory, node: Node) -> Mapping[str, tuple[int, int]]:
    """Return the devices by class; a node without allocatable resources is counted by its labels."""
    amounts: dict[str, int] = {}
    for resource, amount in node.allocatable.items():
        amounts[resource_key(resource)] = amounts.get(resource_key(resource), 0) + floor(amount)
    labels, count = node.metadata.labels, 0
    if not amounts:
        node_facts = facts_from_labels(labels)
        amounts = {f"mig/{profile}": number for profile, number in node_facts.mig.items()}
        count = node_facts.count or 0
    evidence = Evidence(
        labels=with_label_aliases(labels),
        node=node.name,
        resources=frozenset(key for key, amount in amounts.items() if amount) or None,
        pci=pci_of(labels),
    )
    found: dict[str, tuple[int, int]] = {}
    for each in matching_classes(inventory.classes.values(), evidence, inventory.flavors):
        keys = {resource_key(resource.name) for resource in each.spec.resources} or {"nvidia.com/gpu"}
        given = sum(amounts.get(key, 0) for key in keys) or count
        pods = inventory.pods_by_node.get(node.name, ())
        requests = (requested for pod in pods for requested in resource_requests(pod, keys))
        taken = sum(requested.count for requested in requests if resource_key(requested.name) in keys)
        found[each.name] = given, min(given, taken)
    return found


def _added(inventory: Inventory, nodes: Mapping[str, Mapping[str, tuple[int, int]]]) -> Mapping[str, ClassTotal]:
    found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in inventory.classes}
    for node, by_class in nodes.items():
        for name, amounts in by_class.items():
            found[name][node] = amounts
    return {
        name: ClassTotal(
            nodes=tuple(by_node),
            total=sum(given for given, _ in by_node.values()),
            available=sum(given - requested for given, requested in by_node.values()),
        )
        for name, by_node in found.items()
    }


_MOST_ACCELERATORS = 256
_LABELS = ("accelerator",)
_DEVICES = PluginMetric(
    "accelerator_idle_devices", "Accelerators that no pod requests, on nodes without an endpoint of the pool.", _LABELS
)
_DOLLARS = PluginMetric(
    "accelerator_idle_dollars_per_hour",
    "Price of accelerator_idle_devices, of those whose price is known, in US dollars an hour.",
    _LABELS,
)
IDLE_METRICS = (_DEVICES, _DOLLARS)


class IdleNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node with accelerators and without an endpoint of the pool."""

    node: str
    accelerator: str
    """Name of the model or product; empty if unknown."""
    devices: int
    """Devices or slices that pods can request."""
    requested: int
    """Devices or slices that pods use or request."""
    free: int
    dollars_per_hour: float | None = None
    """Price of the free devices; None if unknown."""


class IdleNodes:
    """Describes nodes; unchanged nodes are not described again."""

    def __init__(self) -> None:
        self._known: dict[str, Computed[IdleNode | None]] = {}

    def of(
        self,
        inventory: Inventory,
        builder: TagBuilder,
        tables: object,
        serving: AbstractSet[str],
        others: Mapping[str, tuple[Pod, ...]],
    ) -> Sequence[IdleNode]:
        """Return the nodes that are not among `serving`, the most expensive first.

        `tables` are those of the builder: a new version describes all nodes again. `others` are pods by node, beside
        those of the inventory.
        """
        allocated = _claimed_by_node(inventory)
        rules = (*inventory.classes.values(), *inventory.flavors.values(), *inventory.unit_costs.values())
        objects: dict[str, tuple[object, ...]] = {}  # all that the description of a node follows from
        for name, node in inventory.nodes.items():
            pods = (*inventory.pods_by_node.get(name, ()), *others.get(name, ()))
            of_node = (inventory.gpu_nodes.get(name), *inventory.gpus_by_node.get(name, ()), *allocated.get(name, ()))
            objects[name] = (node, *pods, *of_node, tables, *rules)

        def described(node: Node, *_: object) -> IdleNode | None:
            beside = (pod for pod in others.get(node.name, ()) if pod.id not in inventory.pods)
            pods = (*inventory.pods_by_node.get(node.name, ()), *beside)
            gpus = inventory.gpus_by_node.get(node.name, ())
            return _idle(builder, node, pods, gpus, allocated.get(node.name, (0, 0)))

        self._known = recomputed(self._known, objects, described)
        found = [each.value for name, each in self._known.items() if each.value is not None and name not in serving]
        return sorted(found, key=lambda each: (-(each.dollars_per_hour or 0.0), -each.free, each.node))


def _claimed_by_node(inventory: Inventory) -> Mapping[str, tuple[int, int]]:
    """Return the devices of the pools of DRA, and the claimed ones, by node; partitions of a device count as one."""
    claimed: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for name, pool in inventory.pools.items():
        for device, node in pool.nodes.items():
            described = pool.devices.get(device)
            if node and described is not None:
                whole = next((use.counter_set for use in described.consumes_counters), device)
                key = f"{name.driver}/{name.pool}/{whole}"
                is_claimed = bool(inventory.claims_by_device.get(f"{name.driver}/{name.pool}/{device}"))
                claimed[node][key] = claimed[node].get(key, False) or is_claimed
    return {node: (len(devices), sum(devices.values())) for node, devices in claimed.items()}


def _idle(
    builder: TagBuilder, node: Node, pods: Sequence[Pod], gpus: Sequence[Gpu], allocated: tuple[int, ...]
) -> IdleNode | None:
    """Return the description of a node; None for one without accelerators."""
    offered = {name: floor(amount) for name, amount in node.allocatable.items() if maker_of(name) or profile_of(name)}
    requests = [each for pod in pods for each in resource_requests(pod) if each.known]
    requested = sum(each.count for each in requests if each.name in offered or not offered)
    devices = sum(offered.values())
    if not devices and allocated[0]:
        devices, requested = allocated
    if not devices:
        devices = len(gpus) or facts_from_labels(node.metadata.labels).count or 0
    requested = max(requested, sum(any(True for _ in gpu_users(gpu)) for gpu in gpus))
    if not devices:
        return None
    # no pod has such a name, so that the endpoint is described by its node only
    endpoint = Endpoint(f"node:{node.name}", "0.0.0.0", 1, node=node.name)  # noqa: S104  the address of no pod
    tag = builder.build(endpoint).tag
    context = builder.context(endpoint)
    machine = devices_of_machine(context, facts_from_labels(context.node_labels)) or devices
    price = tag.cost.device_per_hour()
    free = max(devices - requested, 0)
    return IdleNode(
        node=node.name,
        accelerator=tag.model or tag.product,
        devices=devices,
        requested=min(requested, devices),
        free=free,
        dollars_per_hour=None if price is None else price * machine * free / devices,
    )


def idle_samples(nodes: Iterable[IdleNode]) -> list[Sample]:
    totals: dict[str, tuple[int, float]] = {}
    for each in nodes:
        if each.free:
            free, dollars = totals.get(each.accelerator, (0, 0.0))
            totals[each.accelerator] = free + each.free, dollars + (each.dollars_per_hour or 0.0)
    found: list[Sample] = []
    for name, (free, dollars) in sorted(totals.items())[:_MOST_ACCELERATORS]:
        found += [Sample(_DEVICES, float(free), (name,)), Sample(_DOLLARS, dollars, (name,))]
    return found
