# SPDX-License-Identifier: Apache-2.0
"""Both generations of InstaSlice: Instaslice; NodeAccelerator and AllocationClaim."""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.kube.objects.base import Condition, Object, Part, convert
from epp.kube.objects.core import PodReference
from epp.kube.objects.limits import DeviceMemory, Size, Start, memory_bytes


class SlotPlacement(Part, frozen=True, kw_only=True):
    """Memory slots of a GPU."""

    size: Size
    start: Start


class NodeGpu(Part, frozen=True, kw_only=True):
    gpu_uuid: str
    gpu_name: str = ""
    gpu_memory: DeviceMemory = None

    @property
    def memory_bytes(self) -> int | None:
        return memory_bytes(self.gpu_memory)


class NodeResources(Part, frozen=True, kw_only=True):
    node_gpus: tuple[NodeGpu, ...] = ()
    boot_id: str = ""
    mig_placement: Any = None
    """Placements by MIG profile."""

    @property
    def profiles(self) -> tuple[str, ...]:
        """MIG profiles with placements; none if these are unreadable."""
        return tuple(map(str, self.mig_placement)) if isinstance(self.mig_placement, Mapping) else ()


class PodAllocationRequest(Part, frozen=True, kw_only=True):
    """Slice requested for a pod, generation 1."""

    profile: str = ""
    pod_ref: PodReference = PodReference()


class AllocationStatus(Part, frozen=True, kw_only=True):
    allocation_status_controller: str = ""
    allocation_status_daemonset: str = ""


class PodAllocationResult(Part, frozen=True, kw_only=True):
    """Slice allocated to a pod, generation 1."""

    allocation_status: AllocationStatus = AllocationStatus()
    mig_placement: SlotPlacement | None = None
    gpu_uuid: str = msgspec.field(default="", name="gpuUUID")
    nodename: str = ""
    config_map: str = msgspec.field(default="", name="configMapResourceIdentifier")
    """Name of a ConfigMap in the namespace of the pod with the UUID of the slice."""


class Instaslice(Object, frozen=True, kw_only=True):
    """A node and its slices, generation 1; requests and results are by pod UID."""

    requests: Mapping[str, PodAllocationRequest] = msgspec.field(
        default_factory=dict, name="spec.podAllocationRequests"
    )
    results: Mapping[str, PodAllocationResult] = msgspec.field(default_factory=dict, name="status.podAllocationResults")
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")
    resources: NodeResources = msgspec.field(default=NodeResources(), name="status.nodeResources")


class NodeAccelerator(Object, frozen=True, kw_only=True):
    """A node, generation 2."""

    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")
    resources: NodeResources = msgspec.field(default=NodeResources(), name="status.nodeResources")


class ClaimSpec(Part, frozen=True, kw_only=True):
    """Slice of an AllocationClaim, or an entry of the pod annotation `mig.das.com/allocation`."""

    profile: str
    pod_ref: PodReference = PodReference()
    mig_placement: SlotPlacement | None = None
    gpu_uuid: str = msgspec.field(default="", name="gpuUUID")
    nodename: str = ""


class AllocationClaim(Object, frozen=True, kw_only=True):
    """One slice for one container, generation 2."""

    spec: ClaimSpec
    state: str = msgspec.field(default="", name="status.state")


def read_node_accelerator(document: object) -> NodeAccelerator:
    return convert(_with_decoded(document, "status", "nodeResources"), NodeAccelerator)


def read_allocation_claim(document: object) -> AllocationClaim:
    return convert(_with_decoded(document, "spec"), AllocationClaim)


def _with_decoded(data: object, *path: str, place: str = "") -> object:
    """Return the data with the JSON text at a path decoded; such a field may also be a mapping."""
    if path:
        if not isinstance(data, Mapping) or path[0] not in data:
            return data
        inner = _with_decoded(data[path[0]], *path[1:], place=f"{place}.{path[0]}".removeprefix("."))
        return {**data, path[0]: inner}
    if not isinstance(data, (str, bytes)):
        return data
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise ValueError(f"{place} is not valid JSON: {data!r:.60}: write a mapping, as YAML or as JSON") from None
