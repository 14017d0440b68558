# SPDX-License-Identifier: Apache-2.0
"""Prices of an endpoint: from the price list of the user, and from objects of other systems."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import floor

from epp.framework.accelerators.tag import AcceleratorTag, Sharing
from epp.hardware.catalogue import Product, find_instance_type
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.facts import Facts, Rank
from epp.hardware.inventory import Inventory
from epp.hardware.labels import INSTANCE_TYPE_LABELS, NodeFacts
from epp.hardware.prices import PriceList, PriceQuery
from epp.hardware.resources import profile_of
from epp.kube.objects.core import DEFAULT_VARIANT_COST, Pod, VariantAutoscaling
from epp.kube.objects.tensor_fusion import GpuNode

_WHOLE_DEVICES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
)
"""Resources that count whole accelerators, not slices, cores or replicas."""
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ACCELERATOR_NAME = "inference.optimization/acceleratorName"


def listed_prices(
    prices: PriceList, tag: AcceleratorTag, product: Product | None, context: EndpointContext, node: NodeFacts
) -> Facts:
    """Return the prices of an endpoint in the price list."""
    return prices.quote(
        PriceQuery(
            product=product,
            names=tuple(name for name in (tag.product, tag.model) if name),
            classes=tag.classes,
            instance_type=_label(context.node_labels, INSTANCE_TYPE_LABELS),
            region=_label(context.node_labels, _REGION_LABELS),
            devices=devices_of_machine(context, node),
        )
    )


def devices_of_machine(context: EndpointContext, node: NodeFacts) -> int | None:
    """Return the number of whole accelerators of the machine, independent of slices and sharing; None if unknown.

    It comes from the machine type, the labels, or the resources of the node.
    """
    machine = find_instance_type(_label(context.node_labels, INSTANCE_TYPE_LABELS), context.options.instance_types)
    if machine is not None:
        return machine.count
    divided = any(fact.partition is not None and fact.partition.kind is Sharing.MIG for fact in node.facts)
    if divided:  # the count is the number of slices
        return None
    if node.count is not None:
        return node.count or None
    allocatable = {} if context.node is None else context.node.allocatable
    shared = any(fact.partition is not None for fact in node.facts)
    if shared or any(profile_of(name) and amount > 0 for name, amount in allocatable.items()):
        return None
    return max((floor(allocatable[name]) for name in _WHOLE_DEVICES if name in allocatable), default=0) or None


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name].strip() for name in names if labels.get(name, "").strip()), "")


def cost_facts(tag: AcceleratorTag, context: EndpointContext) -> Iterator[Facts]:
    """Yield prices of rank CATALOGUE, which precede those of tables; `tag` is the tag without them."""
    inventory, unit = context.inventory, context.options.cost_unit
    unit_dollars = Fraction(1, 100) if unit == "cents" else Fraction(1)
    node = inventory.gpu_nodes.get(context.node_name)
    devices = _devices_of(node, inventory)
    if node is not None and node.cost_per_hour is not None and devices:
        yield _price(f"GPUNode/{node.name}", node.cost_per_hour / devices)
    variant = variant_of(context.pod, inventory)
    share = max(tag.count, 1) * tag.partition.memory_fraction
    cost = None if variant is None else variant.price
    if variant is not None and cost is not None and share > 0:
        yield _price(f"VariantAutoscaling/{variant.id} in {unit}", cost * unit_dollars / Fraction(share))
    name = "" if variant is None else variant.metadata.labels.get(_ACCELERATOR_NAME, "")
    for key, unit_cost in inventory.unit_costs.items():
        product = context.catalogue.find(unit_cost.device or key)
        names = {key.lower()} | ({product.model} if product is not None else set())
        if name == key or (not name and tag.model in names):
            yield _price(f"accelerator-unit-costs/{key} in {unit}", unit_cost.cost * unit_dollars)


def cost_warnings(context: EndpointContext) -> Iterator[str]:
    """Yield a warning for a variant with the default price."""
    variant = variant_of(context.pod, context.inventory)
    if variant is not None and variant.cost == DEFAULT_VARIANT_COST:
        yield (
            f"VariantAutoscaling/{variant.id}: variantCost is {DEFAULT_VARIANT_COST}, which is the default of the "
            "cluster, so it counts as unknown: write another value, or the price of the accelerator in "
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
        target = variant.target
        if variant.metadata.namespace == pod.metadata.namespace and (target.kind, target.name) in owners:
            return variant
    return None


def _devices_of(node: GpuNode | None, inventory: Inventory) -> int:
    """Return the number of GPUs of the node from its total memory, since some GPUs may be unknown."""
    gpus = inventory.gpus_by_node.get("" if node is None else node.name, ())
    if node is None or not gpus:
        return 0
    total, each = node.total_vram, gpus[0].status.capacity.vram
    return max(len(gpus), round(total / each) if total and each else 0)


def _price(source: str, per_hour: Fraction) -> Facts:
    return Facts(source=source, rank=Rank.CATALOGUE, per_hour=float(per_hour))
