# SPDX-License-Identifier: Apache-2.0
"""ResourceSlice, ResourceClaim, DeviceClass and DeviceTaintRule of resource.k8s.io, all versions in one form."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.framework.accelerators.tag import AttributeValue
from epp.kube.objects.base import ClusterObject, Metadata, Object, Part, convert
from epp.kube.objects.core import PodReference, Taint
from epp.kube.objects.limits import Amount, Capacity

_NUMBERS = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})*")


class Counter(Part, frozen=True, kw_only=True):
    """Amount of a counter or of a capacity."""

    value: Amount


class CounterSet(Part, frozen=True, kw_only=True):
    """Counters that devices on the same hardware share."""

    name: str
    counters: Mapping[str, Counter] = msgspec.field(default_factory=dict)


class CounterUse(Part, frozen=True, kw_only=True):
    """Part of a counter set that a device consumes."""

    counter_set: str
    counters: Mapping[str, Counter] = msgspec.field(default_factory=dict)


class SliceDevice(Part, frozen=True, kw_only=True):
    """A device in a ResourceSlice; names of attributes and capacities include their domain."""

    name: str
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, Capacity]
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    node_name: str = ""


class ResourceSlice(ClusterObject, frozen=True, kw_only=True):
    """Part of the devices, or of the counter sets, of a pool."""

    driver: str
    pool: str
    generation: int
    slices: int
    """Number of slices in the complete pool of this generation."""
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = msgspec.field(default=(), name="spec.devices")
    shared_counters: tuple[CounterSet, ...] = msgspec.field(default=(), name="spec.sharedCounters")


class AllocatedDevice(Part, frozen=True, kw_only=True):
    """A device allocated to a claim."""

    driver: str
    pool: str
    device: str
    request: str = ""
    """`request`, or `request/sub` for one of several alternatives."""
    admin_access: bool = False
    consumed_capacity: Mapping[str, Capacity] = msgspec.field(default_factory=dict)

    @property
    def id(self) -> str:
        """`driver/pool/device`."""
        return f"{self.driver}/{self.pool}/{self.device}"


class ResourceClaim(Object, frozen=True, kw_only=True):
    """A claim and the devices allocated to it."""

    results: tuple[AllocatedDevice, ...] = msgspec.field(default=(), name="status.allocation.devices.results")
    reserved_for: tuple[PodReference, ...] = ()
    device_classes: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Name of the DeviceClass by name of the request, alternatives as `request/sub`."""
    sharing: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Sharing strategy in the driver's parameters, by name of the request, `*` for all: TimeSlicing, MPS."""


class DeviceClass(ClusterObject, frozen=True, kw_only=True):
    """A class of devices."""

    extended_resource_name: str = ""


class DeviceTaintRule(ClusterObject, frozen=True, kw_only=True):
    """A taint of all matching devices; an empty field matches all."""

    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""


class _Pool(Part, frozen=True, kw_only=True):
    name: str
    generation: int = 1
    resource_slice_count: int = 1


class _SliceSpec(Part, frozen=True, kw_only=True):
    driver: str
    pool: _Pool
    node_name: str = ""
    devices: tuple[dict[str, Any], ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class _Slice(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _SliceSpec


class _Device(Part, frozen=True, kw_only=True):
    name: str
    attributes: Mapping[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Counter] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    node_name: str = ""


def read_resource_slice(document: object) -> ResourceSlice:
    """Return the slice; raises ValueError."""
    found = convert(document, _Slice)
    spec = found.spec
    return ResourceSlice(
        metadata=found.metadata,
        driver=spec.driver,
        pool=spec.pool.name,
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        node_name=spec.node_name,
        devices=tuple(_device(each, spec.driver, f"spec.devices[{index}]") for index, each in enumerate(spec.devices)),
        shared_counters=spec.shared_counters,
    )


def qualified(name: str, driver: str) -> str:
    """Return the name with its domain, by default that of the driver."""
    return name if "/" in name else f"{driver}/{name}"


def _device(data: Mapping[str, Any], driver: str, place: str) -> SliceDevice:
    basic = data.get("basic")  # v1beta1 has the fields of a device there
    device = convert({**data, **basic} if isinstance(basic, Mapping) else data, _Device, place)
    return SliceDevice(
        name=device.name,
        attributes={
            qualified(name, driver): value
            for name, box in device.attributes.items()
            if (value := _attribute(box, f"{place}.attributes[{name}]")) is not None
        },
        capacity={qualified(name, driver): amount.value for name, amount in device.capacity.items()},
        consumes_counters=device.consumes_counters,
        taints=device.taints,
        node_name=device.node_name,
    )


def _attribute(box: Mapping[str, Any], place: str) -> AttributeValue | None:
    """Return the one value in the box; None for an unknown type."""
    for kind, cls in (("int", int), ("bool", bool), ("string", str)):
        if kind in box:
            return convert(box[kind], cls, f"{place}.{kind}")  # type: ignore[return-value]  # one of the three
    if "version" in box:
        return version_of(convert(box["version"], str, f"{place}.version"))
    if "ints" in box:
        return convert(box["ints"], tuple[int, ...], f"{place}.ints")
    for kind in ("strings", "versions", "bools"):
        if kind in box:
            return ",".join(map(str, convert(box[kind], tuple[Any, ...], f"{place}.{kind}")))
    return None


def version_of(text: str) -> tuple[int, ...] | str:
    """Return (9, 0, 0) for 9.0.0; the text itself for a version that does not only consist of numbers."""
    return tuple(map(int, text.split("."))) if _NUMBERS.fullmatch(text) else text


class _SubRequest(Part, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str = ""


class _Request(_SubRequest, frozen=True, kw_only=True):
    exactly: _SubRequest | None = None
    first_available: tuple[_SubRequest, ...] = ()


class _ClaimDevices(Part, frozen=True, kw_only=True):
    requests: tuple[_Request, ...] = ()


class _ClaimSpec(Part, frozen=True, kw_only=True):
    devices: _ClaimDevices = _ClaimDevices()


class _Sharing(Part, frozen=True, kw_only=True):
    strategy: str = ""


class _OpaqueParameters(Part, frozen=True, kw_only=True):
    sharing: _Sharing = _Sharing()


class _Opaque(Part, frozen=True, kw_only=True):
    parameters: Any = None


class _Config(Part, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    opaque: _Opaque = _Opaque()


class _Allocated(Part, frozen=True, kw_only=True):
    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[_Config, ...] = ()


class _Allocation(Part, frozen=True, kw_only=True):
    devices: _Allocated = _Allocated()


class _Consumer(Part, frozen=True, kw_only=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(Part, frozen=True, kw_only=True):
    allocation: _Allocation = _Allocation()
    reserved_for: tuple[_Consumer, ...] = ()


class _Claim(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


def read_resource_claim(document: object) -> ResourceClaim:
    """Return the claim; raises ValueError."""
    found = convert(document, _Claim)
    classes: dict[str, str] = {}
    for request in found.spec.devices.requests:
        name = request.device_class_name or ("" if request.exactly is None else request.exactly.device_class_name)
        if name:
            classes[request.name] = name
        classes.update({f"{request.name}/{sub.name}": sub.device_class_name for sub in request.first_available})
    allocated = found.status.allocation.devices
    sharing: dict[str, str] = {}
    for config in allocated.config:
        strategy = _sharing_strategy(config.opaque.parameters)
        if strategy:
            sharing.update(dict.fromkeys(config.requests or ("*",), strategy))
    return ResourceClaim(
        metadata=found.metadata,
        results=allocated.results,
        reserved_for=tuple(
            PodReference(namespace=found.metadata.namespace, name=user.name, uid=user.uid)
            for user in found.status.reserved_for
            if user.resource == "pods" and not user.api_group
        ),
        device_classes=classes,
        sharing=sharing,
    )


def _sharing_strategy(parameters: object) -> str:
    """Return the sharing strategy in the parameters of a driver; empty if they have another form."""
    try:
        return convert(parameters, _OpaqueParameters).sharing.strategy
    except ValueError:
        return ""


class _ClassSpec(Part, frozen=True, kw_only=True):
    extended_resource_name: str = ""


class _Class(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _ClassSpec = _ClassSpec()


def read_device_class(document: object) -> DeviceClass:
    """Return the class; raises ValueError."""
    found = convert(document, _Class)
    return DeviceClass(metadata=found.metadata, extended_resource_name=found.spec.extended_resource_name)


class _RuleSelector(Part, frozen=True, kw_only=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    device_class_name: str = ""
    selectors: tuple[Any, ...] = ()


class _RuleSpec(Part, frozen=True, kw_only=True):
    taint: Taint
    device_selector: _RuleSelector = _RuleSelector()


class _Rule(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _RuleSpec


def read_device_taint_rule(document: object) -> DeviceTaintRule:
    """Return the rule; raises ValueError, also for a selector by class or expression, as v1alpha3 allowed."""
    found = convert(document, _Rule)
    selector = found.spec.device_selector
    for name, value in (("deviceClassName", selector.device_class_name), ("selectors", list(selector.selectors))):
        if value:
            raise ValueError(f"spec.deviceSelector.{name} is {value!r:.60}: select by driver, pool and device instead")
    return DeviceTaintRule(
        metadata=found.metadata,
        taint=found.spec.taint,
        driver=selector.driver,
        pool=selector.pool,
        device=selector.device,
    )
