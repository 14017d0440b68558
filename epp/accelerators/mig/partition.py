"""How a product can be divided by MIG, and what a slice has of its GPU."""

import math
from collections.abc import Sequence

from epp.accelerators.catalogue import CATALOGUE, Catalogue
from epp.accelerators.catalogue.product import GIB
from epp.accelerators.mig.layouts import MIG_GPUS, MigGpu
from epp.accelerators.mig.profile import MigProfile
from epp.framework.accelerators import Partition, Sharing

_SLOTS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slots that a number of compute slices usually goes with, of 8."""


def mig_gpu(product: str, memory_bytes: int | None = None, catalogue: Catalogue = CATALOGUE) -> MigGpu | None:
    """Return how a product can be divided; None where it can not, or is not known.

    `memory_bytes` of the whole device, where known, tells sizes of a model from each other.
    """
    known = catalogue.find(product, memory_bytes)
    if known is None or known.memory_bytes is None:
        return None
    return MIG_GPUS.get(f"{known.model}-{known.memory_bytes // GIB}gb")


def partition_of(
    profile: MigProfile, gpu: MigGpu | None = None, *, start: int | None = None, parent_id: str = "", sharers: int = 1
) -> Partition:
    """Return the slice's share of its GPU.

    Compute slices of 7 (A30: 4), memory slots of 8 (A30: 4), both divided by `sharers`, if the slice itself is shared.
    Where the GPU is not known, a known one with this profile is taken, and if there is none, the usual division. Of a
    compute instance the compute slices are its own, the memory is what it shares with its siblings.
    """
    slots, compute_total, memory_total = _share(profile, gpu or _likely_gpu(profile))
    compute = profile.compute_instance_slices or profile.compute_slices
    return Partition(
        kind=Sharing.MIG,
        profile=profile.name,
        compute_slices=compute,
        memory_slots=slots,
        compute_fraction=min(compute / compute_total, 1.0) / sharers,
        memory_fraction=min(slots / memory_total, 1.0) / sharers,
        start=start,
        parent_id=parent_id,
        media_extensions=profile.media_extensions,
        sharers=sharers,
    )


def joined(parts: Sequence[Partition]) -> Partition:
    """Return the one partition that all are; of different ones the average, without a profile.

    So count x share is right in both cases, and nobody takes the endpoint for one that has only the first.
    """
    first = parts[0]
    alike = {(part.kind, part.profile) for part in parts}
    if len(parts) == 1:
        return first
    same_parent = len({part.parent_id for part in parts}) == 1
    return Partition(
        kind=first.kind,
        profile=first.profile if len(alike) == 1 else "",
        compute_slices=min(part.compute_slices for part in parts),
        memory_slots=min(part.memory_slots for part in parts),
        compute_fraction=sum(part.compute_fraction for part in parts) / len(parts),
        memory_fraction=sum(part.memory_fraction for part in parts) / len(parts),
        parent_id=first.parent_id if same_parent else "",
        media_extensions=any(part.media_extensions for part in parts),
        sharers=max(part.sharers for part in parts),
    )


def _share(profile: MigProfile, gpu: MigGpu | None) -> tuple[int, int, int]:
    """Return memory slots of the profile, and compute slices and memory slots of the GPU."""
    if gpu is None:
        return _SLOTS.get(profile.compute_slices, profile.compute_slices), 7, 8
    layout = gpu.layout_of(profile.compute_slices, profile.memory_gb)
    if layout is not None:
        return layout.size, gpu.compute_slices, gpu.memory_slots
    slots = max(math.ceil(profile.memory_gb / gpu.memory_gb * gpu.memory_slots - 0.5), 1)
    return min(slots, gpu.memory_slots), gpu.compute_slices, gpu.memory_slots


def _likely_gpu(profile: MigProfile) -> MigGpu | None:
    """Return the largest GPU that has a profile of this name: where it takes the least of it."""
    having = [gpu for gpu in MIG_GPUS.values() if gpu.layout_of(profile.compute_slices, profile.memory_gb)]
    return max(having, key=lambda gpu: gpu.memory_gb, default=None)
