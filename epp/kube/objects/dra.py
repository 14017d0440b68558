# SPDX-License-Identifier: Apache-2.0
"""ResourceSlice, ResourceClaim, DeviceClass and DeviceTaintRule of resource.k8s.io, and pools of devices."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from epp.framework.accelerators.tag import AttributeValue
from epp.kube.objects.base import ClusterObject, Object, Part, convert, with_fields
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


class _AnySlice(ClusterObject, frozen=True, kw_only=True):
    """A ResourceSlice without its devices."""

    driver: str = msgspec.field(name="spec.driver")
    pool: str = msgspec.field(name="spec.pool.name")
    generation: int = msgspec.field(default=1, name="spec.pool.generation")
    slices: int = msgspec.field(default=1, name="spec.pool.resourceSliceCount")
    """Number of slices in the complete pool of this generation."""
    node_name: str = msgspec.field(default="", name="spec.nodeName")
    shared_counters: tuple[CounterSet, ...] = msgspec.field(default=(), name="spec.sharedCounters")


class ResourceSlice(_AnySlice, frozen=True, kw_only=True):
    """Part of the devices, or of the counter sets, of a pool."""

    devices: tuple[SliceDevice, ...] = msgspec.field(default=(), name="spec.devices")


class Toleration(Part, frozen=True, kw_only=True):
    """Taints that a claim tolerates; an empty key or effect matches all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: Any = None
    """Seconds after which the pods are evicted; None for never."""

    def holds(self, taint: Taint) -> bool:
        """Return whether it tolerates the taint."""
        is_equal = self.operator == "Equal" and self.key != "" and self.value == taint.value
        fits = self.key in {"", taint.key} and self.effect in {"", taint.effect}
        return fits and (self.operator == "Exists" or is_equal)


class AllocatedDevice(Part, frozen=True, kw_only=True):
    driver: str
    pool: str
    device: str
    request: str = ""
    """`request`, or `request/sub` for an alternative."""
    admin_access: bool = False
    consumed_capacity: Mapping[str, Capacity] = msgspec.field(default_factory=dict)
    share_id: str = msgspec.field(default="", name="shareID")
    """Id of the share, for a device that several claims share."""
    tolerations: tuple[Toleration, ...] = ()

    @property
    def id(self) -> str:
        """`driver/pool/device`."""
        return f"{self.driver}/{self.pool}/{self.device}"


class SubRequest(Part, frozen=True, kw_only=True):
    """An alternative of a request."""

    name: str = ""
    device_class_name: str = ""


class DeviceRequest(SubRequest, frozen=True, kw_only=True):
    """A request for devices; before v1 its class is in the request itself."""

    exactly: SubRequest = SubRequest()
    first_available: tuple[SubRequest, ...] = ()


class Opaque(Part, frozen=True, kw_only=True):
    """Parameters of a driver."""

    parameters: Any = None


class DeviceConfig(Part, frozen=True, kw_only=True):
    """Configuration of the devices of some requests; of all requests if it names none."""

    requests: tuple[str, ...] = ()
    opaque: Opaque = Opaque()


class Consumer(Part, frozen=True, kw_only=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaim(Object, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = msgspec.field(default=(), name="spec.devices.requests")
    results: tuple[AllocatedDevice, ...] = msgspec.field(default=(), name="status.allocation.devices.results")
    config: tuple[DeviceConfig, ...] = msgspec.field(default=(), name="status.allocation.devices.config")
    consumers: tuple[Consumer, ...] = msgspec.field(default=(), name="status.reservedFor")

    @property
    def reserved_for(self) -> tuple[PodReference, ...]:
        return tuple(
            PodReference(namespace=self.metadata.namespace, name=user.name, uid=user.uid)
            for user in self.consumers
            if user.resource == "pods" and not user.api_group
        )

    @property
    def device_classes(self) -> Mapping[str, str]:
        """Name of the DeviceClass by name of the request, alternatives as `request/sub`."""
        found: dict[str, str] = {}
        for request in self.requests:
            if name := request.device_class_name or request.exactly.device_class_name:
                found[request.name] = name
            found.update({f"{request.name}/{sub.name}": sub.device_class_name for sub in request.first_available})
        return found

    @property
    def sharing(self) -> Mapping[str, str]:
        """Sharing strategy in the driver's parameters, by name of the request, `*` for all: TimeSlicing, MPS."""
        found: dict[str, str] = {}
        for config in self.config:
            if strategy := _sharing_strategy(config.opaque.parameters):
                found.update(dict.fromkeys(config.requests or ("*",), strategy))
        return found


class DeviceClass(ClusterObject, frozen=True, kw_only=True):
    extended_resource_name: str = msgspec.field(default="", name="spec.extendedResourceName")


class DeviceTaintRule(ClusterObject, frozen=True, kw_only=True):
    """A taint of all matching devices; an empty field matches all. Without a selector, none match."""

    taint: Taint = msgspec.field(name="spec.taint")
    selector: Mapping[str, Any] | None = msgspec.field(default=None, name="spec.deviceSelector")
    driver: str = msgspec.field(default="", name="spec.deviceSelector.driver")
    pool: str = msgspec.field(default="", name="spec.deviceSelector.pool")
    device: str = msgspec.field(default="", name="spec.deviceSelector.device")
    device_class_name: str = msgspec.field(default="", name="spec.deviceSelector.deviceClassName")
    selectors: tuple[Any, ...] = msgspec.field(default=(), name="spec.deviceSelector.selectors")


class _RawSlice(_AnySlice, frozen=True, kw_only=True):
    devices: tuple[dict[str, Any], ...] = msgspec.field(default=(), name="spec.devices")


class _Device(Part, frozen=True, kw_only=True):
    name: str
    attributes: Mapping[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Counter] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    node_name: str = ""


def read_resource_slice(document: object) -> ResourceSlice:
    raw = convert(document, _RawSlice)
    devices = (_device(each, raw.driver, f"spec.devices[{index}]") for index, each in enumerate(raw.devices))
    return with_fields(ResourceSlice, raw, devices=tuple(devices))


def qualified(name: str, driver: str) -> str:
    """Return the name with its domain; the default domain is that of the driver."""
    return name if "/" in name else f"{driver}/{name}"


def _device(data: Mapping[str, Any], driver: str, place: str) -> SliceDevice:
    basic = data.get("basic")  # location of the fields in v1beta1
    device = convert({**data, **basic} if isinstance(basic, Mapping) else data, _Device, place)
    return with_fields(
        SliceDevice,
        device,
        attributes={
            qualified(name, driver): value
            for name, box in device.attributes.items()
            if (value := _attribute(box, f"{place}.attributes[{name}]")) is not None
        },
        capacity={qualified(name, driver): amount.value for name, amount in device.capacity.items()},
    )


def _attribute(box: Mapping[str, Any], place: str) -> AttributeValue | None:
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
    """Return (9, 0, 0) for 9.0.0; the text itself if it is not a dotted list of numbers."""
    return tuple(map(int, text.split("."))) if _NUMBERS.fullmatch(text) else text


class _Sharing(Part, frozen=True, kw_only=True):
    strategy: str = msgspec.field(default="", name="sharing.strategy")


def _sharing_strategy(parameters: object) -> str:
    try:
        return convert(parameters, _Sharing).strategy
    except ValueError:
        return ""


def read_device_taint_rule(document: object) -> DeviceTaintRule:
    """Return the rule; raises ValueError, also for a selector by class or expression, as v1alpha3 allowed."""
    found = convert(document, DeviceTaintRule)
    for name, value in (("deviceClassName", found.device_class_name), ("selectors", list(found.selectors))):
        if value:
            raise ValueError(f"spec.deviceSelector.{name} is {value!r:.60}: select by driver, pool and device instead")
    return found


class PoolName(NamedTuple):
    driver: str
    pool: str


class DevicePool(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one driver, usually on one node."""

    name: PoolName
    generation: int
    devices: Mapping[str, SliceDevice]
    """Keyed by name."""
    nodes: Mapping[str, str]
    """Node by device; empty for a device that is not on a single node."""
    counters: Mapping[tuple[str, str], Fraction]
    """Shared amounts, by counter set and counter."""
    complete: bool = True
    stale: bool = False
    """Whether a newer, incomplete generation exists."""


def device_pools(
    slices: Iterable[ResourceSlice], previous: Mapping[PoolName, DevicePool], wanted: frozenset[PoolName]
) -> dict[PoolName, DevicePool]:
    """Return the pools; pools of `previous` replace incomplete pools, and removed pools that are in `wanted`.

    `wanted` are the pools with allocated devices.
    """
    by_pool: defaultdict[PoolName, list[ResourceSlice]] = defaultdict(list)
    for each in slices:
        by_pool[PoolName(each.driver, each.pool)].append(each)
    pools = {name: _pool(name, members, previous.get(name)) for name, members in by_pool.items()}
    for name in wanted - pools.keys():
        if name in previous:
            pools[name] = msgspec.structs.replace(previous[name], stale=True)
    return pools


def _pool(name: PoolName, slices: list[ResourceSlice], before: DevicePool | None) -> DevicePool:
    generations = sorted({each.generation for each in slices}, reverse=True)
    candidates = [_assembled(name, [each for each in slices if each.generation == number]) for number in generations]
    newest = candidates[0]
    if newest.complete:
        return newest
    if before is not None and before.complete and before.generation <= newest.generation:
        candidates.append(before)
    complete = max((each for each in candidates if each.complete), key=lambda each: each.generation, default=newest)
    return msgspec.structs.replace(complete, stale=True)


def _assembled(name: PoolName, slices: list[ResourceSlice]) -> DevicePool:
    devices = {device.name: device for each in slices for device in each.devices}
    return DevicePool(
        name=name,
        generation=slices[0].generation,
        devices=devices,
        nodes={device.name: device.node_name or each.node_name for each in slices for device in each.devices},
        counters={
            (shared.name, counter): amount.value
            for each in slices
            for shared in each.shared_counters
            for counter, amount in shared.counters.items()
        },
        complete=len(slices) == slices[0].slices,
    )


def effects_of(result: AllocatedDevice, device: SliceDevice | None, rules: Iterable[DeviceTaintRule]) -> frozenset[str]:
    """Return the effects on a claim of the taints of a device and of rules: NoSchedule, NoExecute.

    A tolerated taint has no effect. A taint that is tolerated for a limited time has the effect NoSchedule, because the
    pods serve until they are evicted.
    """
    found = set()
    for taint in _taints_of(result, device, rules):
        tolerations = [each for each in result.tolerations if each.holds(taint)]
        if taint.effect not in {"NoSchedule", "NoExecute"} or any(
            each.toleration_seconds is None or taint.effect == "NoSchedule" for each in tolerations
        ):
            continue
        found.add("NoSchedule" if tolerations else taint.effect)
    return frozenset(found)


def _taints_of(
    result: AllocatedDevice, device: SliceDevice | None, rules: Iterable[DeviceTaintRule]
) -> Iterator[Taint]:
    if device is not None:
        yield from device.taints
    for rule in rules:
        wanted = ((rule.driver, result.driver), (rule.pool, result.pool), (rule.device, result.device))
        if rule.selector is not None and all(given in {"", actual} for given, actual in wanted):
            yield rule.taint
