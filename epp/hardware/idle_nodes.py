# SPDX-License-Identifier: Apache-2.0
"""Nodes with accelerators and without an endpoint of the pool, and the price of their free devices."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import floor
from operator import is_
from typing import NamedTuple

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.plugin_status import PluginMetric, Sample
from epp.hardware.facts.prices import devices_of_machine
from epp.hardware.inventory import Inventory, difference, gpu_users
from epp.hardware.labels import facts_from_labels
from epp.hardware.resources import maker_of, profile_of, resource_requests
from epp.hardware.tag_builder import TagBuilder
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.tensor_fusion import Gpu

_MOST_ACCELERATORS = 256
_LABELS = ("accelerator",)
_DEVICES = PluginMetric(
    "accelerator_idle_devices",
    "Accelerators that no pod requests, on nodes without an endpoint of the pool.",
    _LABELS,
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
    """Devices or slices that pods have, or request."""
    free: int
    dollars_per_hour: float | None = None
    """Price of the free devices; None if unknown."""


class _Allocated(NamedTuple):
    """Devices of DRA on a node."""

    devices: int = 0
    claimed: int = 0


_NONE = _Allocated()


class _Known(NamedTuple):
    """A node, with the objects that its description depends on."""

    of: tuple[object, ...]
    claims: _Allocated
    found: IdleNode | None


class IdleNodes:
    """Describes nodes; unchanged nodes are not described again."""

    def __init__(self) -> None:
        self._before = Inventory()
        self._tables: object = None
        self._known: dict[str, _Known] = {}

    def of(
        self, inventory: Inventory, builder: TagBuilder, tables: object, serving: AbstractSet[str]
    ) -> Sequence[IdleNode]:
        """Return the nodes that are not among `serving`, the most expensive first.

        `tables` are those of the builder: a new version describes all nodes again.
        """
        before, self._before = self._before, inventory
        classes = difference(before.classes, inventory.classes)
        prices = difference(before.gpu_nodes, inventory.gpu_nodes)
        if tables is not self._tables or classes or prices or before.unit_costs != inventory.unit_costs:
            self._known, self._tables = {}, tables
        allocated = _devices_by_node(inventory)
        known: dict[str, _Known] = {}
        for name, node in inventory.nodes.items():
            pods, gpus = inventory.pods_by_node.get(name, ()), inventory.gpus_by_node.get(name, ())
            claims = allocated.get(name, _NONE)
            earlier = self._known.get(name)
            if earlier is None or not (all(map(is_, earlier.of, (node, pods, gpus))) and earlier.claims == claims):
                earlier = _Known((node, pods, gpus), claims, _idle(node, pods, gpus, claims, builder))
            known[name] = earlier
        self._known = known
        found = [each.found for name, each in known.items() if each.found is not None and name not in serving]
        return sorted(found, key=lambda each: (-(each.dollars_per_hour or 0.0), -each.free, each.node))


def _devices_by_node(inventory: Inventory) -> Mapping[str, _Allocated]:
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
    return {node: _Allocated(len(devices), sum(devices.values())) for node, devices in claimed.items()}


def _idle(
    node: Node, pods: Sequence[Pod], gpus: Sequence[Gpu], allocated: _Allocated, builder: TagBuilder
) -> IdleNode | None:
    """Return the description of a node; None for one without accelerators."""
    offered = {name: floor(amount) for name, amount in node.allocatable.items() if maker_of(name) or profile_of(name)}
    requests = [each for pod in pods for each in resource_requests(pod) if each.known]
    requested = sum(each.count for each in requests if each.name in offered or not offered)
    devices = sum(offered.values())
    if not devices and allocated.devices:
        devices, requested = allocated.devices, allocated.claimed
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
    """Return the metrics of at most 256 accelerators."""
    totals: dict[str, tuple[int, float]] = {}
    for each in nodes:
        if each.free:
            free, dollars = totals.get(each.accelerator, (0, 0.0))
            totals[each.accelerator] = free + each.free, dollars + (each.dollars_per_hour or 0.0)
    shown = sorted(totals.items())[:_MOST_ACCELERATORS]
    return [
        sample
        for name, (free, dollars) in shown
        for sample in (Sample(_DEVICES, float(free), (name,)), Sample(_DOLLARS, dollars, (name,)))
    ]
