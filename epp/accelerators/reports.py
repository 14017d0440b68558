"""What there is and what is left of it: slices that still fit on each GPU, devices of each class."""

from collections.abc import Mapping
from math import floor

import msgspec

from epp.accelerators.classes.matching import Evidence, matching_classes
from epp.accelerators.classes.pci import pci_of
from epp.accelerators.inventory import Inventory
from epp.accelerators.labels import facts_from_labels, with_label_aliases
from epp.accelerators.mig import mig_gpu
from epp.accelerators.mig.layouts import Placed, more_that_fit
from epp.accelerators.resources import asked_of, resource_key

Fit = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Node -> UUID of the GPU -> profile -> how many more of it fit, if nothing else is added."""


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """What a class has in the cluster."""

    nodes: tuple[str, ...] = ()
    total: int = 0
    """Devices, or slices, on these nodes."""
    available: int = 0
    """Of those, how many no pod has asked for."""


def fit_report(inventory: Inventory) -> Fit:
    """Return what still fits on the nodes that InstaSlice manages; a GPU that is not known is left out.

    Slices that a scheduler only tried take no place.
    """
    report: dict[str, dict[str, Mapping[str, int]]] = {}
    for name, node in sorted(inventory.slice_nodes.items()):
        claims = [claim for claim in inventory.slice_claims_by_node.get(name, ()) if claim.occupies]
        found: dict[str, Mapping[str, int]] = {}
        for gpu in node.gpus:
            layout = mig_gpu(gpu.gpu_name, None if gpu.gpu_memory is None else int(gpu.gpu_memory))
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
    """Return what each class has: what its nodes can give of its resources, and what their pods have not asked for.

    Where a node does not say what it can give, its labels do.
    """
    nodes: dict[str, list[str]] = {name: [] for name in inventory.classes}
    totals, used = dict.fromkeys(inventory.classes, 0), dict.fromkeys(inventory.classes, 0)
    for name, node in sorted(inventory.nodes.items()):
        amounts: dict[str, int] = {}
        for resource, amount in node.status.allocatable.items():
            amounts[resource_key(resource)] = amounts.get(resource_key(resource), 0) + floor(amount)
        labels = node.metadata.labels
        said = facts_from_labels(labels)
        if not amounts:
            amounts = {f"mig/{profile}": count for profile, count in said.mig.items()}
        evidence = Evidence(
            labels=with_label_aliases(labels),
            node=name,
            resources=frozenset(key for key, amount in amounts.items() if amount) or None,
            pci=pci_of(labels),
        )
        for each in matching_classes(inventory.classes.values(), evidence, inventory.flavors):
            keys = {resource_key(resource.name) for resource in each.spec.resources} or {"nvidia.com/gpu"}
            given = sum(amounts.get(key, 0) for key in keys) or (0 if node.status.allocatable else said.count or 0)
            nodes[each.name].append(name)
            totals[each.name] += given
            used[each.name] += min(given, _asked_on(inventory, name, keys))
    return {
        name: ClassTotal(nodes=tuple(nodes[name]), total=totals[name], available=totals[name] - used[name])
        for name in inventory.classes
    }


def _asked_on(inventory: Inventory, node: str, keys: set[str]) -> int:
    """Return how many devices of these resources the pods of a node ask for."""
    return sum(
        asked.count
        for pod in inventory.pods_by_node.get(node, ())
        for asked in asked_of(pod, keys)
        if resource_key(asked.name) in keys
    )
