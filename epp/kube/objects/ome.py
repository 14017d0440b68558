# SPDX-License-Identifier: Apache-2.0
"""AcceleratorClass of ome.io, and ResourceFlavor of kueue.x-k8s.io, whose node labels a class can use."""

from collections.abc import Mapping
from typing import Self

import msgspec

from epp.kube.objects.base import ClusterObject, Part
from epp.kube.objects.core import MatchExpression, NodeSelector
from epp.kube.objects.limits import Bandwidth, DeviceMemory, Figure, Price, TokenPrice, shown

_MOST_SPOT = 10


class DeviceSelector(Part, frozen=True, kw_only=True):
    """Selector of devices in ResourceSlices; an extension of the API."""

    driver: str = ""
    match_attributes: tuple[MatchExpression, ...] = ()
    """Tests of attributes; the domain in a name is optional."""
    expression: str = ""
    """CEL over `device`, as in the selectors of DRA; an expression that cannot be evaluated matches no device."""


class Discovery(Part, frozen=True, kw_only=True):
    """Selectors of nodes and devices of a class."""

    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    pci_vendor_id: str = msgspec.field(default="", name="pciVendorID")
    device_ids: tuple[str, ...] = msgspec.field(default=(), name="deviceIDs")
    dra: DeviceSelector | None = None


class ClassPerformance(Part, frozen=True, kw_only=True):
    """Figures of one accelerator; with `sparse`, those below fp32 are halved."""

    fp32_tflops: Figure = None
    fp16_tflops: Figure = None
    fp8_tflops: Figure = None
    int8_tops: Figure = None
    int4_tops: Figure = None
    sparse: bool = False


class Capabilities(Part, frozen=True, kw_only=True):
    """Capabilities of one accelerator."""

    memory: DeviceMemory = msgspec.field(default=None, name="memoryGB")
    compute_capability: str = ""
    level_zero_version: str = ""
    memory_bandwidth_gbps: Bandwidth = msgspec.field(default=None, name="memoryBandwidthGBps")
    features: tuple[str, ...] = ()
    performance: ClassPerformance = ClassPerformance()


class ClassResource(Part, frozen=True, kw_only=True):
    """An extended resource by which pods request the class."""

    name: str


class Integration(Part, frozen=True, kw_only=True):
    """Names of the class in other systems."""

    kueue_resource_flavor: str = ""
    volcano_gpu_type: str = msgspec.field(default="", name="volcanoGPUType")


class ClassCost(Part, frozen=True, kw_only=True):
    """US dollars for one accelerator."""

    per_hour: Price = None
    spot_per_hour: Price = None
    per_million_tokens: TokenPrice = None
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
    affinity: NodeSelector | None = msgspec.field(
        default=None, name="spec.discovery.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    )
    """Terms that a node must meet."""

    def contradiction(self) -> tuple[str, Self] | None:
        """Return a spot price far above the regular price."""
        cost = self.spec.cost
        if not cost.per_hour or cost.spot_per_hour is None or cost.spot_per_hour <= _MOST_SPOT * cost.per_hour:
            return None
        sentence = (
            f"spec.cost.spotPerHour is {shown(cost.spot_per_hour)}, more than {_MOST_SPOT} times perHour, "
            f"{shown(cost.per_hour)}: write both in US dollars an hour"
        )
        without = msgspec.structs.replace(cost, spot_per_hour=None)
        return sentence, msgspec.structs.replace(self, spec=msgspec.structs.replace(self.spec, cost=without))


class ResourceFlavor(ClusterObject, frozen=True, kw_only=True):
    """A flavor of nodes."""

    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict, name="spec.nodeLabels")
