# SPDX-License-Identifier: Apache-2.0
"""MIG slices allocated to pods by InstaSlice, and the nodes that it manages: both generations in one form."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from epp.framework.accelerators.tag import Routability
from epp.framework.quantities import canonical_mig_name
from epp.hardware.mig.profile import parse_mig_profile
from epp.kube.objects.base import Condition, condition_of
from epp.kube.objects.core import PodReference
from epp.kube.objects.instaslice import (
    AllocationClaim,
    Instaslice,
    NodeAccelerator,
    NodeGpu,
    NodeResources,
    PodAllocationRequest,
)

_GONE = frozenset({"deleting", "deleted"})
_BEFORE_USE = frozenset({"created", "processing"})


class SliceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A slice allocated to a pod, or about to be."""

    source: str
    """`AllocationClaim/das-operator/...`, `Instaslice/instaslice-system/gpu-node-1`."""
    pod: PodReference
    profile: str
    """As the object spells it."""
    gpu_uuid: str = ""
    node: str = ""
    start: int | None = None
    size: int | None = None
    """Memory slots."""
    profile_field: str = "profile"
    placement_field: str = "migPlacement"
    state: str
    """Of generation 2, `inUse`; of generation 1, the states of controller and daemonset: `ungated+created`."""

    @property
    def sound(self) -> bool:
        """Whether its profile is one that its GPU can have."""
        return parse_mig_profile(self.profile) is not None

    @property
    def tentative(self) -> bool:
        """Whether it is only staged: no slice exists yet, and the scheduler may choose another node."""
        return self.state == "staged"

    @property
    def occupies(self) -> bool:
        """Whether it occupies memory slots."""
        return not self.tentative and not (self.state == "deleted" or self.state.endswith("+deleted"))

    def routability(self, *, pod_ready: bool) -> Routability:
        """Return whether the endpoint with this slice can take requests."""
        if "+" in self.state:
            controller, _, daemonset = self.state.partition("+")
            if (controller, daemonset) == ("ungated", "created"):
                return Routability.ROUTABLE
            return Routability.DRAINING if {controller, daemonset} & _GONE else Routability.BLOCKED
        if self.state == "inUse" or (self.state in _BEFORE_USE and pod_ready):
            return Routability.ROUTABLE
        return Routability.DRAINING if self.state in _GONE | {"orphaned"} else Routability.BLOCKED


class SliceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose GPUs InstaSlice divides on demand."""

    source: str
    name: str
    gpus: tuple[NodeGpu, ...] = ()
    ready: bool | None = None
    reason: str = ""
    boot_id: str = ""
    profiles: frozenset[str] = frozenset()
    """MIG profiles, in their canonical spelling, for which the node has placements by its own account."""

    def gpu(self, uuid: str) -> NodeGpu | None:
        """Return the GPU with this UUID."""
        return next((gpu for gpu in self.gpus if gpu.gpu_uuid == uuid), None)


def slice_claims(
    instaslices: Iterable[Instaslice], allocation_claims: Iterable[AllocationClaim]
) -> tuple[SliceClaim, ...]:
    """Return all slices as they are written, those of generation 2 first."""
    return (*_second_generation(allocation_claims), *_first_generation(instaslices))


def without_duplicates(claims: Iterable[SliceClaim]) -> tuple[SliceClaim, ...]:
    """Return each slice once, though both generations may have it; one with a sound profile precedes one without."""
    found: dict[object, SliceClaim] = {}
    for claim in sorted(claims, key=lambda claim: not claim.sound):
        place = (claim.pod, claim.node, claim.gpu_uuid, claim.start)
        found.setdefault((claim.source, claim.pod) if claim.start is None else place, claim)
    return tuple(found.values())


def _second_generation(claims: Iterable[AllocationClaim]) -> Iterator[SliceClaim]:
    for claim in claims:
        spec = claim.spec
        yield SliceClaim(
            source=f"AllocationClaim/{claim.id}",
            pod=spec.pod_ref,
            profile=spec.profile,
            gpu_uuid=spec.gpu_uuid,
            node=spec.nodename,
            start=None if spec.mig_placement is None else spec.mig_placement.start,
            size=None if spec.mig_placement is None else spec.mig_placement.size,
            profile_field="spec.profile",
            placement_field="spec.migPlacement",
            state=claim.state,
        )


def _first_generation(instaslices: Iterable[Instaslice]) -> Iterator[SliceClaim]:
    for each in instaslices:
        for uid, result in each.status.pod_allocation_results.items():
            request = each.spec.pod_allocation_requests.get(uid, PodAllocationRequest())
            status = result.allocation_status
            yield SliceClaim(
                source=f"Instaslice/{each.id}",
                pod=PodReference(namespace=request.pod_ref.namespace, name=request.pod_ref.name, uid=uid),
                profile=request.profile,
                gpu_uuid=result.gpu_uuid,
                node=result.nodename or each.name,
                start=None if result.mig_placement is None else result.mig_placement.start,
                size=None if result.mig_placement is None else result.mig_placement.size,
                profile_field=f"spec.podAllocationRequests[{uid}].profile",
                placement_field=f"status.podAllocationResults[{uid}].migPlacement",
                state=f"{status.allocation_status_controller}+{status.allocation_status_daemonset}",
            )


def slice_nodes(
    instaslices: Iterable[Instaslice], node_accelerators: Iterable[NodeAccelerator]
) -> Mapping[str, SliceNode]:
    """Return the nodes by name; generation 2 takes precedence over generation 1."""
    found: dict[str, SliceNode] = {}
    for old in instaslices:
        source = f"Instaslice/{old.id}"
        found[old.name] = _node(source, old.name, old.status.node_resources, old.status.conditions)
    for new in node_accelerators:
        found[new.name] = _node(f"NodeAccelerator/{new.id}", new.name, new.resources, new.conditions)
    return found


def _node(source: str, name: str, resources: NodeResources, conditions: tuple[Condition, ...]) -> SliceNode:
    ready = condition_of(conditions, "Ready")
    return SliceNode(
        source=source,
        name=name,
        gpus=resources.node_gpus,
        ready=None if ready is None or ready.status not in {"True", "False"} else ready.status == "True",
        reason="" if ready is None else ready.reason,
        boot_id=resources.boot_id,
        profiles=frozenset(canonical_mig_name(text) or text for text in resources.profiles),
    )
