# SPDX-License-Identifier: Apache-2.0
"""Devices allocated to an endpoint by ResourceClaims, with their description from ResourceSlices."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epp.framework.accelerators.tag import CAPACITY, AttributeValue
from epp.hardware.dra.pools import DevicePool, PoolName
from epp.hardware.facts.surroundings import Surroundings
from epp.hardware.inventory import Inventory
from epp.hardware.mig import MigProfile, parse_mig_profile
from epp.hardware.validation import mig_fault
from epp.kube.objects.core import Pod
from epp.kube.objects.dra import AllocatedDevice, ResourceClaim, SliceDevice

_ACCELERATOR_DRIVER = re.compile(r"(^|[.-])([a-z]*gpu|tpu|npu|xpu|gaudi|neuron|accelerators?)s?([.-]|$)")
_WHOLE_RESOURCES = {
    "gpu.nvidia.com": frozenset({"nvidia.com/gpu"}),
    "gpu.amd.com": frozenset({"amd.com/gpu"}),
    "gpu.intel.com": frozenset({"gpu.intel.com/i915", "gpu.intel.com/xe"}),
    "tpu.google.com": frozenset({"google.com/tpu"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A device allocated to the endpoint."""

    claim: ResourceClaim
    result: AllocatedDevice
    pool: DevicePool | None
    device: SliceDevice | None
    """Its description; None without a ResourceSlice."""

    @property
    def driver(self) -> str:
        """Name of the driver."""
        return self.result.driver

    def attribute(self, name: str) -> AttributeValue | None:
        """Return an attribute in the domain of the driver."""
        return None if self.device is None else self.device.attributes.get(f"{self.driver}/{name}")

    def text(self, name: str) -> str:
        """Return an attribute that is a text; empty if there is none."""
        value = self.attribute(name)
        return value if isinstance(value, str) else ""

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG device."""
        return self.text("type") == "mig"

    @property
    def profile(self) -> MigProfile | None:
        """Profile of a MIG device; None if its GPU cannot have it."""
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
    def memory(self) -> int | None:
        """Bytes of the device, or of the part that is allocated to the claim."""
        consumed = self.result.consumed_capacity
        amount = consumed.get("memory") or consumed.get(f"{self.driver}/memory") or self.whole_memory
        return None if not amount else int(amount)

    @property
    def whole_memory(self) -> int | None:
        """Bytes of the device."""
        amount = None if self.device is None else self.device.capacity.get(f"{self.driver}/memory")
        return None if amount is None else int(amount)


def claims_of(around: Surroundings, inventory: Inventory) -> tuple[ResourceClaim, ...]:
    """Return the claims of the pod: in its status or spec, for its extended resources, or reserved for it."""
    names = () if around.pod is None else around.pod.claims
    named = [inventory.resource_claims[name] for name in names if name in inventory.resource_claims]
    reserved = inventory.all_by_pod(inventory.resource_claims_by_pod, around.pod_keys)
    return tuple({claim.id: claim for claim in (*named, *reserved)}.values())


def allocated_devices(around: Surroundings, inventory: Inventory) -> tuple[Allocated, ...]:
    """Return the accelerators of the endpoint, each once, without other devices and without admin access."""
    found: dict[str, Allocated] = {}
    for claim in claims_of(around, inventory):
        for result in claim.results:
            if result.admin_access or result.id in found:
                continue
            pool = inventory.pools.get(PoolName(result.driver, result.pool))
            device = None if pool is None else pool.devices.get(result.device)
            each = Allocated(claim=claim, result=result, pool=pool, device=device)
            if _ACCELERATOR_DRIVER.search(result.driver) or each.attribute("productName") is not None:
                found[result.id] = each
    return tuple(found.values())


def resource_keys(devices: Sequence[Allocated], inventory: Inventory) -> frozenset[str]:
    """Return the keys of the extended resources with which pods request such devices."""
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


def health_of(pod: Pod) -> Mapping[str, str]:
    """Return the health of devices according to the kubelet, by `driver/pool/device`."""
    return {
        resource.resource_id: resource.health
        for container in pod.status.container_statuses
        for status in container.allocated_resources_status
        for resource in status.resources
    }
