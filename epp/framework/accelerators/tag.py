# SPDX-License-Identifier: Apache-2.0
"""Tag of an endpoint: all known facts about its accelerators.

Performance and bandwidth are those of one whole device without sparsity; the share of a slice or a shared device is in
`Partition`. None, an empty string and an empty collection mean unknown.
"""

from array import array
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from math import isfinite
from struct import Struct
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
from msgspec import Meta

from epp.framework.quantities import canonical_mig_name, parse_memory

_MOST_DEVICES = 65_536
_MOST_DOLLARS = 10_000
_MOST_MEMORY = 2**46
_MOST_CHARACTERS = 64
CLIQUE, COMPUTE_DOMAIN = "nvidia.com/gpu.clique", "resource.nvidia.com/computeDomain"
"""NVLink clique and compute domain of the endpoint's node: endpoints that share one have NVLink between their GPUs."""
ROW = ("device", "node", "numa", "root", "clique", "domain")
"""Places of one device."""

_LINK = Struct("=qqdd")

AttributeValue: TypeAlias = str | int | float | bool | tuple[int, ...]
SpotPreference: TypeAlias = Literal["auto", "always", "never"]
"""Use of the spot price: on spot nodes, whenever it is known, or never."""
CostBasis: TypeAlias = Literal["memory", "compute"]
"""Share of a slice that determines its share of the price."""
Precision: TypeAlias = Literal["fp32", "fp16", "fp8", "int8", "int4"]
"""Precisions of known TFLOPS."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class AcceleratorKind(StrEnum):
    """Kind of device."""

    GPU = "gpu"
    TPU = "tpu"
    XPU = "xpu"
    NPU = "npu"
    CPU = "cpu"
    """No accelerator: a router, a gateway, a tokenizer, or a model server on CPUs."""
    UNKNOWN = "unknown"


class Sharing(StrEnum):
    """Division of a device among endpoints."""

    NONE = "none"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
    AMD = "amd"
    CORES = "cores"
    """Cores or tiles of a device; each is allocated separately."""
    VGPU = "vgpu"


class Routability(StrEnum):
    """State of the devices of an endpoint."""

    ROUTABLE = "routable"
    DRAINING = "draining"
    """Requests in flight may complete; no new ones are sent."""
    BLOCKED = "blocked"
    UNKNOWN = "unknown"
    """No source has a state; treated as routable."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a device, or a whole device, of an endpoint."""

    kind: Sharing = Sharing.NONE
    profile: str = ""
    """Canonical name of a MIG profile, `3g.20gb` or `1g.5gb+me`, or the name of another vendor's partition."""
    compute_slices: int = 0
    """Number of compute slices for MIG; most devices have 7."""
    memory_slots: int = 0
    """Number of memory slots for MIG; most devices have 8."""
    compute_fraction: float = 1.0
    """Share of the device's TFLOPS."""
    memory_fraction: float = 1.0
    """Share of the device's memory and bandwidth."""
    start: int | None = None
    """First memory slot, for MIG."""
    parent_id: str = ""
    """UUID of the divided device."""
    media_extensions: bool = False
    """Whether the profile is a `+me` one."""
    sharers: int = 1
    """Number of endpoints that share the device, for MPS and time slicing; fractions are 1 / sharers."""


class DeviceLink(msgspec.Struct, frozen=True, kw_only=True):
    """A connection from a device to another one."""

    peer: str
    """UUID of the other device."""
    tier: int = 0
    """0 direct, 1 within a NUMA node, 2 across NUMA nodes, 3 unknown."""
    bandwidth_mbps: float = 0.0
    """Megabytes a second; 0 if unknown."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device, or a slice of one."""

    id: str
    """UUID, or `driver/pool/device`."""
    node: str = ""
    parent_id: str = ""
    index: int | None = None
    numa: int | None = None
    pcie_root: str = ""
    clique: str = ""
    """Id of the group of devices with fast links to each other."""
    fraction: float = 1.0
    """Share of its capacity that the endpoint may use."""
    health: str = ""
    """Healthy, Unhealthy or Unknown."""
    taints: tuple[str, ...] = ()
    """Effects: NoSchedule, NoExecute."""
    links: tuple[DeviceLink, ...] = ()
    """Connections to other devices, as far as they are reported."""


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """TFLOPS, or TOPS for integers, of one whole device; 0 if unknown."""

    fp32: float = 0.0
    fp16: float = 0.0
    fp8: float = 0.0
    int8: float = 0.0
    int4: float = 0.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for one whole device."""

    per_hour: float | None = None
    spot_per_hour: float | None = None
    per_million_tokens: float | None = None
    tier: str = ""
    """low, medium or high."""
    spot: bool | None = None
    """Whether the node is a spot instance, which has its spot price."""

    def device_per_hour(self, preference: SpotPreference = "auto") -> float | None:
        """Return the price of a whole device; None if unknown."""
        return self.spot_per_hour if self.price_field(preference) == "spot_per_hour" else self.per_hour

    def price_field(self, preference: SpotPreference = "auto") -> Literal["per_hour", "spot_per_hour"]:
        """Return the field with the price that counts."""
        wants_spot = preference == "always" or (preference == "auto" and self.spot is True)
        return "spot_per_hour" if wants_spot and self.spot_per_hour is not None else "per_hour"


class Sites(NamedTuple):
    """Places of the devices of an endpoint as integer keys, which are 0 for unknown places.

    Keys are hashes of names, independent of other endpoints: they are computed once with the tag, and arrays of all
    endpoints are concatenations. Bytes contain 64-bit numbers.
    """

    node: int
    rows: bytes
    """One key for each name in ROW for each device; one row for an endpoint without known devices."""
    used: bytes
    """Key of each physical device of the endpoint."""
    links: bytes
    """For each link to a device of another endpoint: keys of both devices as integers, tier and MB/s as floats."""
    places: Mapping[str, frozenset[int]]
    """Known places of all devices, by the names in ROW."""

    def share(self, other: "Sites", *names: str) -> bool:
        """Return whether two endpoints have devices at the same place, for one of these kinds of places."""
        return any(not self.places[name].isdisjoint(other.places[name]) for name in names)


class AcceleratorTag(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All known facts about the accelerators of an endpoint."""

    kind: AcceleratorKind = AcceleratorKind.UNKNOWN
    vendor: str = ""
    """Lower case: nvidia, amd, intel, google."""
    family: str = ""
    """Lower case: hopper, ampere, turing, cdna3, tpu-v5e."""
    model: str = ""
    """Lower case: h100, a100, t4, mi300x, v5e."""
    product: str = ""
    """Product name in the spelling of its source."""
    classes: tuple[str, ...] = ()
    """Names of all matching AcceleratorClasses, the primary one first."""
    devices: tuple[Device, ...] = ()
    count: int = 0
    """Number of devices or slices."""
    memory_bytes: int | None = None
    """Memory of each device or slice."""
    compute_capability: tuple[int, ...] = ()
    """CUDA compute capability, (9, 0) for 9.0."""
    features: frozenset[str] = frozenset()
    """Lower case: cuda, tensor-cores, nvlink, fp8, bf16."""
    performance: Performance = Performance()
    bandwidth_gbps: float | None = None
    """Memory bandwidth of one whole device, in GB/s."""
    partition: Partition = Partition()
    cost: Cost = Cost()
    state: Routability = Routability.UNKNOWN
    reason: str = ""
    resources: frozenset[str] = frozenset()
    """Names of the extended resources that the pod requests: nvidia.com/gpu, nvidia.com/mig-3g.20gb."""
    node: str = ""
    cluster: str = ""
    attributes: Mapping[str, AttributeValue] = msgspec.field(default_factory=dict)
    """Further properties by `domain/name`, such as `gpu.nvidia.com/driverVersion` of DRA devices."""
    provenance: Mapping[str, str] = msgspec.field(default_factory=dict)

    @cached_property
    def sites(self) -> Sites:
        """Places of the devices, as keys."""
        return sites_of(self)

    def located(self) -> Self:
        """Compute the sites and return the tag, because a request should not compute them for a whole pool."""
        _ = self.sites
        return self

    @property
    def primary_class(self) -> str:
        """The most specific matching class; empty if none matches."""
        return self.classes[0] if self.classes else ""

    @property
    def has_accelerator(self) -> bool:
        """Whether an accelerator is known: false for CPUs and for unknown hardware."""
        return self.kind not in {AcceleratorKind.CPU, AcceleratorKind.UNKNOWN}

    @property
    def total_memory_bytes(self) -> int | None:
        """Memory of all devices together."""
        return None if self.memory_bytes is None or not self.count else self.memory_bytes * self.count

    def tflops(self, precision: str = "fp16") -> float:
        """Return the TFLOPS of all devices or slices together; 0 if unknown.

        The default for fp8 is int8, which has the same figure on hardware with both.
        """
        figure: float = getattr(self.performance, precision)
        if precision == "fp8" and not figure:
            figure = self.performance.int8
        return figure * self.partition.compute_fraction * max(self.count, 1)

    def device_tflops(self, precision: str) -> float:
        """Return the TFLOPS of one device or slice; 0 if they are unknown, negative or not finite."""
        tflops = self.tflops(precision) / max(self.count, 1)
        return tflops if isfinite(tflops) and tflops > 0 else 0.0

    def cost_per_hour(self, preference: SpotPreference = "auto", basis: CostBasis = "memory") -> float | None:
        """Return the price of the whole endpoint in US dollars; None if unknown."""
        price = self.cost.device_per_hour(preference)
        if price is None:
            return None
        fraction = self.partition.memory_fraction if basis == "memory" else self.partition.compute_fraction
        return price * fraction * max(self.count, 1)

    def price_source(self) -> str:
        """Return the source of the price; empty if there is none."""
        return self.provenance.get(self.cost.price_field(), "")


class AcceleratorDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Accelerator of an endpoint, as declared by its user; takes precedence over all other sources."""

    accelerator_class: str = msgspec.field(default="", name="class")
    """Name of an AcceleratorClass, or of a product in the built-in catalogue, such as `h100`."""
    count: Annotated[int, Meta(ge=1, le=_MOST_DEVICES)] | None = None
    """Number of devices or slices; 1 if a class is named and the number is unknown."""
    profile: str = ""
    """MIG profile of each, such as `3g.20gb`."""
    sharers: Annotated[int, Meta(ge=1, le=_MOST_DEVICES)] | None = None
    """Number of endpoints that share each device by time slicing."""
    memory: str = ""
    """Memory of each device or slice, a quantity such as `80Gi`."""
    cost_per_hour: Annotated[float, Meta(ge=0, le=_MOST_DOLLARS)] | None = None
    """US dollars for one whole device."""
    spot: bool | None = None
    """Whether the node is a spot instance, which has its spot price if there is one."""
    kind: AcceleratorKind | None = None
    """Kind of device: `cpu` for a router or a tokenizer."""
    device: str = ""
    """UUID of its MIG slice in the output of `nvidia-smi -L`, `MIG-...`, to find the slice of InstaSlice."""

    def __post_init__(self) -> None:
        if self.memory:
            try:
                size = parse_memory(self.memory[:_MOST_CHARACTERS])
            except ValueError:
                size = 0
            if not 0 < size <= _MOST_MEMORY:
                raise ValueError(f"memory is {self.memory!r:.60}: write the size of one device, such as 80Gi")
        if self.profile and canonical_mig_name(self.profile) is None:
            raise ValueError(f"profile is {self.profile!r:.60}: write a MIG profile such as 3g.20gb")


NO_TAG = AcceleratorTag()

# Attributes of tags that plugins read.

HOST_GBPS = "epp/host-gbps"
"""Bandwidth in one direction between one whole device and the memory of its host, in GB/s."""
NETWORK_GBPS = "epp/network-gbps"
"""Share of one device in the network bandwidth of its machine, in GB/s."""
DRIVER = "device/driver"
"""DRA driver of the devices."""
CAPACITY = "capacity:"
"""Prefix of the capacities of DRA devices, in base units: `capacity:gpu.nvidia.com/memory`."""
SLOTS_FREE, SLOTS_TOTAL = "epp/slots-free", "epp/slots-total"
"""Memory slots of the GPUs of the endpoint's node, for MIG slices."""
VRAM_USED, TFLOPS_USED = "tensor-fusion.ai/vramUsedFraction", "tensor-fusion.ai/tflopsUsedFraction"
"""Share of all GPUs of the endpoint that TensorFusion has allocated, 0..1; negative for a capacity of 0. It is above 1
on oversubscribed nodes."""
VRAM_FREE, TFLOPS_FREE = "tensor-fusion.ai/vramFree", "tensor-fusion.ai/tflopsFree"
"""Free share of all these GPUs: bytes, and TFLOPS."""
VIRTUAL = "Virtual"
"""Suffix of shares and amounts that count virtual capacity; present only on oversubscribed nodes."""
PHASE = "tensor-fusion.ai/phase"
"""Phases of the GPUs in TensorFusion, comma-separated."""
ISOLATION_MODE = "tensor-fusion.ai/isolationMode"
USED_BY = "tensor-fusion.ai/usedBy"
PARTITION_TEMPLATE = "tensor-fusion.ai/partitionTemplate"
FROZEN = "epp/frozen"
"""Location of a frozen model; missing if the model is awake."""
FROZEN_TO = ("memory", "disk")
BOOT_ID, POD_UID = "epp/boot-id", "epp/pod-uid"
"""Boot id of the node and UID of the pod; a change invalidates learned properties of the endpoint."""


def names_of(tag: AcceleratorTag) -> tuple[str, ...]:
    """Return the classes in lower case, the primary one first; without classes, the model, such as `h100`."""
    names = tag.classes or ((tag.model,) if tag.model else ())
    return tuple(name.lower() for name in names)


def limit_for(tag: AcceleratorTag, name: str, entries: Mapping[str, object], general: object) -> float | None:
    """Return the limit `name` from the entry for the tag, or from `general` if the entry has none.

    `entries` are by lower-case name. The entry is that of the first class with an entry, or else that of the model.
    """
    entry = next((entries[each] for each in (*names_of(tag), tag.model.lower()) if each in entries), None)
    own: float | None = getattr(entry, name, None)
    common: float | None = getattr(general, name)
    return common if own is None else own


def sites_of(tag: "AcceleratorTag") -> Sites:
    cluster, rows = tag.cluster, array("q")
    clique, domain = _key(tag.attributes.get(CLIQUE)), _key(tag.attributes.get(COMPUTE_DOMAIN))
    for device in tag.devices:
        node = device.node or tag.node
        rows.extend(
            (
                _device(cluster, device.parent_id or device.id),
                _node(cluster, node),
                hash((cluster, node, str(device.numa))) if node and device.numa is not None else 0,
                hash((cluster, node, device.pcie_root)) if device.pcie_root else 0,
                _key(device.clique) or clique,
                domain,
            )
        )
    if not tag.devices:
        rows.extend((0, _node(cluster, tag.node), 0, 0, clique, domain))
    used = array("q", [_device(cluster, name) for name in sorted(physical_devices(tag))])
    places = {name: frozenset(rows[number :: len(ROW)]) - {0} for number, name in enumerate(ROW)}
    places["clique"] |= {clique} - {0}  # the clique of the node always counts for pairs of endpoints
    return Sites(_node(cluster, tag.node), rows.tobytes(), used.tobytes(), b"".join(_links(tag)), places)


def physical_devices(tag: "AcceleratorTag") -> set[str]:
    """Return the ids of the endpoint's devices; for slices, those of the divided devices."""
    parents = {device.parent_id for device in tag.devices if device.parent_id}
    if parents:
        return parents
    if tag.partition.parent_id:
        return {tag.partition.parent_id}
    return {device.id for device in tag.devices if device.id}


def _links(tag: "AcceleratorTag") -> Iterator[bytes]:
    own = {device.id for device in tag.devices}
    for device in tag.devices:
        if device.links and (start := _device(tag.cluster, device.parent_id or device.id)):
            for link in device.links:
                if link.peer not in own:
                    yield _LINK.pack(start, _device(tag.cluster, link.peer), link.tier, link.bandwidth_mbps)


def _key(name: object) -> int:
    return hash(name) if name else 0


def _node(cluster: str, node: str) -> int:
    return hash((cluster, node)) if node else 0


def _device(cluster: str, name: str) -> int:
    return hash((cluster, "", name)) if name else 0
