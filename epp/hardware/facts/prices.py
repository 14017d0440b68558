# SPDX-License-Identifier: Apache-2.0
"""Prices in objects of other systems: nodes of TensorFusion, variants and unit costs of the variant autoscaler."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, TypeAlias

from epp.framework.accelerators.tag import AcceleratorTag
from epp.hardware.catalogue import Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.surroundings import Surroundings
from epp.hardware.inventory import Inventory
from epp.kube.objects.core import Pod
from epp.kube.objects.costs import DEFAULT_VARIANT_COST, VariantAutoscaling
from epp.kube.objects.tensor_fusion import GpuNode

CostUnit: TypeAlias = Literal["cents", "dollars"]
"""Unit of the prices of the variant autoscaler, per hour."""

_ACCELERATOR_NAME = "inference.optimization/acceleratorName"


def cost_facts(
    tag: AcceleratorTag, around: Surroundings, inventory: Inventory, catalogue: Catalogue, unit: CostUnit = "cents"
) -> Iterator[Facts]:
    """Yield prices of rank CATALOGUE, to precede those of tables; `tag` is the tag without them."""
    unit_dollars = Fraction(1, 100) if unit == "cents" else Fraction(1)
    node = inventory.gpu_nodes.get(around.node_name)
    devices = _devices_of(node, inventory)
    if node is not None and node.spec.cost_per_hour is not None and devices:
        yield _price(f"GPUNode/{node.name}", node.spec.cost_per_hour / devices)
    variant = variant_of(around.pod, inventory)
    share = max(tag.count, 1) * tag.partition.memory_fraction
    cost = None if variant is None else variant.spec.price
    if variant is not None and cost is not None and share > 0:
        yield _price(f"VariantAutoscaling/{variant.id} in {unit}", cost * unit_dollars / Fraction(share))
    name = "" if variant is None else variant.metadata.labels.get(_ACCELERATOR_NAME, "")
    for key, unit_cost in inventory.unit_costs.items():
        product = catalogue.find(unit_cost.device or key)
        names = {key.lower()} | ({product.model} if product is not None else set())
        if name == key or (not name and tag.model in names):
            yield _price(f"accelerator-unit-costs/{key} in {unit}", unit_cost.cost * unit_dollars)


def cost_warnings(around: Surroundings, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for a variant with the price that a cluster fills in."""
    variant = variant_of(around.pod, inventory)
    if variant is not None and variant.spec.variant_cost == DEFAULT_VARIANT_COST:
        yield (
            f"VariantAutoscaling/{variant.id}: variantCost is {DEFAULT_VARIANT_COST}, which a cluster fills in where "
            "none is given, so it counts as unknown: write another value, or the price of the accelerator in "
            "accelerator-unit-costs"
        )


def variant_of(pod: Pod | None, inventory: Inventory) -> VariantAutoscaling | None:
    """Return the variant whose workload owns the pod."""
    if pod is None:
        return None
    generation = pod.metadata.labels.get("pod-template-hash", "")
    owners = {
        ("Deployment", owner.name.removesuffix(f"-{generation}"))
        if owner.kind == "ReplicaSet"
        else (owner.kind, owner.name)
        for owner in pod.metadata.owner_references
    }
    for variant in inventory.variants:
        target = variant.spec.scale_target_ref
        if variant.metadata.namespace == pod.metadata.namespace and (target.kind, target.name) in owners:
            return variant
    return None


def _devices_of(node: GpuNode | None, inventory: Inventory) -> int:
    """Return the number of GPUs of the node, by its total memory, since not all of them may be known."""
    gpus = inventory.gpus_by_node.get("" if node is None else node.name, ())
    if node is None or not gpus:
        return 0
    total, each = node.status.total_vram, gpus[0].status.capacity.vram
    return max(len(gpus), round(total / each) if total and each else 0)


def _price(source: str, per_hour: Fraction) -> Facts:
    return Facts(source=source, rank=Rank.CATALOGUE, per_hour=float(per_hour))
