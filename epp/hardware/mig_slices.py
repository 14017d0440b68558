# SPDX-License-Identifier: Apache-2.0
"""MIG slices allocated to pods by InstaSlice, without impossible profiles and placements."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from epp.framework.accelerators.tag import Routability
from epp.framework.quantities import canonical_mig_name
from epp.hardware.mig import mig_gpu, parse_mig_profile, placement_fault, profile_fault
from epp.kube.objects.base import condition_of, convert
from epp.kube.objects.core import Pod, PodReference
from epp.kube.objects.instaslice import (
    AllocationClaim,
    ClaimSpec,
    Instaslice,
    NodeAccelerator,
    NodeGpu,
    PodAllocationRequest,
)

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
        return not self.tentative and self.state.rpartition("+")[2] != "deleted"

    @property
    def is_leaving(self) -> bool:
        return not _LEAVING.isdisjoint(self.state.split("+"))

    def routability(self, *, pod_ready: bool) -> Routability:
        if self.state in {"inUse", "ungated+created"} or (self.state in _BEFORE_USE and pod_ready):
            return Routability.ROUTABLE
        return Routability.DRAINING if self.is_leaving else Routability.BLOCKED


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
) -> Iterator[SliceClaim]:
    """Yield all slices without validation; those of generation 2 come first."""
    for claim in allocation_claims:
        yield _claim(claim.spec, f"AllocationClaim/{claim.id}", claim.state, "spec.profile", "spec.migPlacement")
    for each in instaslices:
        for uid, result in each.results.items():
            request = each.requests.get(uid, PodAllocationRequest())
            space, status = request.pod_ref.namespace, result.allocation_status
            spec = ClaimSpec(
                profile=request.profile,
                pod_ref=PodReference(namespace=space, name=request.pod_ref.name, uid=uid),
                mig_placement=result.mig_placement,
                gpu_uuid=result.gpu_uuid,
                nodename=result.nodename or each.name,
            )
            yield _claim(
                spec,
                f"Instaslice/{each.id}",
                f"{status.allocation_status_controller}+{status.allocation_status_daemonset}",
                f"spec.podAllocationRequests[{uid}].profile",
                f"status.podAllocationResults[{uid}].migPlacement",
                config_map=f"{space}/{result.config_map}" if result.config_map else "",
            )


def _claim(
    spec: ClaimSpec,
    source: str,
    state: str,
    profile_field: str,
    placement_field: str,
    *,
    node: str = "",
    config_map: str = "",
) -> SliceClaim:
    place = spec.mig_placement
    return SliceClaim(
        source=source,
        pod=spec.pod_ref,
        profile=spec.profile,
        gpu_uuid=spec.gpu_uuid,
        node=spec.nodename or node,
        start=None if place is None else place.start,
        size=None if place is None else place.size,
        profile_field=profile_field,
        placement_field=placement_field,
        state=state,
        config_map=config_map,
    )


def slice_nodes(
    instaslices: Iterable[Instaslice], node_accelerators: Iterable[NodeAccelerator]
) -> Mapping[str, SliceNode]:
    """Return the nodes by name; generation 2 takes precedence over generation 1."""
    found: dict[str, SliceNode] = {}
    nodes: Iterable[Instaslice | NodeAccelerator] = (*instaslices, *node_accelerators)
    for each in nodes:
        ready = condition_of(each.conditions, "Ready")
        found[each.name] = SliceNode(
            source=f"{type(each).__name__}/{each.id}",
            name=each.name,
            gpus=each.resources.node_gpus,
            ready=None if ready is None or ready.status not in {"True", "False"} else ready.status == "True",
            reason="" if ready is None else ready.reason,
            boot_id=each.resources.boot_id,
            profiles=frozenset(canonical_mig_name(text) or text for text in each.resources.profiles),
        )
    return found


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

    `gpus_of` returns the GPUs of a node by its labels, for GPUs without a name. If both generations have a slice, one
    with a valid profile takes precedence. If two slices overlap, the one that is not in use loses its placement.
    """
    pairs = [sanitized_claim(claim, nodes.get(claim.node), gpus_of(claim.node)) for claim in claims]
    issues = [issue for _, of_claim in pairs for issue in of_claim]
    found: dict[object, SliceClaim] = {}
    for claim in sorted((claim for claim, _ in pairs), key=lambda claim: not claim.sound):
        place = (claim.pod, claim.node, claim.gpu_uuid, claim.start)
        found.setdefault((claim.source, claim.pod) if claim.start is None else place, claim)
    by_gpu: defaultdict[tuple[str, str], list[SliceClaim]] = defaultdict(list)
    for claim in found.values():
        if claim.gpu_uuid and claim.start is not None and claim.occupies and not claim.is_leaving:
            by_gpu[claim.node, claim.gpu_uuid].append(claim)
    moved = {id(claim) for members in by_gpu.values() for claim in _overlapping(members, issues)}
    return tuple(_unplaced(claim) if id(claim) in moved else claim for claim in found.values()), tuple(issues)


def sanitized_claim(claim: SliceClaim, node: SliceNode | None, others: NodeGpus) -> tuple[SliceClaim, list[Issue]]:
    """Return the slice without an impossible profile or placement, and the removed values.

    `others` are the GPUs of the node by its labels, for a GPU without a name.
    """
    issues: list[Issue] = []
    gpu = None if node is None else node.gpu(claim.gpu_uuid)
    gpus = NodeGpus(((gpu.gpu_name, gpu.memory_bytes),)) if gpu is not None and gpu.gpu_name else others
    if node is not None:
        gpus = msgspec.structs.replace(gpus, profiles=node.profiles)
    if claim.profile and (fault := gpus.fault_of(claim.profile)):
        issues.append((claim.source, f"{claim.profile_field} {fault}"))
        claim = msgspec.structs.replace(claim, profile="")
    if claim.start is not None and claim.size is not None:
        layout = mig_gpu(*gpus.products[0]) if len(gpus.products) == 1 else None
        if fault := placement_fault(claim.start, claim.size, parse_mig_profile(claim.profile), layout):
            issues.append((claim.source, f"{claim.placement_field} {fault}"))
            claim = _unplaced(claim)
    return claim, issues


def _overlapping(claims: Sequence[SliceClaim], issues: list[Issue]) -> list[SliceClaim]:
    """Return the slices of one GPU that overlap others. Slices in use take precedence, then the first by name."""
    taken: dict[int, SliceClaim] = {}
    found: list[SliceClaim] = []
    for claim in sorted(claims, key=_by_trust):
        slots = range(claim.start or 0, (claim.start or 0) + (claim.size or 0))
        other = next((taken[slot] for slot in slots if slot in taken), None)
        if other is None:
            taken.update(dict.fromkeys(slots, claim))
        elif (claim.start, claim.size) != (other.start, other.size) or claim.pod.keys.isdisjoint(other.pod.keys):
            shown = f"{{size: {claim.size}, start: {claim.start}}}"
            remedy = f"where {other.source} is: write free memory slots, or delete one of the two"
            issues.append((claim.source, f"{claim.placement_field} is {shown}, {remedy}"))
            found.append(claim)
    return found


def _by_trust(claim: SliceClaim) -> tuple[bool, bool, str, str]:
    in_use = claim.routability(pod_ready=False) is Routability.ROUTABLE
    return not claim.sound, not in_use, claim.source, claim.pod.uid


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
        raise ValueError("it is not a list of claims: write JSON as the device plugin does") from None
    specs = [convert(entry.get("spec", entry), ClaimSpec, f"[{index}]") for index, entry in enumerate(entries)]
    return tuple(
        _claim(spec, f"annotation {ANNOTATION}", "inUse", f"[{index}].profile", f"[{index}].migPlacement", node=node)
        for index, spec in enumerate(specs)
    )
