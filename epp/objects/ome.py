# SPDX-License-Identifier: Apache-2.0
"""AcceleratorClass of ome.io, and ResourceFlavor of kueue.x-k8s.io, whose node labels a class can refer to."""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from epp.objects.base import ClusterObject, Part
from epp.objects.core import MatchExpression, NodeSelector


class NodeAffinity(Part, frozen=True, kw_only=True):
    """Terms that a node must meet."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Part, frozen=True, kw_only=True):
    """The part of an affinity that is about nodes."""

    node_affinity: NodeAffinity = NodeAffinity()


class DeviceSelector(Part, frozen=True, kw_only=True):
    """Selector of devices in ResourceSlices; an extension of the API by this picker."""

    driver: str = ""
    match_attributes: tuple[MatchExpression, ...] = ()
    """Tests of attributes, with or without their domain."""
    expression: str = ""
    """CEL over `device`, as in the selectors of DRA; an expression that cannot be evaluated matches no device."""


class Discovery(Part, frozen=True, kw_only=True):
    """Selectors of nodes and devices of a class."""

    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity = Affinity()
    pci_vendor_id: str = msgspec.field(default="", name="pciVendorID")
    device_ids: tuple[str, ...] = msgspec.field(default=(), name="deviceIDs")
    dra: DeviceSelector | None = None


class ClassPerformance(Part, frozen=True, kw_only=True):
    """Figures of one accelerator of the class; with `sparse`, those below fp32 are halved."""

    fp32_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    int4_tops: float | None = None
    sparse: bool = False


class Capabilities(Part, frozen=True, kw_only=True):
    """Capabilities of one accelerator of the class."""

    memory: Fraction | None = msgspec.field(default=None, name="memoryGB")
    compute_capability: str = ""
    level_zero_version: str = ""
    memory_bandwidth_gbps: Fraction | None = msgspec.field(default=None, name="memoryBandwidthGBps")
    features: tuple[str, ...] = ()
    performance: ClassPerformance = ClassPerformance()


class ClassResource(Part, frozen=True, kw_only=True):
    """An extended resource with which pods request the class."""

    name: str


class Integration(Part, frozen=True, kw_only=True):
    """Names of the class in other systems."""

    kueue_resource_flavor: str = ""
    volcano_gpu_type: str = msgspec.field(default="", name="volcanoGPUType")


class ClassCost(Part, frozen=True, kw_only=True):
    """US dollars for one accelerator."""

    per_hour: Fraction | None = None
    spot_per_hour: Fraction | None = None
    per_million_tokens: Fraction | None = None
    tier: str = ""


class ClassSpec(Part, frozen=True, kw_only=True):
    """Spec of a class."""

    vendor: str = ""
    family: str = ""
    model: str = ""
    discovery: Discovery = Discovery()
    capabilities: Capabilities = Capabilities()
    resources: tuple[ClassResource, ...] = ()
    integration: Integration = Integration()
    cost: ClassCost = ClassCost()


class AcceleratorClass(ClusterObject, frozen=True, kw_only=True):
    """A class of accelerators."""

    spec: ClassSpec = ClassSpec()


class FlavorSpec(Part, frozen=True, kw_only=True):
    """Labels of the nodes of a flavor."""

    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class ResourceFlavor(ClusterObject, frozen=True, kw_only=True):
    """A flavor of nodes."""

    spec: FlavorSpec = FlavorSpec()
