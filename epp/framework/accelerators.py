"""What stands behind an endpoint: its accelerators as one frozen record, whatever they were read from.

Numbers of performance and bandwidth are those of one whole device, dense (without sparsity); what a slice or a shared
device leaves of them is in `Partition`. None, an empty text and an empty collection mean: not known.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Literal, TypeAlias, get_args

import msgspec

AttributeValue: TypeAlias = str | int | float | bool | tuple[int, ...]
SpotPreference: TypeAlias = Literal["auto", "always", "never"]
"""Whether the spot price counts: where the node is spot, wherever there is one, or nowhere."""
CostBasis: TypeAlias = Literal["memory", "compute"]
"""By what share a slice pays for its device."""
Precision: TypeAlias = Literal["fp32", "fp16", "fp8", "int8", "int4"]
"""Precisions that TFLOPS are known in."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class AcceleratorKind(StrEnum):
    """What kind of machine computes."""

    GPU = "gpu"
    TPU = "tpu"
    XPU = "xpu"
    NPU = "npu"
    CPU = "cpu"
    """None at all: a router, a gateway, a tokenizer, or a model server on CPUs."""
    UNKNOWN = "unknown"


class Sharing(StrEnum):
    """How a device is divided."""

    NONE = "none"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
    AMD = "amd"
    VGPU = "vgpu"


class Routability(StrEnum):
    """Whether the devices can be used."""

    ROUTABLE = "routable"
    DRAINING = "draining"
    """What is under way may end; nothing new goes there."""
    BLOCKED = "blocked"
    UNKNOWN = "unknown"
    """Nobody said; used as if it were routable."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a device that an endpoint has."""

    kind: Sharing = Sharing.NONE
    profile: str = ""
    """Canonical name of a MIG profile, `3g.20gb` or `1g.5gb+me`, or a vendor's own."""
    compute_slices: int = 0
    """Of the device's compute slices (7 on most), for MIG."""
    memory_slots: int = 0
    """Of the device's memory slots (8 on most), for MIG."""
    compute_fraction: float = 1.0
    """Of the device's TFLOPS."""
    memory_fraction: float = 1.0
    """Of the device's memory and bandwidth."""
    start: int | None = None
    """First memory slot, for MIG."""
    parent_id: str = ""
    """UUID of the device that is divided."""
    media_extensions: bool = False
    """Whether the profile is a `+me` one."""
    sharers: int = 1
    """How many share by turns, for MPS and time slicing; their fractions are 1 / sharers."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device, or one slice of one."""

    id: str
    """UUID, or `driver/pool/device`."""
    node: str = ""
    parent_id: str = ""
    index: int | None = None
    numa: int | None = None
    pcie_root: str = ""
    clique: str = ""
    """Devices of one clique have fast links to each other."""
    fraction: float = 1.0
    """Of its capacity that the endpoint may use."""
    health: str = ""
    """Healthy, Unhealthy or Unknown."""
    taints: tuple[str, ...] = ()
    """Effects: NoSchedule, NoExecute."""


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """TFLOPS, or TOPS for integers, of one whole device; 0 for not known."""

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
    """Whether the node can be taken away: its spot price is what it costs."""

    def device_per_hour(self, preference: SpotPreference = "auto") -> float | None:
        """Return the price of a whole device; None where none is known."""
        wants_spot = preference == "always" or (preference == "auto" and self.spot is True)
        if wants_spot and self.spot_per_hour is not None:
            return self.spot_per_hour
        return self.per_hour


class AcceleratorTag(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of what an endpoint computes on."""

    kind: AcceleratorKind = AcceleratorKind.UNKNOWN
    vendor: str = ""
    """Lower case: nvidia, amd, intel, google."""
    family: str = ""
    """Lower case: hopper, ampere, turing, cdna3, tpu-v5e."""
    model: str = ""
    """Lower case: h100, a100, t4, mi300x, v5e."""
    product: str = ""
    """As its source writes it."""
    classes: tuple[str, ...] = ()
    """Names of all AcceleratorClasses that match, the primary one first."""
    devices: tuple[Device, ...] = ()
    count: int = 0
    """Devices, or slices, that the endpoint has."""
    memory_bytes: int | None = None
    """Of each of them: of the slice, where it is one."""
    compute_capability: tuple[int, ...] = ()
    """(9, 0) for CUDA compute capability 9.0."""
    features: frozenset[str] = frozenset()
    """Lower case: cuda, tensor-cores, nvlink, fp8, bf16."""
    performance: Performance = Performance()
    bandwidth_gbps: float | None = None
    """Memory bandwidth of one whole device, in GB/s."""
    partition: Partition = Partition()
    cost: Cost = Cost()
    state: Routability = Routability.UNKNOWN
    reason: str = ""
    """Why the state is what it is."""
    resources: frozenset[str] = frozenset()
    """Names of the extended resources that the pod asked for: nvidia.com/gpu, nvidia.com/mig-3g.20gb."""
    node: str = ""
    cluster: str = ""
    attributes: Mapping[str, AttributeValue] = msgspec.field(default_factory=dict)
    """What sources say beyond all this, as `domain/name`; of DRA devices, `gpu.nvidia.com/driverVersion`."""
    provenance: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Which source each field is from."""

    @property
    def primary_class(self) -> str:
        """The class that counts; empty where none matches."""
        return self.classes[0] if self.classes else ""

    @property
    def has_accelerator(self) -> bool:
        """Whether there is one, as far as is known: false for CPUs and for what nobody knows anything of."""
        return self.kind not in {AcceleratorKind.CPU, AcceleratorKind.UNKNOWN}

    @property
    def total_memory_bytes(self) -> int | None:
        """Memory of all devices together."""
        return None if self.memory_bytes is None or not self.count else self.memory_bytes * self.count

    def tflops(self, precision: str = "fp16") -> float:
        """Return what all devices come to, slices as slices; 0 for not known.

        fp8 falls back to int8, whose figure is the same on the hardware that has both.
        """
        figure: float = getattr(self.performance, precision)
        if precision == "fp8" and not figure:
            figure = self.performance.int8
        return figure * self.partition.compute_fraction * max(self.count, 1)

    def device_tflops(self, precision: str) -> float:
        """Return the TFLOPS of one device or slice; 0 where they are not known, negative or not finite."""
        tflops = self.tflops(precision) / max(self.count, 1)
        return tflops if isfinite(tflops) and tflops > 0 else 0.0

    def cost_per_hour(self, preference: SpotPreference = "auto", basis: CostBasis = "memory") -> float | None:
        """Return what the whole endpoint costs, in US dollars; None where no price is known."""
        price = self.cost.device_per_hour(preference)
        if price is None:
            return None
        fraction = self.partition.memory_fraction if basis == "memory" else self.partition.compute_fraction
        return price * fraction * max(self.count, 1)


class AcceleratorDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the author of an endpoint list says of an endpoint's accelerator: it goes before all other sources."""

    accelerator_class: str = msgspec.field(default="", name="class")
    """Name of an AcceleratorClass, or of a product in the built-in catalogue, such as `h100`."""
    count: int | None = None
    """Devices, or slices, that the endpoint has; 1 where a class is named and nobody says otherwise."""
    profile: str = ""
    """MIG profile of each, such as `3g.20gb`."""
    sharers: int | None = None
    """How many share each one by turns."""
    memory: str = ""
    """Of each, a quantity such as `80Gi`."""
    cost_per_hour: float | None = None
    """US dollars for one whole device."""
    spot: bool | None = None
    """Whether the node can be taken away: its spot price, where there is one, is what it costs."""
    kind: AcceleratorKind | None = None
    """What kind of machine computes: `cpu` for a router or a tokenizer."""


NO_TAG = AcceleratorTag()
