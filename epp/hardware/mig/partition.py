# SPDX-License-Identifier: Apache-2.0
"""Share that a slice has of its GPU."""

import math
from collections.abc import Sequence

from epp.framework.accelerators.tag import Partition, Sharing
from epp.framework.quantities import GIB
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.mig.layouts import MIG_GPUS, MigGpu
from epp.hardware.mig.profile import MigProfile

_SLOTS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Usual memory slots of 8, by number of compute slices."""

UNKNOWN_SLICE = Partition(kind=Sharing.MIG)
"""A slice of unknown size: only its GPU is known. The GPU's memory, price and speed do not apply to it."""


def is_unknown_slice(part: Partition) -> bool:
    """Return whether it is a slice without a profile or slots."""
    return part.kind is Sharing.MIG and not part.profile and not part.memory_slots and part.memory_fraction == 1


def mig_gpu(product: str, memory_bytes: int | None = None, catalogue: Catalogue = CATALOGUE) -> MigGpu | None:
    """Return the GPU model of a product; None if it is unknown or has no MIG.

    `memory_bytes` of the whole device distinguishes the sizes of a model.
    """
    known = catalogue.find(product, memory_bytes)
    if known is None or known.memory_bytes is None:
        return None
    return MIG_GPUS.get(f"{known.model}-{known.memory_bytes // GIB}gb")


def partition_of(
    profile: MigProfile, gpu: MigGpu | None = None, *, start: int | None = None, parent_id: str = "", sharers: int = 1
) -> Partition:
    """Return the share of a slice: compute slices of 7 (A30: 4), memory slots of 8 (A30: 4), both over `sharers`.

    For an unknown GPU, the largest one with this profile is assumed, else the usual division. The memory of a compute
    instance is that of its GPU instance.
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
    """Return equal partitions as one, different ones as their average without a profile.

    Thus count x share is right in both cases.
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
    """Return the memory slots of the profile, and compute slices and memory slots of the GPU."""
    if gpu is None:
        return _SLOTS.get(profile.compute_slices, profile.compute_slices), 7, 8
    layout = gpu.layout_of(profile.compute_slices, profile.memory_gb)
    if layout is not None:
        return layout.size, gpu.compute_slices, gpu.memory_slots
    slots = max(math.ceil(profile.memory_gb / gpu.memory_gb * gpu.memory_slots - 0.5), 1)
    return min(slots, gpu.memory_slots), gpu.compute_slices, gpu.memory_slots


def _likely_gpu(profile: MigProfile) -> MigGpu | None:
    """Return the largest GPU with a profile of this name: its smallest possible share."""
    having = [gpu for gpu in MIG_GPUS.values() if gpu.layout_of(profile.compute_slices, profile.memory_gb)]
    return max(having, key=lambda gpu: gpu.memory_gb, default=None)
