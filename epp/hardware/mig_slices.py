# SPDX-License-Identifier: Apache-2.0
"""MIG slices allocated to pods by InstaSlice, without impossible profiles and placements."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from epp.framework.accelerators.tag import Routability
from epp.framework.quantities import canonical_mig_name
from epp.hardware.mig import mig_gpu, parse_mig_profile, placement_fault, profile_fault
from epp.kube.objects.base import Condition, condition_of, convert
from epp.kube.objects.core import Pod, PodReference
from epp.kube.objects.instaslice import (
    AllocationClaim,
    ClaimSpec,
    Instaslice,
    NodeAccelerator,
    NodeGpu,
    NodeResources,
    PodAllocationRequest,
)

_GONE = frozenset({"deleting", "deleted"})
_BEFORE_USE = frozenset({"created", "processing"})
_LEAVING = frozenset({"orphaned", "deleting", "deleted"})
Issue = tuple[str, str]
"""Source or name of an object, and field, value and remedy of a removed value."""
ANNOTATION = "mig.das.com/allocation"


class SliceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that is, or will be, allocated to a pod."""

    source: str
    """`AllocationClaim/das-operator/...`, `Instaslice/instaslice-system/gpu-node-1`."""
    pod: PodReference
    profile: str
    """Profile in the spelling of the object."""
    gpu_uuid: str = ""
    node: str = ""
    start: int | None = None
    size: int | None = None
    """Memory slots."""
    profile_field: str = "profile"
    placement_field: str = "migPlacement"
    state: str
    """`inUse` in generation 2; states of controller and daemonset, `ungated+created`, in generation 1."""
    config_map: str = ""
    """ConfigMap with the UUID of the slice, as `namespace/name`; empty in generation 2."""

    @property
    def keys(self) -> frozenset[str]:
        """Index keys: those of its pod, and `env:` followed by the ConfigMap."""
        return self.pod.keys | ({f"env:{self.config_map}"} if self.config_map else frozenset())

    @property
    def sound(self) -> bool:
        return parse_mig_profile(self.profile) is not None

    @property
    def tentative(self) -> bool:
        """Whether it is staged: the slice does not exist yet, and the scheduler may choose another node."""
        return self.state == "staged"

    @property
    def occupies(self) -> bool:
        return not self.tentative and not (self.state == "deleted" or self.state.endswith("+deleted"))

    def routability(self, *, pod_ready: bool) -> Routability:
        """Return whether an endpoint with this slice can serve requests."""
        if "+" in self.state:
            controller, _, daemonset = self.state.partition("+")
            if (controller, daemonset) == ("ungated", "created"):
                return Routability.ROUTABLE
            return Routability.DRAINING if {controller, daemonset} & _GONE else Routability.BLOCKED
        if self.state == "inUse" or (self.state in _BEFORE_USE and pod_ready):
            return Routability.ROUTABLE
        return Routability.DRAINING if self.state in _GONE | {"orphaned"} else Routability.BLOCKED


class SliceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose GPUs are divided on demand by InstaSlice."""

    source: str
    name: str
    gpus: tuple[NodeGpu, ...] = ()
    ready: bool | None = None
    reason: str = ""
    boot_id: str = ""
    profiles: frozenset[str] = frozenset()
    """Canonical MIG profiles for which the node reports placements."""

    def gpu(self, uuid: str) -> NodeGpu | None:
        return next((gpu for gpu in self.gpus if gpu.gpu_uuid == uuid), None)


def slice_claims(
    instaslices: Iterable[Instaslice], allocation_claims: Iterable[AllocationClaim]
) -> tuple[SliceClaim, ...]:
    """Return all slices without validation; those of generation 2 come first."""
    second = (_claim(each.spec, f"AllocationClaim/{each.id}", "spec", each.state) for each in allocation_claims)
    return (*second, *_first_generation(instaslices))


def without_duplicates(claims: Iterable[SliceClaim]) -> tuple[SliceClaim, ...]:
    """Return each slice once, even if both generations have it; one with a valid profile takes precedence."""
    found: dict[object, SliceClaim] = {}
    for claim in sorted(claims, key=lambda claim: not claim.sound):
        place = (claim.pod, claim.node, claim.gpu_uuid, claim.start)
        found.setdefault((claim.source, claim.pod) if claim.start is None else place, claim)
    return tuple(found.values())


def _claim(spec: ClaimSpec, source: str, fields: str, state: str, *, node: str = "") -> SliceClaim:
    """Return the slice of a claim of generation 2; `fields` is the place of its fields in messages."""
    place = spec.mig_placement
    return SliceClaim(
        source=source,
        pod=spec.pod_ref,
        profile=spec.profile,
        gpu_uuid=spec.gpu_uuid,
        node=spec.nodename or node,
        start=None if place is None else place.start,
        size=None if place is None else place.size,
        profile_field=f"{fields}.profile",
        placement_field=f"{fields}.migPlacement",
        state=state,
    )


def _first_generation(instaslices: Iterable[Instaslice]) -> Iterator[SliceClaim]:
    for each in instaslices:
        for uid, result in each.results.items():
            request = each.requests.get(uid, PodAllocationRequest())
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
                config_map=f"{request.pod_ref.namespace}/{result.config_map}" if result.config_map else "",
            )


def slice_nodes(
    instaslices: Iterable[Instaslice], node_accelerators: Iterable[NodeAccelerator]
) -> Mapping[str, SliceNode]:
    """Return the nodes by name; generation 2 takes precedence over generation 1."""
    found: dict[str, SliceNode] = {}
    for old in instaslices:
        source = f"Instaslice/{old.id}"
        found[old.name] = _node(source, old.name, old.resources, old.conditions)
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


class NodeGpus(msgspec.Struct, frozen=True):
    """Names and memory of the known GPUs of a node."""

    products: tuple[tuple[str, int | None], ...] = ()
    profiles: frozenset[str] = frozenset()
    """MIG profiles that the node reports."""

    def fault_of(self, profile: str) -> str:
        """Return why the GPUs do not support the profile; empty if one does, or may."""
        parsed = parse_mig_profile(profile)
        if parsed is not None and parsed.name in self.profiles:
            return ""
        faults = [profile_fault(profile, *product) for product in self.products] or [profile_fault(profile)]
        return faults[0] if all(faults) else ""


def sanitized_claims(
    claims: Iterable[SliceClaim], nodes: Mapping[str, SliceNode], gpus_of: Callable[[str], NodeGpus]
) -> tuple[tuple[SliceClaim, ...], tuple[Issue, ...]]:
    """Return each slice once, without impossible profiles and placements, and the removed values.

    `gpus_of` returns the GPUs of a node by its labels, for GPUs without a name. If two slices overlap, the one that is
    not in use loses its placement.
    """
    issues: list[Issue] = []
    found = without_duplicates([_sanitized(claim, nodes.get(claim.node), gpus_of, issues) for claim in claims])
    by_gpu: defaultdict[tuple[str, str], list[SliceClaim]] = defaultdict(list)
    for claim in found:
        if claim.gpu_uuid and claim.start is not None and claim.occupies and not _is_leaving(claim):
            by_gpu[claim.node, claim.gpu_uuid].append(claim)
    moved = {id(claim) for members in by_gpu.values() for claim in _overlapping(members, issues)}
    return tuple(_unplaced(claim) if id(claim) in moved else claim for claim in found), tuple(issues)


def sanitized_claim(
    claim: SliceClaim, node: SliceNode | None, others: NodeGpus
) -> tuple[SliceClaim, tuple[Issue, ...]]:
    """Return the slice without an impossible profile or placement, and the removed values."""
    issues: list[Issue] = []
    return _sanitized(claim, node, lambda _: others, issues), tuple(issues)


def _sanitized(
    claim: SliceClaim, node: SliceNode | None, gpus_of: Callable[[str], NodeGpus], issues: list[Issue]
) -> SliceClaim:
    gpu = None if node is None else node.gpu(claim.gpu_uuid)
    named = gpu is not None and bool(gpu.gpu_name)
    gpus = NodeGpus(((gpu.gpu_name, gpu.memory_bytes),)) if gpu is not None and named else gpus_of(claim.node)
    if node is not None:
        gpus = msgspec.structs.replace(gpus, profiles=node.profiles)
    if claim.profile and (fault := gpus.fault_of(claim.profile)):
        issues.append((claim.source, f"{claim.profile_field} {fault}"))
        claim = msgspec.structs.replace(claim, profile="")
    if claim.start is None or claim.size is None:
        return claim
    layout = mig_gpu(*gpus.products[0]) if len(gpus.products) == 1 else None
    if fault := placement_fault(claim.start, claim.size, parse_mig_profile(claim.profile), layout):
        issues.append((claim.source, f"{claim.placement_field} {fault}"))
        return _unplaced(claim)
    return claim


def _overlapping(claims: Sequence[SliceClaim], issues: list[Issue]) -> list[SliceClaim]:
    """Return the slices of one GPU that overlap others. Slices in use take precedence, then the first by name."""
    taken: dict[int, SliceClaim] = {}
    found: list[SliceClaim] = []
    for claim in sorted(claims, key=_by_trust):
        slots = range(claim.start or 0, (claim.start or 0) + (claim.size or 0))
        other = next((taken[slot] for slot in slots if slot in taken), None)
        if other is None:
            taken.update(dict.fromkeys(slots, claim))
        elif not _same_slice(claim, other):
            shown = f"{{size: {claim.size}, start: {claim.start}}}"
            remedy = f"where {other.source} is: write free memory slots, or delete one of the two"
            issues.append((claim.source, f"{claim.placement_field} is {shown}, {remedy}"))
            found.append(claim)
    return found


def _by_trust(claim: SliceClaim) -> tuple[bool, bool, str, str]:
    in_use = claim.routability(pod_ready=False) is Routability.ROUTABLE
    return not claim.sound, not in_use, claim.source, claim.pod.uid


def _same_slice(one: SliceClaim, other: SliceClaim) -> bool:
    """Return whether both describe the same slice of a pod."""
    return (one.start, one.size) == (other.start, other.size) and not one.pod.keys.isdisjoint(other.pod.keys)


def _is_leaving(claim: SliceClaim) -> bool:
    return not _LEAVING.isdisjoint(claim.state.split("+"))


def _unplaced(claim: SliceClaim) -> SliceClaim:
    return msgspec.structs.replace(claim, start=None, size=None)


def annotated_claims(pod: Pod, node: str) -> tuple[SliceClaim, ...]:
    """Return the slices in the annotation of a pod on `node`. Raises ValueError if it is unreadable."""
    text = pod.metadata.annotations.get(ANNOTATION, "")
    if not text:
        return ()
    try:
        entries = msgspec.json.decode(text, type=list[dict[str, object]])
    except msgspec.DecodeError:
        raise ValueError("it is no list of claims: write JSON as the device plugin does") from None
    specs = [convert(entry.get("spec", entry), ClaimSpec, f"[{index}]") for index, entry in enumerate(entries)]
    source = f"annotation {ANNOTATION}"
    return tuple(_claim(spec, source, f"[{index}]", "inUse", node=node) for index, spec in enumerate(specs))
