# SPDX-License-Identifier: Apache-2.0
"""Vetting of slices: profiles and placements that their GPU cannot have are left out."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from epp.framework.accelerators.tag import Routability
from epp.hardware.mig.partition import mig_gpu
from epp.hardware.mig.possible import placement_fault, profile_fault
from epp.hardware.mig.profile import parse_mig_profile
from epp.hardware.mig.slices import SliceClaim, SliceNode, without_duplicates

_LEAVING = frozenset({"orphaned", "deleting", "deleted"})

Doubt = tuple[str, str]
"""Source or name of an object, and field, value and remedy of what is left out of it."""


class NodeGpus(msgspec.Struct, frozen=True):
    """Names and memory of the GPUs of a node, as far as they are known."""

    products: tuple[tuple[str, int | None], ...] = ()
    profiles: frozenset[str] = frozenset()
    """MIG profiles that the node says it can have."""

    def fault_of(self, profile: str) -> str:
        """Return why none of the GPUs can have the profile; empty if one can, or may."""
        parsed = parse_mig_profile(profile)
        if parsed is not None and parsed.name in self.profiles:
            return ""
        faults = [profile_fault(profile, *product) for product in self.products] or [profile_fault(profile)]
        return faults[0] if all(faults) else ""


def vetted_claims(
    claims: Iterable[SliceClaim], nodes: Mapping[str, SliceNode], gpus_of: Callable[[str], NodeGpus]
) -> tuple[tuple[SliceClaim, ...], tuple[Doubt, ...]]:
    """Return each slice once, without profiles and placements that are impossible, and what was left out.

    `gpus_of` returns the GPUs of a node by its labels, for GPUs without a name. Of two slices at the same place, the
    one that is not in use loses its placement.
    """
    doubts: list[Doubt] = []
    found = without_duplicates([_vetted(claim, nodes.get(claim.node), gpus_of, doubts) for claim in claims])
    by_gpu: defaultdict[tuple[str, str], list[SliceClaim]] = defaultdict(list)
    for claim in found:
        if claim.gpu_uuid and claim.start is not None and claim.occupies and not _is_leaving(claim):
            by_gpu[claim.node, claim.gpu_uuid].append(claim)
    moved = {id(claim) for members in by_gpu.values() for claim in _overlapping(members, doubts)}
    return tuple(_unplaced(claim) if id(claim) in moved else claim for claim in found), tuple(doubts)


def vetted_claim(claim: SliceClaim, node: SliceNode | None, others: NodeGpus) -> tuple[SliceClaim, tuple[Doubt, ...]]:
    """Return the slice without an impossible profile or placement, and what was left out."""
    doubts: list[Doubt] = []
    return _vetted(claim, node, lambda _: others, doubts), tuple(doubts)


def _vetted(
    claim: SliceClaim, node: SliceNode | None, gpus_of: Callable[[str], NodeGpus], doubts: list[Doubt]
) -> SliceClaim:
    gpu = None if node is None else node.gpu(claim.gpu_uuid)
    named = gpu is not None and bool(gpu.gpu_name)
    gpus = NodeGpus(((gpu.gpu_name, gpu.memory_bytes),)) if gpu is not None and named else gpus_of(claim.node)
    if node is not None:
        gpus = msgspec.structs.replace(gpus, profiles=node.profiles)
    if claim.profile and (fault := gpus.fault_of(claim.profile)):
        doubts.append((claim.source, f"{claim.profile_field} {fault}"))
        claim = msgspec.structs.replace(claim, profile="")
    if claim.start is None or claim.size is None:
        return claim
    layout = mig_gpu(*gpus.products[0]) if len(gpus.products) == 1 else None
    if fault := placement_fault(claim.start, claim.size, parse_mig_profile(claim.profile), layout):
        doubts.append((claim.source, f"{claim.placement_field} {fault}"))
        return _unplaced(claim)
    return claim


def _overlapping(claims: Sequence[SliceClaim], doubts: list[Doubt]) -> list[SliceClaim]:
    """Return the slices of one GPU to drop because they overlap. Slices in use stay, then the first by name."""
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
            doubts.append((claim.source, f"{claim.placement_field} is {shown}, {remedy}"))
            found.append(claim)
    return found


def _by_trust(claim: SliceClaim) -> tuple[bool, bool, str, str]:
    in_use = claim.routability(pod_ready=False) is Routability.ROUTABLE
    return not claim.sound, not in_use, claim.source, claim.pod.uid


def _same_slice(one: SliceClaim, other: SliceClaim) -> bool:
    """Return whether both describe one slice of one pod."""
    return (one.start, one.size) == (other.start, other.size) and not one.pod.keys.isdisjoint(other.pod.keys)


def _is_leaving(claim: SliceClaim) -> bool:
    return not _LEAVING.isdisjoint(claim.state.split("+"))


def _unplaced(claim: SliceClaim) -> SliceClaim:
    return msgspec.structs.replace(claim, start=None, size=None)
