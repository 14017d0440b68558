# SPDX-License-Identifier: Apache-2.0
"""Facts from TensorFusion: the GPUs of an endpoint, its share of them, their use and their state."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import msgspec

from epp.framework.accelerators.tag import (
    CLIQUE,
    ISOLATION_MODE,
    PARTITION_TEMPLATE,
    PHASE,
    TFLOPS_FREE,
    TFLOPS_USED,
    USED_BY,
    VIRTUAL,
    VRAM_FREE,
    VRAM_USED,
    AcceleratorKind,
    AttributeValue,
    Device,
    DeviceLink,
    Partition,
    Routability,
    Sharing,
)
from epp.hardware.catalogue import Product
from epp.hardware.endpoint_context import DOMAIN, EndpointContext
from epp.hardware.facts.merge import Facts, PassOrDrain, Rank
from epp.hardware.inventory import Inventory, gpu_users
from epp.hardware.mig import (
    UNKNOWN_SLICE,
    equal_share,
    is_unknown_slice,
    joined,
    mig_gpu,
    parse_mig_profile,
    partition_of,
)
from epp.hardware.validation import gpu_ids, template_fault
from epp.kube.objects.base import quantity_of
from epp.kube.objects.tensor_fusion import AllocatedPartition, Amount, Gpu

_ROUNDING = Fraction(101, 100)
"""Tolerance for the sum of nominal capacities relative to the total of their node."""

Resource = Literal["tflops", "vram"]
_LEAVING = frozenset({"Destroying", "Migrating"})
_OURS = frozenset({"", "tensor-fusion"})


class Amounts(NamedTuple):
    """One resource of one GPU."""

    physical: Fraction
    virtual: Fraction
    """Amount for sale; equal to `physical` unless the node is oversubscribed."""
    allocated: Fraction | None
    """None if unknown."""


def amounts_of(gpu: Gpu, resource: Resource, inventory: Inventory) -> Amounts | None:
    """Return the amounts of a GPU; None if it does not report its capacity.

    If a node is oversubscribed and the sum over its GPUs exceeds its total, the GPUs report virtual capacity.
    """
    capacity, available = getattr(gpu.status.capacity, resource), getattr(gpu.status.available, resource)
    if capacity is None:
        return None
    node = inventory.gpu_nodes.get(gpu.node)
    total, virtual = (getattr(node, f"{kind}_{resource}", None) for kind in ("total", "virtual"))
    ratio = virtual / total if total and virtual and virtual > total else Fraction(1)
    on_node = [getattr(each.status.capacity, resource) for each in inventory.gpus_by_node.get(gpu.node, ())]
    reports_virtual = total is not None and ratio > 1 and sum(filter(None, on_node)) > total * _ROUNDING
    physical = capacity / ratio if reports_virtual else capacity
    return Amounts(physical, physical * ratio, None if available is None else max(capacity - available, Fraction(0)))


def physical_capacity(gpu: Gpu, resource: Resource, inventory: Inventory) -> Fraction | None:
    amounts = amounts_of(gpu, resource, inventory)
    return None if amounts is None else amounts.physical


def usage_attributes(gpus: Sequence[Gpu], inventory: Inventory) -> dict[str, AttributeValue]:
    """Return used share and free amount of all GPUs; a resource with an unknown amount is omitted.

    A share of -1 stands for no capacity. Virtual amounts are only present if they differ.
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


def tensor_fusion_gpus(context: EndpointContext) -> tuple[Gpu, ...]:
    """Return the GPUs in the annotation of the pod, and the GPUs that run the pod or have its partition."""
    inventory = context.inventory
    wanted = gpu_ids(context.annotations.get(f"{context.options.tensor_fusion_domain}/gpu-ids", ""))
    named = [inventory.gpus[name] for name in wanted if name in inventory.gpus]
    named += [inventory.gpus_by_uuid[name][0] for name in wanted if name in inventory.gpus_by_uuid]
    used = inventory.all_by_pod(inventory.gpus_by_pod, context.pod_keys)
    return tuple({gpu.id: gpu for gpu in (*named, *used)}.values())


def tensor_fusion_facts(context: EndpointContext, gpus: Sequence[Gpu]) -> Iterator[Facts]:
    """Yield facts of rank ALLOCATOR; none without GPUs of TensorFusion."""
    if not gpus:
        return
    inventory, first = context.inventory, gpus[0].status
    memory = [int(size) for gpu in gpus if (size := physical_capacity(gpu, "vram", inventory))]
    text = first.gpu_model or first.model
    product = context.catalogue.find(text, memory[0] if memory else None) if text else None
    parts = [part for gpu in gpus if (part := _partition(gpu, product, context)) is not None]
    part = joined(parts) if len(parts) == len(gpus) else None
    unknown = part is not None and is_unknown_slice(part)
    part_memory = 1.0 if part is None else part.memory_fraction
    tflops = physical_capacity(gpus[0], "tflops", inventory)
    state, reason = _state(gpus, context.options.on_pending_gpu)
    yield Facts(
        source=f"GPU/{gpus[0].name}",
        rank=Rank.ALLOCATOR,
        kind=AcceleratorKind.GPU if product is None else product.kind,
        vendor=first.vendor.lower() or "nvidia",
        family=None if product is None else product.family or None,
        model=None if product is None else product.model,
        product=text or None,
        devices=tuple(_device(gpu, context.node_labels.get(CLIQUE, "")) for gpu in gpus),
        count=len(gpus),
        memory_bytes=int(min(memory) * part_memory) if len(memory) == len(gpus) and not unknown else None,
        fp16=float(tflops) if tflops and not unknown else None,
        partition=part,
        state=state,
        reason=reason,
        node=gpus[0].node or None,
        attributes=_attributes(gpus, context) | usage_attributes(gpus, inventory),
    )


def _device(gpu: Gpu, clique: str) -> Device:
    numa = gpu.status.numa_node
    return Device(
        id=gpu.status.uuid or gpu.name,
        node=gpu.node,
        index=gpu.status.index,
        numa=None if numa is None or numa < 0 else numa,
        clique=clique,
        links=(
            *(DeviceLink(peer=to.peer, tier=to.tier, bandwidth_mbps=float(to.bandwidth or 0)) for to in gpu.linked),
            *(DeviceLink(peer=to.peer, bandwidth_mbps=float(to.bandwidth or 0)) for to in gpu.nv_links),
        ),
    )


def _state(gpus: Sequence[Gpu], on_pending: PassOrDrain) -> tuple[Routability, str | None]:
    worst: tuple[Routability, str | None] = (Routability.ROUTABLE, None)
    for gpu in gpus:
        phase, user = gpu.status.phase, gpu.status.used_by
        if user not in _OURS:
            return Routability.BLOCKED, f"GPU {gpu.name} is used by {user}"
        if phase == "Running" or (phase == "Pending" and on_pending == "Pass"):
            continue
        state = Routability.DRAINING if phase in _LEAVING else Routability.BLOCKED
        if worst[0] is not Routability.BLOCKED:
            worst = state, f"GPU {gpu.name} is {phase or 'without a phase'}, not Running"
    return worst


def _partition(gpu: Gpu, product: Product | None, context: EndpointContext) -> Partition | None:
    """Return the share of the endpoint in the GPU; None for the whole GPU or an unknown share."""
    template = _template(gpu, context)
    if template is not None:
        return _from_template(gpu, product, template)
    if gpu.status.isolation_mode == "shared":
        pods = {pod.uid or pod.id for pod in gpu_users(gpu)}
        return equal_share(Sharing.TIME_SLICING, max(len(pods), 1))
    amount = _share(gpu, context) or _annotated_share(context)
    compute = _fraction(amount.tflops, physical_capacity(gpu, "tflops", context.inventory))
    memory = _fraction(amount.vram, physical_capacity(gpu, "vram", context.inventory))
    if compute is None and amount.compute is not None:
        compute = min(float(amount.compute) / 100, 1.0)
    if compute is None and memory is None:
        return None
    return Partition(
        kind=Sharing.VGPU,
        compute_fraction=1.0 if compute is None else compute,
        memory_fraction=1.0 if memory is None else memory,
        parent_id=gpu.status.uuid or gpu.name,
    )


def _template(gpu: Gpu, context: EndpointContext) -> AllocatedPartition | None:
    uid = "" if context.pod is None else context.pod.metadata.uid
    for key, part in gpu.status.allocated_partitions.items():
        if uid == (part.pod_uid or key) if uid else f"{part.namespace}/{part.pod_name}" == context.pod_id:
            return part
    return None


def _from_template(gpu: Gpu, product: Product | None, template: AllocatedPartition) -> Partition:
    profile = parse_mig_profile(template.template_id)
    if profile is not None and template_fault(gpu, template.template_id):
        return UNKNOWN_SLICE
    parent = gpu.status.uuid or gpu.name
    start = template.allocated_slot_start
    if profile is None:
        unknown = Partition(kind=Sharing.VGPU, profile=template.template_id)
        partition = unknown if product is None else product.partitions.get(template.template_id, unknown)
        return msgspec.structs.replace(partition, parent_id=parent, start=start)
    vram = gpu.status.capacity.vram
    layout = mig_gpu(gpu.status.gpu_model or gpu.status.model, None if vram is None else int(vram))
    return partition_of(profile, layout, start=start, parent_id=parent)


def _share(gpu: Gpu, context: EndpointContext) -> Amount | None:
    """Return the limits, or else requests, of the pod on this GPU; None if it does not run there."""
    for app in gpu.status.running_apps:
        for pod in app.pods:
            if pod.keys & set(context.pod_keys):
                return Amount(
                    tflops=pod.limits.tflops or pod.requests.tflops,
                    compute=pod.limits.compute or pod.requests.compute,
                    vram=pod.limits.vram or pod.requests.vram,
                )
    return None


def _annotated_share(context: EndpointContext) -> Amount:
    """Return the valid amounts in the annotations of the pod."""

    def amount(resource: str) -> Fraction | None:
        for bound in ("limit", "request"):
            text = context.annotations.get(f"{context.options.tensor_fusion_domain}/{resource}-{bound}")
            try:
                found = quantity_of(text) if text else None
            except ValueError:
                continue
            if found is not None and found > 0:
                return found
        return None

    return Amount(tflops=amount("tflops"), compute=amount("compute-percent"), vram=amount("vram"))


def _fraction(part: Fraction | None, whole: Fraction | None) -> float | None:
    return None if not part or not whole else min(float(part / whole), 1.0)


def _attributes(gpus: Sequence[Gpu], context: EndpointContext) -> dict[str, AttributeValue]:
    first, domain = gpus[0], context.options.tensor_fusion_domain
    templates = {part.template_id for gpu in gpus if (part := _template(gpu, context)) is not None}
    texts = {
        PHASE: ",".join(sorted({gpu.status.phase for gpu in gpus})),
        USED_BY: first.status.used_by,
        ISOLATION_MODE: first.status.isolation_mode,
        PARTITION_TEMPLATE: ",".join(sorted(templates)),
        f"{DOMAIN}/gpupool": first.metadata.labels.get(f"{domain}/gpupool", ""),
        f"{DOMAIN}/qos": context.annotations.get(f"{domain}/qos", ""),
    }
    return {name: text for name, text in texts.items() if text}
