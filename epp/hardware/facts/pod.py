# SPDX-License-Identifier: Apache-2.0
"""Facts from a pod: requests for devices, its place, whether its model is frozen; and the prices of an endpoint."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import floor

from epp.framework.accelerators.tag import (
    BOOT_ID,
    CLIQUE,
    COMPUTE_DOMAIN,
    FROZEN,
    FROZEN_TO,
    POD_UID,
    AcceleratorKind,
    AcceleratorTag,
    AttributeValue,
    Partition,
    Sharing,
)
from epp.hardware.catalogue import Product, find_instance_type, partition_of_mode
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.facts.merge import Facts, Rank
from epp.hardware.inventory import Inventory
from epp.hardware.label_reading import first_label
from epp.hardware.mig import UNKNOWN_SLICE, equal_share, joined, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.node_labels import NodeFacts
from epp.hardware.prices import PriceList, PriceQuery
from epp.hardware.resources import ResourceRequest, extended_resources, profile_of, resource_requests
from epp.kube.objects.core import DEFAULT_VARIANT_COST, Node, Pod, VariantAutoscaling
from epp.kube.objects.tensor_fusion import GpuNode

_NEURON_CORE = "aws.amazon.com/neuroncore"
_NEURON_DEVICES = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice")
_TILES = "gpu.intel.com/tiles"
_AI_CORES = re.compile(r"huawei\.com/ascend[0-9a-z]+-(?P<cores>[1-9][0-9]?)c(\..*)?", re.IGNORECASE)
_SERVER_TYPE = re.compile(r"ascend[0-9a-z]+-(?P<cores>[1-9][0-9]?)", re.IGNORECASE)
_AMD = "amd.com/"
OWN_DOMAIN = "llm-d.ai"


def requested_part(
    requested: Iterable[ResourceRequest],
    amounts: Mapping[str, int],
    product: Product | None,
    node: Node | None,
    devices: int | None = None,
) -> Partition | None:
    """Return the part of a device for each requested resource; None for whole devices and unknown parts.

    `amounts` are all requested extended resources of the pod; `product` and `devices` are those of the node.
    """
    parts = product.parts if product is not None else None
    for each in requested:
        if each.name == _NEURON_CORE:
            return _cores(1, _neuron_cores(node) or parts, "neuroncore")
        if (match := _AI_CORES.fullmatch(each.name)) is not None:
            # such as `servertype: Ascend910B-20`
            server = _SERVER_TYPE.fullmatch("" if node is None else node.metadata.labels.get("servertype", ""))
            return _cores(int(match["cores"]), int(server["cores"]) if server else parts, f"{match['cores']}c")
        mode = each.name.removeprefix(_AMD) if each.name.startswith(_AMD) else ""
        if (part := partition_of_mode(mode, product)) is not None:
            return part
        if each.vendor == "intel" and parts and (tiles := amounts.get(_TILES)) and tiles < each.count * parts:
            return _cores(tiles, each.count * parts, f"{tiles}t")
        if each.vendor == "intel" and (sharers := _sharers(each.name, node, devices)) > 1:
            return equal_share(Sharing.TIME_SLICING, sharers)
    return None


def _sharers(resource: str, node: Node | None, devices: int | None) -> int:
    """Return the number of times that the device plugin offers each device, since Intel has no label for sharing."""
    offered = 0 if node is None else int(node.allocatable.get(resource, 0))
    return offered // devices if devices and offered % devices == 0 else 1


def _cores(number: int, of: int | None, profile: str) -> Partition | None:
    """Return the share; None if the number of cores of a device is unknown."""
    if not of:
        return None
    share = min(number / of, 1.0)
    return Partition(kind=Sharing.CORES, profile=profile, compute_fraction=share, memory_fraction=share)


def _neuron_cores(node: Node | None) -> int | None:
    """Return the cores of a device as counted by the device plugin; a logical core may consist of two physical ones."""
    allocatable: Mapping[str, Fraction] = {} if node is None else node.allocatable
    devices = next((allocatable[name] for name in _NEURON_DEVICES if allocatable.get(name)), None)
    cores = allocatable.get(_NEURON_CORE)
    return int(cores / devices) or None if cores and devices else None


def frozen_facts(context: EndpointContext) -> Iterator[Facts]:
    """Yield the location of a frozen model in labels of the endpoint and annotations of its pod."""
    pod = context.pod
    sources = [context.endpoint.labels, *([] if pod is None else [pod.metadata.annotations, pod.metadata.labels])]
    for key in (f"{OWN_DOMAIN}/frozen", f"{context.options.tensor_fusion_domain}/frozen"):
        for value in dict.fromkeys(source[key] for source in sources if key in source):
            if value in FROZEN_TO:
                yield Facts(source=key, rank=Rank.ALLOCATOR, attributes={FROZEN: value})
            else:
                remedy = f"write {' or '.join(FROZEN_TO)}, or remove it; it is ignored"
                yield Facts(source=key, rank=Rank.ALLOCATOR, warnings=(f"{key} is {value[:60]!r}: {remedy}",))


def endpoint_facts(context: EndpointContext) -> Facts:
    """Return node and cluster of the endpoint, and ids that change when its node or pod is replaced."""
    attributes: dict[str, AttributeValue] = {}
    if boot := context.boot_id or ("" if context.slicer is None else context.slicer.boot_id):
        attributes[BOOT_ID] = boot
    if context.pod is not None and context.pod.metadata.uid:
        attributes[POD_UID] = context.pod.metadata.uid
    attributes |= {label: name for label in (CLIQUE, COMPUTE_DOMAIN) if (name := context.node_labels.get(label, ""))}
    return Facts(
        source="endpoint" if context.pod is None else f"Pod/{context.pod.id}",
        rank=Rank.OPERATOR,
        node=context.node_name or None,
        cluster=context.endpoint.cluster or context.options.cluster or None,
        attributes=attributes,
    )


def pod_facts(context: EndpointContext, requested: Sequence[ResourceRequest], node: NodeFacts) -> Iterator[Facts]:
    """Yield the number of devices of the endpoint, and the slices or parts of devices that its pod requests.

    Slices and parts have the rank of claims and follow them. An endpoint without a known pod has all devices of the
    node if no known pod requests any, but at most one MIG slice, since a process cannot use several.
    """
    if context.pod is None:
        part = next((fact.partition for fact in node.facts if fact.partition is not None), None)
        count = 1 if part is not None and part.kind is Sharing.MIG else node.slice_chips or node.count
        pods = context.inventory.pods_by_node.get(context.node_name, ())
        if count is not None and not any(each.known for pod in pods for each in resource_requests(pod)):
            yield Facts(source="labels", rank=Rank.RESOURCES, count=count)
        return
    if not requested:
        return
    source = f"Pod/{context.pod.id}"
    if slices := [each for each in requested if each.profile]:
        yield _sliced(source, slices, node)
    elif any(each.is_slice for each in requested):
        yield Facts(source=source, rank=Rank.SELF, partition=UNKNOWN_SLICE)
    names = [fact.product for fact in reversed(node.facts) if fact.product]
    product = next((found for name in names if (found := context.catalogue.find(name)) is not None), None)
    part = requested_part(requested, extended_resources(context.pod), product, context.node, node.count)
    if part is not None:  # labels may have the memory of other parts
        whole = None if product is None or part.kind is Sharing.CORES else product.memory_bytes
        memory = int(whole * part.memory_fraction) if whole else None
        yield Facts(source=source, rank=Rank.SLICE_CLAIM, memory_bytes=memory, partition=part)
    yield Facts(
        source=source,
        rank=Rank.RESOURCES,
        kind=next((each.kind for each in requested if each.kind is not AcceleratorKind.UNKNOWN), None),
        vendor=next((each.vendor for each in requested if each.vendor), None),
        count=sum(each.count for each in requested) if all(each.count for each in requested) else None,
        resources=frozenset(each.name for each in requested),
    )


def _sliced(source: str, slices: Sequence[ResourceRequest], node: NodeFacts) -> Facts:
    product = next((fact.product for fact in node.facts if fact.product), "")
    layout = mig_gpu(product) if product else None
    counted = [(profile, max(each.count, 1)) for each in slices if (profile := parse_mig_profile(each.profile))]
    total = sum(count for _, count in counted)
    return Facts(
        source=source,
        rank=Rank.SLICE_CLAIM,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        count=total if all(each.count for each in slices) else None,
        memory_bytes=sum(profile.memory_bytes * count for profile, count in counted) // total,
        partition=joined([part for profile, count in counted for part in [partition_of(profile, layout)] * count]),
    )


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
    return prices.quote(
        PriceQuery(
            product=product,
            names=tuple(name for name in (tag.product, tag.model) if name),
            classes=tag.classes,
            instance_type=first_label(context.node_labels),
            region=first_label(context.node_labels, _REGION_LABELS),
            devices=devices_of_machine(context, node),
        )
    )


def devices_of_machine(context: EndpointContext, node: NodeFacts) -> int | None:
    """Return the number of whole accelerators of the machine, independent of slices and sharing; None if unknown.

    It comes from the machine type, the labels, or the resources of the node.
    """
    machine = find_instance_type(first_label(context.node_labels), context.options.instance_types)
    if machine is not None:
        return machine.count
    parts = [fact.partition for fact in node.facts if fact.partition is not None]
    if any(part.kind is Sharing.MIG for part in parts):  # the count is the number of slices
        return None
    if node.count is not None:
        return node.count or None
    allocatable = {} if context.node is None else context.node.allocatable
    if parts or any(profile_of(name) and amount > 0 for name, amount in allocatable.items()):
        return None
    return max((floor(allocatable[name]) for name in _WHOLE_DEVICES if name in allocatable), default=0) or None


def cost_facts(tag: AcceleratorTag, context: EndpointContext) -> Iterator[Facts]:
    """Yield prices of rank CATALOGUE, which precede those of tables; `tag` is the tag without them."""
    inventory, unit = context.inventory, context.options.cost_unit
    unit_dollars = Fraction(1, 100 if unit == "cents" else 1)
    node = inventory.gpu_nodes.get(context.node_name)
    devices = _devices_of(node, inventory)
    if node is not None and node.cost_per_hour is not None and devices:
        yield _price(f"GPUNode/{node.name}", node.cost_per_hour / devices)
    variant = variant_of(context.pod, inventory)
    share = max(tag.count, 1) * tag.partition.memory_fraction
    if variant is not None and variant.price is not None and share > 0:
        yield _price(f"VariantAutoscaling/{variant.id} in {unit}", variant.price * unit_dollars / Fraction(share))
    name = "" if variant is None else variant.metadata.labels.get(_ACCELERATOR_NAME, "")
    for key, unit_cost in inventory.unit_costs.items():
        product = context.catalogue.find(unit_cost.device or key)
        names = {key.lower()} | ({product.model} if product is not None else set())
        if name == key or (not name and tag.model in names):
            yield _price(f"accelerator-unit-costs/{key} in {unit}", unit_cost.cost * unit_dollars)


def cost_warnings(context: EndpointContext) -> Iterator[str]:
    variant = variant_of(context.pod, context.inventory)
    if variant is not None and variant.cost == DEFAULT_VARIANT_COST:
        yield (
            f"VariantAutoscaling/{variant.id}: variantCost is {DEFAULT_VARIANT_COST}, which is the default of the "
            "cluster, so it counts as unknown: write another value, or the price of the accelerator in "
            "accelerator-unit-costs"
        )


def variant_of(pod: Pod | None, inventory: Inventory) -> VariantAutoscaling | None:
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
        target = variant.target_kind, variant.target_name
        if variant.metadata.namespace == pod.metadata.namespace and target in owners:
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
