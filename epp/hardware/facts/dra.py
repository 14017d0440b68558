# SPDX-License-Identifier: Apache-2.0
"""Facts from objects that allocate devices: ResourceClaims, and the slices of InstaSlice."""

import re
from collections.abc import Iterator, Mapping, Sequence

from epp.framework.accelerators.tag import (
    CLIQUE,
    DRIVER,
    SLOTS_FREE,
    SLOTS_TOTAL,
    AcceleratorKind,
    AttributeValue,
    Device,
    Partition,
    Routability,
    Sharing,
)
from epp.hardware.catalogue import Catalogue, Product, same_size
from epp.hardware.dra_devices import Allocated, Share, consumed_share, device_memory, share_of
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.facts.merge import SEVERITY, DrainOrIgnore, Facts, Rank
from epp.hardware.inventory import Inventory
from epp.hardware.label_reading import PCI_DEVICES
from epp.hardware.mig import UNKNOWN_SLICE, equal_share, joined, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.mig_slices import SliceClaim, SliceNode, annotated_claims, sanitized_claim
from epp.hardware.resources import SLICER_DOMAINS, ResourceRequest
from epp.hardware.validation import gpus_of_node
from epp.kube.objects.core import mig_uuids_in
from epp.kube.objects.dra import effects_of

STALE = "epp/stale"
"""Attribute: true if the devices are described by an older generation of their pool."""
_VENDORS: Mapping[str, tuple[str, AcceleratorKind]] = {
    "gpu.nvidia.com": ("nvidia", AcceleratorKind.GPU),
    "gpu.amd.com": ("amd", AcceleratorKind.GPU),
    "gpu.intel.com": ("intel", AcceleratorKind.XPU),
    "gaudi.intel.com": ("intel", AcceleratorKind.NPU),
    "tpu.google.com": ("google", AcceleratorKind.TPU),
    "neuron.aws.com": ("aws", AcceleratorKind.NPU),
    "npu.huawei.com": ("huawei", AcceleratorKind.NPU),
    "npu.furiosa.ai": ("furiosa", AcceleratorKind.NPU),
}
_AMD = "gpu.amd.com"
_PCI_VENDORS = {_AMD: "1002", "gpu.intel.com": "8086", "gaudi.intel.com": "1da3"}
_PLACED = re.compile(r".*-mig-.+-\d+-(\d+)")
_UNHEALTHY = "Unhealthy"
_WHOLE_DEVICE = Share(1.0, 1.0)


def dra_facts(context: EndpointContext, devices: Sequence[Allocated]) -> Iterator[Facts]:
    """Yield facts of rank ALLOCATION; none for an endpoint without allocated devices."""
    if not devices:
        return
    inventory, catalogue = context.inventory, context.catalogue
    containers = () if context.pod is None else context.pod.status.container_statuses
    resources = (each for container in containers for each in container.allocated_resources_status)
    health = {each.resource_id: each.health for resource in resources for each in resource.resources}
    described = tuple(_device(each, health, context) for each in devices)
    first = devices[0]
    vendor, kind = _VENDORS.get(first.driver, (None, None))
    capability = first.attribute("cudaComputeCapability")
    text = first.text("productName") or first.text("model")
    product = _product_of(first, catalogue)
    memories: list[int] = []
    parts: list[Partition] = []
    for each in devices:
        product_of_device = _product_of(each, catalogue)
        share = share_of(each, product_of_device)
        if (memory := _memory(each, product_of_device, share)) is not None:
            memories.append(memory // _sharers(each, inventory))
        if each.device is not None:
            parts.append(_partition(each, inventory, share))
    architecture = first.text("architecture").lower().replace(" ", "-")
    state, reason = _state(described, context.options.on_unhealthy_device)
    yield Facts(
        source=f"ResourceClaim/{first.claim.id}",
        rank=Rank.ALLOCATION,
        kind=kind or (None if product is None else product.kind),
        vendor=vendor,
        family=(architecture if product is None else product.family) or None,
        model=None if product is None else product.model,
        product=text or None,
        devices=described,
        count=len(devices),
        memory_bytes=min(memories) if len(memories) == len(devices) else None,
        compute_capability=capability[:2] if isinstance(capability, tuple) else None,  # (9, 0) of 9.0.0
        partition=joined(parts) if len(parts) == len(devices) else None,
        state=state,
        reason=reason,
        node=next((device.node for device in described if device.node), None),
        attributes=_common_attributes(devices),
    )


def _device(each: Allocated, health: Mapping[str, str], context: EndpointContext) -> Device:
    index, numa = each.attribute("index"), each.attribute("numa")
    root = each.attributes.get("resource.kubernetes.io/pcieRoot")
    return Device(
        id=each.text("uuid") or each.result.id,
        node="" if each.pool is None else each.pool.nodes.get(each.result.device, ""),
        parent_id=each.text("parentUUID"),
        index=index if isinstance(index, int) else None,
        numa=numa if isinstance(numa, int) else None,
        pcie_root=root if isinstance(root, str) else "",
        clique=context.node_labels.get(CLIQUE, ""),
        fraction=1.0 / _sharers(each, context.inventory),
        health=health.get(each.result.id, ""),
        taints=tuple(sorted(effects_of(each.result, each.device, context.inventory.taint_rules))),
    )


def _product_of(each: Allocated, catalogue: Catalogue) -> Product | None:
    """Return the product by its name or PCI device id."""
    text = each.text("productName") or each.text("model")
    found = catalogue.find(text, device_memory(each)) if text else None
    if found is not None:
        return found
    device_id = (each.text("deviceID") or each.text("pciId")).lower().removeprefix("0x")
    model = PCI_DEVICES.get(_PCI_VENDORS.get(each.driver, ""), {}).get(device_id)
    return catalogue.find(model, device_memory(each)) if model else None


def _memory(each: Allocated, product: Product | None, share: Share | None) -> int | None:
    """Return the memory of the device or partition; a partition may report that of its whole device."""
    memory, whole = each.memory, None if product is None else product.memory_bytes
    if memory is None or share is None or whole is None or not same_size(whole, memory):
        return memory
    return int(memory * share.memory)


def _partition(each: Allocated, inventory: Inventory, share: Share | None) -> Partition:
    """Return the partition; the whole device by default."""
    placed = _PLACED.fullmatch(each.result.device)
    profile = each.profile
    sharers = _sharers(each, inventory)
    if profile is not None:
        return partition_of(
            profile,
            mig_gpu(each.text("productName")),
            start=None if placed is None else int(placed[1]),
            parent_id=each.text("parentUUID"),
            sharers=sharers,
        )
    if each.is_slice and (share is None or share == _WHOLE_DEVICE):
        return UNKNOWN_SLICE
    if share is not None:
        return Partition(
            kind=Sharing.AMD if each.driver == _AMD else Sharing.MIG if each.is_slice else Sharing.VGPU,
            profile="" if each.is_slice else each.text("partitionProfile") or each.text("profile"),
            compute_fraction=share.compute / sharers,
            memory_fraction=share.memory / sharers,
            parent_id=each.text("parentUUID") or each.text("parentUID") or each.text("pciAddr"),
            sharers=sharers,
        )
    if (consumed := consumed_share(each)) is not None:
        return Partition(kind=Sharing.VGPU, compute_fraction=consumed.compute, memory_fraction=consumed.memory)
    if sharers == 1:
        return Partition()
    of_requests = each.claim.sharing
    names = (each.result.request, each.result.request.partition("/")[0], "*")
    strategy = next((of_requests[name] for name in names if name in of_requests), "")
    return equal_share(Sharing.MPS if strategy.upper() == "MPS" else Sharing.TIME_SLICING, sharers)


def _sharers(each: Allocated, inventory: Inventory) -> int:
    """Return the number of pods that share the device; 1 if each consumes its own capacity."""
    if each.result.consumed_capacity:
        return 1
    return max(len(inventory.device_users(each.result.id)), 1)


def _state(devices: Sequence[Device], on_unhealthy: DrainOrIgnore) -> tuple[Routability, str | None]:
    for device in devices:
        if "NoExecute" in device.taints:
            return Routability.DRAINING, f"device {device.id} has a taint with effect NoExecute"
        if device.health == _UNHEALTHY and on_unhealthy == "Drain":
            return Routability.DRAINING, f"device {device.id} is unhealthy"
    return Routability.ROUTABLE, None


def _common_attributes(devices: Sequence[Allocated]) -> dict[str, AttributeValue]:
    """Return the common attributes of all devices, and STALE if it applies."""
    first, *others = (each.attributes for each in devices)
    found = {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
    if len({each.driver for each in devices}) == 1:
        found[DRIVER] = devices[0].driver
    if any(each.pool is not None and each.pool.stale for each in devices):
        found[STALE] = True
    return found


SLICE = "epp/slice"
"""Attribute: `unknown` if a pod requests a slice without a claim."""
_USUAL_SLOTS = 8
"""Memory slots of a GPU of an unknown model."""


def instaslice_facts(context: EndpointContext, requested: Sequence[ResourceRequest]) -> Iterator[Facts]:
    """Yield facts of rank SLICE_CLAIM; none without slices and requests for slices."""
    inventory = context.inventory
    claims = _claims(context) or _annotated(context)
    node_name = context.node_name or next((claim.node for claim in claims if not claim.tentative), "")
    node = inventory.slice_nodes.get(node_name)
    slices = [each for each in requested if each.profile and (node is not None or each.name.startswith(SLICER_DOMAINS))]
    if not claims and not slices:
        return
    if claims:
        yield _of_claims(claims, node, inventory, pod_ready=context.pod is None or context.pod.ready)
        if not any(claim.sound or claim.tentative for claim in claims):
            yield Facts(source="InstaSlice", rank=Rank.SELF, partition=UNKNOWN_SLICE)
    else:
        yield Facts(
            source="InstaSlice",
            rank=Rank.SLICE_CLAIM,
            state=Routability.DRAINING if context.options.on_missing_claim == "Drain" else Routability.UNKNOWN,
            reason=f"the pod requests {slices[0].name} and has no claim for it",
            attributes={SLICE: "unknown"},
        )
    if node is not None:
        yield _of_node(node, inventory.slice_claims_by_node.get(node.name, ()), context.options.on_node_not_ready)


def _claims(context: EndpointContext) -> tuple[SliceClaim, ...]:
    """Return the claims of the pod on its node; staged claims only if there are no others.

    A claim belongs to the pod that it names, to the pods with the environment of its ConfigMap, and to those with the
    UUID of its slice in their environment or their declaration.
    """
    inventory = context.inventory
    uuids = set() if context.pod is None else set(context.pod.mig_uuids)
    if context.endpoint.accelerator is not None:
        uuids |= mig_uuids_in(context.endpoint.accelerator.device)
    maps = {name for uuid in uuids for name in inventory.mig_maps.get(uuid, ())}
    maps |= frozenset() if context.pod is None else context.pod.environment_maps
    keys = (*context.pod_keys, *(f"env:{name}" for name in sorted(maps)))
    found = [
        claim
        for claim in inventory.all_by_pod(inventory.slice_claims_by_pod, keys)
        if not context.node_name or claim.node in {"", context.node_name}
    ]
    return tuple(claim for claim in found if not claim.tentative) or tuple(found)


def _annotated(context: EndpointContext) -> tuple[SliceClaim, ...]:
    """Return the claims in the annotation of the device plugin; none if it is invalid."""
    if context.pod is None:
        return ()
    try:
        claims = annotated_claims(context.pod, context.node_name)
    except ValueError:  # reported with other issues of the pod
        return ()
    gpus = gpus_of_node(context.node, context.slicer)
    return tuple(sanitized_claim(claim, context.slicer, gpus)[0] for claim in claims)


def _of_claims(claims: Sequence[SliceClaim], node: SliceNode | None, inventory: Inventory, *, pod_ready: bool) -> Facts:
    """Return the facts of the claims. Claims without a profile only contribute their state, unless all lack one."""
    worst = min(claims, key=lambda claim: SEVERITY.index(claim.routability(pod_ready=pod_ready)))
    state = worst.routability(pod_ready=pod_ready)
    reason = None if state is Routability.ROUTABLE else f"{worst.source} is {worst.state}"
    if worst.tentative:
        return Facts(source="InstaSlice", rank=Rank.SLICE_CLAIM, state=state, reason=reason)
    claims = [claim for claim in claims if claim.sound] or claims
    profiles = [parse_mig_profile(claim.profile) for claim in claims]
    sizes = [profile.memory_bytes for profile in profiles if profile is not None]
    gpu = None if node is None else node.gpu(claims[0].gpu_uuid)
    names = sorted({claim.profile for claim in claims})
    return Facts(
        source="InstaSlice",
        rank=Rank.SLICE_CLAIM,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        product=gpu.gpu_name if gpu is not None and gpu.gpu_name else None,
        devices=tuple(_slice_device(claim, inventory) for claim in claims),
        count=len(claims),
        memory_bytes=sum(sizes) // len(sizes) if len(sizes) == len(claims) else None,
        partition=joined([_slice_partition(claim, node) for claim in claims]) if claims[0].sound else None,
        state=state,
        reason=reason,
        node=worst.node or None,
        attributes={"inference.redhat.com/profiles": ",".join(names)} if len(names) > 1 else {},
    )


def _slice_partition(claim: SliceClaim, node: SliceNode | None) -> Partition:
    profile = parse_mig_profile(claim.profile)
    if profile is None:
        return UNKNOWN_SLICE
    gpu = None if node is None else node.gpu(claim.gpu_uuid)
    layout = None if gpu is None else mig_gpu(gpu.gpu_name, gpu.memory_bytes)
    return partition_of(profile, layout, start=claim.start, parent_id=claim.gpu_uuid)


def _slice_device(claim: SliceClaim, inventory: Inventory) -> Device:
    """Return the slice; its id is its UUID if the ConfigMap is known."""
    place = "" if claim.start is None else f"/{claim.start}"
    known = inventory.mig_uuids.get(claim.config_map)
    name = f"{claim.gpu_uuid}/{claim.profile}{place}" if claim.gpu_uuid else claim.source
    return Device(id=name if known is None else min(known.uuids), node=claim.node, parent_id=claim.gpu_uuid)


def _of_node(node: SliceNode, claims: Sequence[SliceClaim], on_not_ready: DrainOrIgnore) -> Facts:
    """Return the facts of the node, which apply to all its slices."""
    layouts = [mig_gpu(gpu.gpu_name, gpu.memory_bytes) for gpu in node.gpus]
    total = sum(_USUAL_SLOTS if layout is None else layout.memory_slots for layout in layouts)
    taken = sum(claim.size or 0 for claim in claims if claim.occupies)
    attributes: dict[str, AttributeValue] = {}
    if total:
        attributes = {SLOTS_TOTAL: total, SLOTS_FREE: max(total - taken, 0)}
    drains = node.ready is False and on_not_ready == "Drain"
    return Facts(
        source=node.source,
        rank=Rank.SLICE_CLAIM,
        state=Routability.DRAINING if drains else None,
        reason=f"node {node.name} is not ready: {node.reason or 'no reason given'}" if drains else None,
        attributes=attributes,
    )
