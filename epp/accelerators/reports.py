# SPDX-License-Identifier: Apache-2.0
"""Reports on a cluster: slices that still fit on each GPU, and devices of each class."""

from collections.abc import Mapping
from math import floor

import msgspec

from epp.accelerators.classes.matching import Evidence, matching_classes
from epp.accelerators.classes.pci import pci_of
from epp.accelerators.inventory import Inventory
from epp.accelerators.labels import facts_from_labels, with_label_aliases
from epp.accelerators.mig import mig_gpu
from epp.accelerators.mig.layouts import Placed, more_that_fit
from epp.accelerators.resources import resource_key, resource_requests

Fit = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Number of slices that still fit, if all are of one profile: by node, UUID of the GPU, profile."""


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of a class in the cluster."""

    nodes: tuple[str, ...] = ()
    total: int = 0
    """Number of devices, or slices, on these nodes."""
    available: int = 0
    """Of these, the number that no pod requests."""


def fit_report(inventory: Inventory) -> Fit:
    """Return the slices that still fit on nodes that InstaSlice manages, without GPUs of unknown models.

    Staged slices do not occupy any slots.
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


def class_totals(inventory: Inventory) -> Mapping[str, ClassTotal]:
    """Return for each class the allocatable devices of its nodes, and those that no pod requests.

    For a node without allocatable resources, the counts in its labels are used.
    """
    nodes: dict[str, list[str]] = {name: [] for name in inventory.classes}
    totals, used = dict.fromkeys(inventory.classes, 0), dict.fromkeys(inventory.classes, 0)
    for name, node in sorted(inventory.nodes.items()):
        amounts: dict[str, int] = {}
        for resource, amount in node.status.allocatable.items():
            amounts[resource_key(resource)] = amounts.get(resource_key(resource), 0) + floor(amount)
        labels = node.metadata.labels
        node_facts = facts_from_labels(labels)
        if not amounts:
            amounts = {f"mig/{profile}": count for profile, count in node_facts.mig.items()}
        evidence = Evidence(
            labels=with_label_aliases(labels),
            node=name,
            resources=frozenset(key for key, amount in amounts.items() if amount) or None,
            pci=pci_of(labels),
        )
        for each in matching_classes(inventory.classes.values(), evidence, inventory.flavors):
            keys = {resource_key(resource.name) for resource in each.spec.resources} or {"nvidia.com/gpu"}
            given = sum(amounts.get(key, 0) for key in keys) or (
                0 if node.status.allocatable else node_facts.count or 0
            )
            nodes[each.name].append(name)
            totals[each.name] += given
            used[each.name] += min(given, _requested_on(inventory, name, keys))
    return {
        name: ClassTotal(nodes=tuple(nodes[name]), total=totals[name], available=totals[name] - used[name])
        for name in inventory.classes
    }


def _requested_on(inventory: Inventory, node: str, keys: set[str]) -> int:
    """Return the number of devices of these resources that pods of the node request."""
    return sum(
        requested.count
        for pod in inventory.pods_by_node.get(node, ())
        for requested in resource_requests(pod, keys)
        if resource_key(requested.name) in keys
    )
