# SPDX-License-Identifier: Apache-2.0
"""Facts from ResourceClaims: the devices of an endpoint, their properties, health and taints."""

import re
from collections.abc import Iterator, Mapping, Sequence

from epp.framework.accelerators.sites import CLIQUE
from epp.framework.accelerators.tag import (
    DRIVER,
    AcceleratorKind,
    AttributeValue,
    Device,
    Partition,
    Routability,
    Sharing,
)
from epp.hardware.catalogue import Catalogue, Product, same_size
from epp.hardware.dra_devices import Allocated, Share, consumed_share, device_memory, health_of, share_of
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.merge import DrainOrIgnore
from epp.hardware.inventory import Inventory
from epp.hardware.labels.reading import PCI_DEVICES
from epp.hardware.mig import UNKNOWN_SLICE, equal_share, joined, mig_gpu, partition_of
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
_ALL = Share(1.0, 1.0)


def dra_facts(context: EndpointContext, devices: Sequence[Allocated]) -> Iterator[Facts]:
    """Yield facts of rank ALLOCATION; none for an endpoint without allocated devices."""
    if not devices:
        return
    inventory, catalogue = context.inventory, context.catalogue
    health = {} if context.pod is None else health_of(context.pod)
    described = tuple(_device(each, health, context) for each in devices)
    first = devices[0]
    vendor, kind = _VENDORS.get(first.driver, (None, None))
    text = first.text("productName") or first.text("model")
    products = [product_of(each, catalogue) for each in devices]
    product = products[0]
    shares = [share_of(each, of) for each, of in zip(devices, products, strict=True)]
    memories = [
        memory // _sharers(each, inventory)
        for each, of, share in zip(devices, products, shares, strict=True)
        if (memory := _memory(each, of, share)) is not None
    ]
    architecture = first.text("architecture").lower().replace(" ", "-")
    parts = [
        _partition(each, inventory, share)
        for each, share in zip(devices, shares, strict=True)
        if each.device is not None
    ]
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
        compute_capability=_capability(first.attribute("cudaComputeCapability")),
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


def product_of(each: Allocated, catalogue: Catalogue) -> Product | None:
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
    if each.is_slice and (share is None or share == _ALL):
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


def _capability(value: AttributeValue | None) -> tuple[int, ...] | None:
    """Return (9, 0) for the version 9.0.0."""
    return value[:2] if isinstance(value, tuple) else None


def _common_attributes(devices: Sequence[Allocated]) -> dict[str, AttributeValue]:
    """Return the common attributes of all devices, and STALE if it applies."""
    first, *others = (each.attributes for each in devices)
    found = {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
    if len({each.driver for each in devices}) == 1:
        found[DRIVER] = devices[0].driver
    if any(each.pool is not None and each.pool.stale for each in devices):
        found[STALE] = True
    return found
