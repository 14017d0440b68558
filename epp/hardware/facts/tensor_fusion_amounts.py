# SPDX-License-Identifier: Apache-2.0
"""Capacity and use of TensorFusion's GPUs: physical figures, and those of nodes that sell more than they have."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from epp.framework.accelerators.tag import (
    TFLOPS_FREE,
    TFLOPS_USED,
    VIRTUAL,
    VRAM_FREE,
    VRAM_USED,
    AttributeValue,
)
from epp.hardware.inventory import Inventory
from epp.kube.objects.tensor_fusion import Gpu, GpuNode

_ROUNDING = Fraction(101, 100)
"""Sums of nominal capacities differ a little from the total of their node."""

Resource = Literal["tflops", "vram"]


class Amounts(NamedTuple):
    """One resource of one GPU."""

    physical: Fraction
    virtual: Fraction
    """What the node sells of it; as much as is there unless the node is oversubscribed."""
    allocated: Fraction | None
    """None if unknown."""


def amounts_of(gpu: Gpu, resource: Resource, inventory: Inventory) -> Amounts | None:
    """Return the amounts of a GPU; None if it does not report its capacity.

    Of a node whose virtual figure exceeds its total, GPUs that have more than the total together report virtual
    capacity.
    """
    capacity, available = getattr(gpu.status.capacity, resource), getattr(gpu.status.available, resource)
    if capacity is None:
        return None
    total, virtual = _of_node(inventory.gpu_nodes.get(gpu.node), resource)
    ratio = virtual / total if total and virtual and virtual > total else Fraction(1)
    on_node = [getattr(each.status.capacity, resource) for each in inventory.gpus_by_node.get(gpu.node, ())]
    reports_virtual = total is not None and ratio > 1 and sum(filter(None, on_node)) > total * _ROUNDING
    physical = capacity / ratio if reports_virtual else capacity
    return Amounts(physical, physical * ratio, None if available is None else max(capacity - available, Fraction(0)))


def physical_capacity(gpu: Gpu, resource: Resource, inventory: Inventory) -> Fraction | None:
    """Return what the GPU has; None if unknown."""
    amounts = amounts_of(gpu, resource, inventory)
    return None if amounts is None else amounts.physical


def usage_attributes(gpus: Sequence[Gpu], inventory: Inventory) -> dict[str, AttributeValue]:
    """Return the share in use and the free amounts of all GPUs together, without those that are unknown for one.

    A share of -1 stands for no capacity. The virtual ones are only there where they differ.
    """
    found: dict[str, AttributeValue] = {}
    resources: tuple[tuple[Resource, str, str], ...] = (
        ("vram", VRAM_USED, VRAM_FREE),
        ("tflops", TFLOPS_USED, TFLOPS_FREE),
    )
    for resource, used, free in resources:
        each = [amounts for gpu in gpus if (amounts := amounts_of(gpu, resource, inventory)) is not None]
        allocated = [amounts.allocated for amounts in each if amounts.allocated is not None]
        if len(allocated) < len(gpus):
            continue
        taken = sum(allocated, Fraction(0))
        physical = sum((amounts.physical for amounts in each), Fraction(0))
        virtual = sum((amounts.virtual for amounts in each), Fraction(0))
        for suffix, capacity in {"": physical, **({VIRTUAL: virtual} if virtual > physical else {})}.items():
            found[used + suffix] = float(taken / capacity) if capacity > 0 else -1.0
            found[free + suffix] = float(max(capacity - taken, Fraction(0)))
    return found


def _of_node(node: GpuNode | None, resource: Resource) -> tuple[Fraction | None, Fraction | None]:
    """Return the total and the virtual amount of a node."""
    if node is None:
        return None, None
    status = node.status
    if resource == "vram":
        return status.total_vram, status.virtual_vram
    return status.total_tflops, status.virtual_tflops
