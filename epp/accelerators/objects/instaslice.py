"""Both generations of InstaSlice: Instaslice; NodeAccelerator and AllocationClaim."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from epp.accelerators.objects.base import Condition, Metadata, Object, Part, convert
from epp.accelerators.objects.core import PodReference

T = TypeVar("T")


class Placement(Part, frozen=True, kw_only=True, rename="camel"):
    """Memory slots of a GPU."""

    size: int
    start: int


class ProfilePlacements(Part, frozen=True, kw_only=True, rename="camel"):
    """Where slices of one profile may lie."""

    placements: tuple[Placement, ...] = ()


class NodeGpu(Part, frozen=True, kw_only=True, rename="camel"):
    """A GPU of a node."""

    gpu_uuid: str
    gpu_name: str = ""
    gpu_memory: Fraction | None = None


class NodeResources(Part, frozen=True, kw_only=True, rename="camel"):
    """What a node's agent found there."""

    node_gpus: tuple[NodeGpu, ...] = ()
    mig_placement: Mapping[str, ProfilePlacements] = msgspec.field(default_factory=dict)
    boot_id: str = ""


class PodAllocationRequest(Part, frozen=True, kw_only=True, rename="camel"):
    """What a pod asks for, in generation 1."""

    profile: str = ""
    pod_ref: PodReference = PodReference()


class AllocationStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """How far an allocation is: the controller's word and the daemonset's."""

    allocation_status_controller: str = ""
    allocation_status_daemonset: str = ""


class PodAllocationResult(Part, frozen=True, kw_only=True, rename="camel"):
    """What a pod was given, in generation 1."""

    allocation_status: AllocationStatus = AllocationStatus()
    mig_placement: Placement | None = None
    gpu_uuid: str = msgspec.field(default="", name="gpuUUID")
    nodename: str = ""


class InstasliceSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """Requests by pod UID."""

    pod_allocation_requests: Mapping[str, PodAllocationRequest] = msgspec.field(default_factory=dict)


class InstasliceStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """Results by pod UID, and the node."""

    conditions: tuple[Condition, ...] = ()
    node_resources: NodeResources = NodeResources()
    pod_allocation_results: Mapping[str, PodAllocationResult] = msgspec.field(default_factory=dict)


class Instaslice(Object, frozen=True, kw_only=True, rename="camel"):
    """A node and all slices on it: generation 1."""

    spec: InstasliceSpec = InstasliceSpec()
    status: InstasliceStatus = InstasliceStatus()


class NodeAccelerator(Object, frozen=True, kw_only=True, rename="camel"):
    """A node: generation 2."""

    conditions: tuple[Condition, ...] = ()
    resources: NodeResources = NodeResources()


class ClaimSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """What an AllocationClaim stands for; also one entry of the annotation `mig.das.com/allocation`."""

    profile: str
    pod_ref: PodReference = PodReference()
    mig_placement: Placement | None = None
    gpu_uuid: str = msgspec.field(default="", name="gpuUUID")
    nodename: str = ""


class AllocationClaim(Object, frozen=True, kw_only=True, rename="camel"):
    """One slice for one container: generation 2."""

    spec: ClaimSpec
    state: str = ""


class _Status(Part, frozen=True, kw_only=True, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    node_resources: Any = None
    state: str = ""


class _Raw(Part, frozen=True, kw_only=True, rename="camel"):
    """Either kind of generation 2, with what its API leaves open."""

    metadata: Metadata
    spec: Any = None
    status: _Status = _Status()


def read_node_accelerator(document: object) -> NodeAccelerator:
    """Return the object; raises ValueError."""
    raw = convert(document, _Raw)
    found = raw.status.node_resources
    resources = NodeResources() if found is None else _opened(found, NodeResources, "status.nodeResources")
    return NodeAccelerator(metadata=raw.metadata, conditions=raw.status.conditions, resources=resources)


def read_allocation_claim(document: object) -> AllocationClaim:
    """Return the object; raises ValueError."""
    raw = convert(document, _Raw)
    spec = _opened(raw.spec, ClaimSpec, "spec")
    return AllocationClaim(metadata=raw.metadata, spec=spec, state=raw.status.state)


def _opened(value: object, cls: type[T], place: str) -> T:
    """Return what raw JSON holds, whether it came as data or as text; raises ValueError."""
    if value is None:
        raise ValueError(f"{place} is missing: add it")
    if isinstance(value, (str, bytes)):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise ValueError(f"{place} is not JSON: {value!r:.60}: write a mapping, as YAML or as JSON") from None
    return convert(value, cls, place)
