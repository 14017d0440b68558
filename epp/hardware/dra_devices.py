# SPDX-License-Identifier: Apache-2.0
"""Devices allocated to an endpoint by ResourceClaims, and the share that a partition has of its device."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import msgspec

from epp.framework.accelerators.tag import CAPACITY, AttributeValue
from epp.hardware.catalogue import Product, devices_of_mode
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.inventory import Inventory
from epp.hardware.mig import MigProfile, parse_mig_profile
from epp.hardware.validation import mig_fault
from epp.kube.objects.dra import AllocatedDevice, DevicePool, PoolName, ResourceClaim, SliceDevice

_ACCELERATOR_DRIVER = re.compile(r"(^|[.-])([a-z]*gpu|tpu|npu|xpu|gaudi|neuron|accelerators?)s?([.-]|$)")
_WHOLE_RESOURCES = {
    "gpu.nvidia.com": frozenset({"nvidia.com/gpu"}),
    "gpu.amd.com": frozenset({"amd.com/gpu"}),
    "gpu.intel.com": frozenset({"gpu.intel.com/i915", "gpu.intel.com/xe"}),
    "tpu.google.com": frozenset({"google.com/tpu"}),
}
_COMPUTE = ("computeUnits", "multiprocessors", "millicores", "simdUnits", "tiles", "cores", "aiCores")
"""Names of compute capacities of drivers, the most specific first."""
_PARENTS = ("parentUUID", "parentUID")
_PARTITION_TYPES = ("partition", "mig", "vf", "vgpu")
_MILLICORES = 1000
_SIMDS_OF_UNIT = 4
_PARTITION_BELOW = 0.75
"""A device with less than this share of its product is a partition, even if its driver does not say so."""
_WHOLE_FROM = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    claim: ResourceClaim
    result: AllocatedDevice
    pool: DevicePool | None
    device: SliceDevice | None
    """Description of the device; None without a ResourceSlice."""

    @property
    def driver(self) -> str:
        return self.result.driver

    def attribute(self, name: str) -> AttributeValue | None:
        """Return an attribute in the domain of the driver."""
        return None if self.device is None else self.device.attributes.get(f"{self.driver}/{name}")

    def text(self, name: str) -> str:
        value = self.attribute(name)
        return value if isinstance(value, str) else ""

    @property
    def is_slice(self) -> bool:
        return self.text("type") == "mig"

    @property
    def profile(self) -> MigProfile | None:
        """Profile of a MIG device; None if it is impossible for its GPU."""
        if self.device is None or not self.is_slice or mig_fault(self.device, self.driver):
            return None
        return parse_mig_profile(self.text("profile"))

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """All attributes with their domains, and the capacities in base units."""
        if self.device is None:
            return {}
        capacity = {f"{CAPACITY}{name}": int(amount) for name, amount in self.device.capacity.items()}
        return {**self.device.attributes, **capacity}

    @property
    def capacity(self) -> Mapping[str, Fraction]:
        """Capacities by name, like `consumed` without the domain of the driver."""
        return {} if self.device is None else _bare(self.device.capacity, self.driver)

    @property
    def consumed(self) -> Mapping[str, Fraction]:
        """Capacities allocated to the claim; empty for the whole device."""
        return _bare(self.result.consumed_capacity, self.driver)

    @property
    def memory(self) -> int | None:
        """Bytes of the device, or of the part allocated to the claim."""
        return int(self.consumed.get("memory") or self.capacity.get("memory") or 0) or None


def _bare(amounts: Mapping[str, Fraction], driver: str) -> Mapping[str, Fraction]:
    return {name.removeprefix(f"{driver}/"): amount for name, amount in amounts.items()}


def claims_of(context: EndpointContext) -> tuple[ResourceClaim, ...]:
    """Return the claims of the pod: in its status or spec, for extended resources, or reserved for it."""
    inventory = context.inventory
    names = () if context.pod is None else context.pod.claims
    named = [inventory.resource_claims[name] for name in names if name in inventory.resource_claims]
    reserved = inventory.all_by_pod(inventory.resource_claims_by_pod, context.pod_keys)
    return tuple({claim.id: claim for claim in (*named, *reserved)}.values())


def allocated_devices(context: EndpointContext) -> tuple[Allocated, ...]:
    """Return the accelerators of the endpoint without duplicates and without devices with admin access.

    Several shares of a device are one device with the sum of their consumed capacities.
    """
    found: dict[str, Allocated] = {}
    for claim in claims_of(context):
        for result in claim.results:
            if result.admin_access:
                continue
            if (known := found.get(result.id)) is not None:
                if known.result.share_id != result.share_id:
                    total = dict(known.result.consumed_capacity)
                    for name, amount in result.consumed_capacity.items():
                        total[name] = total.get(name, Fraction(0)) + amount
                    with_share = msgspec.structs.replace(known.result, consumed_capacity=total)
                    found[result.id] = replace(known, result=with_share)
                continue
            pool = context.inventory.pools.get(PoolName(result.driver, result.pool))
            device = None if pool is None else pool.devices.get(result.device)
            each = Allocated(claim=claim, result=result, pool=pool, device=device)
            if _ACCELERATOR_DRIVER.search(result.driver) or each.attribute("productName") is not None:
                found[result.id] = each
    return tuple(found.values())


def resource_keys(devices: Sequence[Allocated], inventory: Inventory) -> frozenset[str]:
    """Return the keys of extended resources by which pods request such devices."""
    keys = set[str]()
    for each in devices:
        if each.is_slice:
            keys |= set() if each.profile is None else {f"mig/{each.profile.name}"}
            continue
        keys |= _WHOLE_RESOURCES.get(each.driver, frozenset())
        requested = each.claim.device_classes.get(each.result.request, "")
        device_class = inventory.device_classes.get(requested)
        if device_class is not None and device_class.extended_resource_name:
            keys.add(device_class.extended_resource_name)
    return frozenset(keys)


class Share(NamedTuple):
    """Shares of a device, 0..1."""

    compute: float
    memory: float


def share_of(each: Allocated, product: Product | None) -> Share | None:
    """Return the share of a partition in its device; None for a whole device.

    The compute share is the capacity relative to the parent device or the product. Without a capacity it comes from the
    mode, such as `cpx_nps4`, then from consumed shared counters, then from the memory share. The memory share is
    determined in the same way.
    """
    if each.device is None:
        return None
    number = devices_of_mode(each.text("partitionProfile") or each.text("profile"), product)
    mode = 1 / number if number else None
    compute, memory = _compute(each, product), _memory(each, product)
    compute_counter, memory_counter = _counter_share(each, memory=False), _counter_share(each, memory=True)
    declared = _is_part(each) or (number or 1) > 1
    if not declared and not any(share is not None and share < _PARTITION_BELOW for share in (compute, compute_counter)):
        return None
    of_compute = next((share for share in (compute, mode, compute_counter, memory, memory_counter) if share), 1.0)
    of_memory = next((share for share in (memory, memory_counter, mode) if share), of_compute)
    # in mode NPS1, each partition reports the memory of the whole device
    return Share(of_compute, of_compute if of_memory > _WHOLE_FROM else of_memory)


def consumed_share(each: Allocated) -> Share | None:
    """Return the share of a device that a claim consumes; None for a whole device."""
    amounts, capacity = each.consumed, each.capacity
    consumed, whole = each.memory, int(capacity.get("memory", 0))
    memory = consumed / whole if consumed and 0 < consumed < whole else None
    ratios = (_ratio(amounts.get(name), capacity.get(name)) for name in _COMPUTE)
    compute = next((ratio for ratio in ratios if ratio is not None), None)
    if memory is None and compute in {None, 1.0}:
        return None
    return Share(compute or memory or 1.0, memory or compute or 1.0)


def device_memory(each: Allocated) -> int | None:
    """Return the bytes of the whole device; None for a partition of an unknown device."""
    whole = _parent(each).get("memory") or (None if _is_part(each) else each.capacity.get("memory"))
    return None if whole is None else int(whole)


def _is_part(each: Allocated) -> bool:
    kind = each.text("type").lower()
    return any(word in kind for word in _PARTITION_TYPES) or any(each.text(name) for name in _PARENTS)


def _parent(each: Allocated) -> Mapping[str, Fraction]:
    ids = {each.text(name) for name in _PARENTS} - {""}
    for device in each.pool.devices.values() if each.pool is not None and ids else ():
        if ids & {device.attributes.get(f"{each.driver}/{name}") for name in ("uuid", "uid")} or device.name in ids:
            return _bare(device.capacity, each.driver)
    return {}


def _compute(each: Allocated, product: Product | None) -> float | None:
    own, parent = each.capacity, _parent(each)
    units = product.compute_units if product is not None else None
    wholes: Mapping[str, int | None] = {
        "computeUnits": units,
        "multiprocessors": units,
        "simdUnits": units * _SIMDS_OF_UNIT if units else None,
        "millicores": _MILLICORES,
        "tiles": product.parts if product is not None else None,
    }
    ratios = (_ratio(own.get(name), parent.get(name) or wholes.get(name)) for name in _COMPUTE)
    return next((ratio for ratio in ratios if ratio is not None), None)


def _memory(each: Allocated, product: Product | None) -> float | None:
    whole = product.memory_bytes if product is not None else None
    return _ratio(each.capacity.get("memory"), _parent(each).get("memory") or whole)


def _ratio(amount: Fraction | None, whole: Fraction | int | None) -> float | None:
    """Return the ratio, at most 1; None if a value is unknown or not positive."""
    if amount is None or whole is None or amount <= 0 or whole <= 0:
        return None
    return float(min(amount / whole, Fraction(1)))


def _counter_share(each: Allocated, *, memory: bool) -> float | None:
    """Return the largest consumed share of the shared counters for memory, or of all others."""
    if each.device is None or each.pool is None:
        return None
    whole = each.pool.counters
    shares = (
        _ratio(amount.value, whole.get((use.counter_set, counter)))
        for use in each.device.consumes_counters
        for counter, amount in use.counters.items()
        if ("memory" in counter.lower()) is memory
    )
    return max((share for share in shares if share is not None), default=None)
