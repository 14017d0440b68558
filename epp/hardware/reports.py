# SPDX-License-Identifier: Apache-2.0
"""Reports about a cluster: free slices of each GPU, devices of each class, and missing facts."""

from collections.abc import Iterable, Iterator, Mapping
from math import floor
from typing import NamedTuple

import msgspec

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.hardware.class_matching import Evidence, matching_classes, pci_of
from epp.hardware.inventory import Inventory, difference
from epp.hardware.labels import facts_from_labels, with_label_aliases
from epp.hardware.mig import mig_gpu
from epp.hardware.mig.profile import Placed, more_that_fit
from epp.hardware.resources import resource_key, resource_requests
from epp.kube.objects.core import Node, Pod

_DECLARE = "under accelerator in the endpoint list, or in an override"
_REMEDIES: Mapping[str, str] = {
    "accelerator": f"no known resource, label, claim or class: write an AcceleratorClass, or class {_DECLARE}",
    "model": f"no label, machine type or class names it: write an AcceleratorClass, or class {_DECLARE}",
    "count": f"the pod is not known, or others share its node: write count {_DECLARE}",
    "memory": f"no label, class or row of the catalogue: write memory {_DECLARE}, or capabilities.memoryGB in an "
    "AcceleratorClass",
    "TFLOPS": "no class and no row of the catalogue: write capabilities.performance in an AcceleratorClass, or "
    "fp16TFlops in the file of gpuCatalogue",
    "price": f"no class, variant, node or file of prices: give --prices FILE, or write cost.perHour in an "
    f"AcceleratorClass, or costPerHour {_DECLARE}",
}
Fit = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Number of additional slices if all are of one profile, by node, UUID of the GPU and profile."""


class Missing(msgspec.Struct, frozen=True):
    """A fact without a source."""

    fact: str
    """accelerator, model, count, memory, TFLOPS or price."""
    remedy: str


def missing_of(tag: AcceleratorTag) -> tuple[Missing, ...]:
    """Return the missing facts about the accelerators; none for an endpoint without accelerators."""
    return tuple(Missing(fact, _REMEDIES[fact]) for fact in _facts(tag))


def _facts(tag: AcceleratorTag) -> Iterator[str]:
    if tag.kind is AcceleratorKind.CPU:
        return
    if tag.kind is AcceleratorKind.UNKNOWN:
        yield "accelerator"
    elif not tag.model and not tag.product:
        yield "model"
    if not tag.count:
        yield "count"
    if tag.memory_bytes is None:
        yield "memory"
    if not tag.tflops():
        yield "TFLOPS"
    if tag.cost_per_hour() is None:
        yield "price"


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of a class in the cluster."""

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
        claims = [claim for claim in inventory.slice_claims_by_node.get(name, ()) if claim.occupies]
        found: dict[str, Mapping[str, int]] = {}
        for gpu in node.gpus:
            layout = mig_gpu(gpu.gpu_name, gpu.memory_bytes)
            if layout is not None:
                placed = [
                    Placed(claim.profile, claim.start, claim.size)
                    for claim in claims
                    if claim.gpu_uuid == gpu.gpu_uuid and claim.start is not None
                ]
                found[gpu.gpu_uuid] = more_that_fit(layout, placed)
        report[name] = found
    return report


class ClassTotals:
    """Devices of each class; an update only costs as much as the changed nodes."""

    def __init__(self) -> None:
        self._inventory: Inventory | None = None
        self._totals: Mapping[str, ClassTotal] = {}
        self._nodes: dict[str, _NodeDevices] = {}

    def of(self, inventory: Inventory) -> Mapping[str, ClassTotal]:
        """Return the totals of an inventory."""
        if inventory is not self._inventory:
            before = self._inventory or Inventory()
            classes_differ = bool(
                difference(before.classes, inventory.classes) or difference(before.flavors, inventory.flavors)
            )
            known = {} if classes_differ else self._nodes
            self._nodes = dict(_devices_by_node(inventory, known)) if inventory.classes else {}
            self._totals = _added(inventory, self._nodes)
            self._inventory = inventory
        return self._totals


class _NodeDevices(NamedTuple):
    """Allocatable and requested devices of a node by class, and the objects for the count."""

    node: Node
    pods: tuple[Pod, ...]
    by_class: Mapping[str, tuple[int, int]]


def _devices_by_node(inventory: Inventory, known: Mapping[str, _NodeDevices]) -> Iterator[tuple[str, _NodeDevices]]:
    for name, node in sorted(inventory.nodes.items()):
        pods = inventory.pods_by_node.get(name, ())
        before = known.get(name)
        if before is not None and before.node is node and before.pods is pods:
            yield name, before
        else:
            yield name, _NodeDevices(node, pods, _devices_of(node, pods, inventory))


def _devices_of(node: Node, pods: tuple[Pod, ...], inventory: Inventory) -> Mapping[str, tuple[int, int]]:
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
        found[each.name] = given, min(given, _requested(pods, keys))
    return found


def _added(inventory: Inventory, nodes: Mapping[str, _NodeDevices]) -> Mapping[str, ClassTotal]:
    found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in inventory.classes}
    for node, devices in nodes.items():
        for name, amounts in devices.by_class.items():
            found[name][node] = amounts
    return {
        name: ClassTotal(
            nodes=tuple(by_node),
            total=sum(given for given, _ in by_node.values()),
            available=sum(given - requested for given, requested in by_node.values()),
        )
        for name, by_node in found.items()
    }


def _requested(pods: Iterable[Pod], keys: set[str]) -> int:
    return sum(
        requested.count
        for pod in pods
        for requested in resource_requests(pod, keys)
        if resource_key(requested.name) in keys
    )
