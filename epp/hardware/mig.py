# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: names, placement on each GPU (`data/mig_gpus.yaml`), and the share of its GPU that a slice has."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from epp.framework.accelerators.tag import Partition, Sharing
from epp.framework.quantities import GIB, canonical_mig_name
from epp.hardware.catalogue import CATALOGUE, Catalogue, Product, read_table

_PARTS = re.compile(r"(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?P<attributes>.*)")


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Canonical name of the GPU instance, or of a compute instance, such as `1c.3g.20gb`."""
    compute_slices: int
    """Compute slices of the GPU instance: 3 in `3g.20gb`."""
    memory_gb: int
    compute_instance_slices: int | None = None
    """Compute slices of the compute instance: 1 in `1c.3g.20gb`; None for the whole GPU instance."""
    media_extensions: bool = False
    """Whether the slice has the media extensions of the GPU; only one slice can have them."""

    @property
    def instance_name(self) -> str:
        """Canonical name of the GPU instance: `3g.20gb`, `1g.5gb+me`."""
        return self.name.removeprefix(f"{self.compute_instance_slices}c.")

    @property
    def memory_bytes(self) -> int:
        """Memory according to the name, whose GB are GiB."""
        return self.memory_gb * GIB


def parse_mig_profile(text: str) -> MigProfile | None:
    """Return the profile of a name in any spelling of `canonical_mig_name`; None for any other text."""
    match = _PARTS.fullmatch(canonical_mig_name(text) or "")
    if match is None:
        return None
    return MigProfile(
        name=match[0],
        compute_slices=int(match["compute"]),
        memory_gb=int(match["memory"]),
        compute_instance_slices=int(match["instance"]) if match["instance"] else None,
        media_extensions="me" in re.split("[+.]|(?=-)", match["attributes"]),
    )


class SliceLayout(msgspec.Struct, frozen=True):
    """Placements of one profile, in memory slots."""

    profile: str
    """Canonical name."""
    compute_slices: int
    memory_gb: int
    size: int
    starts: tuple[int, ...]
    media_extensions: bool = False


class MigGpu(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Model and memory: `a100-40gb`."""
    memory_gb: int
    compute_slices: int
    memory_slots: int
    layouts: Mapping[str, SliceLayout]
    """Keyed by canonical profile."""

    def layout_of(self, compute_slices: int, memory_gb: int) -> SliceLayout | None:
        size = compute_slices, memory_gb
        return next((each for each in self.layouts.values() if (each.compute_slices, each.memory_gb) == size), None)


class Placed(msgspec.Struct, frozen=True):
    profile: str
    start: int
    """First memory slot."""
    size: int | None = None
    """Number of memory slots; by default that of the profile."""


def more_that_fit(gpu: MigGpu, occupied: Iterable[Placed] = ()) -> dict[str, int]:
    """Return the number of additional slices of each profile that fit, if all are of this profile.

    The result is exact: slices of one profile have the same size, so the first free place is optimal. At most one
    slice of a GPU can have media extensions. Slots outside the GPU, and unknown profiles without a size, are ignored.
    """
    taken, has_media = set[int](), False
    for one in occupied:
        profile = parse_mig_profile(one.profile)
        layout = gpu.layout_of(profile.compute_slices, profile.memory_gb) if profile else None
        size = one.size if one.size is not None else layout.size if layout else 0
        taken.update(range(one.start, one.start + size))
        has_media = has_media or (profile is not None and profile.media_extensions)
    return {
        name: 0 if layout.media_extensions and has_media else _places(layout, taken)
        for name, layout in gpu.layouts.items()
    }


def _places(layout: SliceLayout, taken: set[int]) -> int:
    end = count = 0
    for start in layout.starts:
        if start >= end and taken.isdisjoint(range(start, start + layout.size)):
            count, end = count + 1, start + layout.size
    return min(count, 1) if layout.media_extensions else count


class _Slice(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    compute: int
    slots: int
    starts: tuple[int, ...]
    media_extensions: bool = False


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    memory: tuple[int, ...]
    """GB."""
    division: str


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpus: tuple[_Model, ...]
    divisions: Mapping[str, tuple[_Slice, ...]]


def _gpu(model: str, memory_gb: int, slices: Sequence[_Slice]) -> MigGpu:
    """Return the GPU; names of profiles contain their share of its memory in GB, rounded half up."""
    whole = slices[-1]
    layouts = []
    for each in slices:
        gigabytes = math.floor(memory_gb * each.slots / whole.slots + 0.5)
        profile = f"{each.compute}g.{gigabytes}gb" + ("+me" if each.media_extensions else "")
        layouts.append(SliceLayout(profile, each.compute, gigabytes, each.slots, each.starts, each.media_extensions))
    return MigGpu(
        name=f"{model}-{memory_gb}gb",
        memory_gb=memory_gb,
        compute_slices=whole.compute,
        memory_slots=whole.slots,
        layouts={layout.profile: layout for layout in layouts},
    )


_TABLE = read_table("mig_gpus.yaml", _Table)
MIG_GPUS: Mapping[str, MigGpu] = {
    f"{each.model}-{memory}gb": _gpu(each.model, memory, _TABLE.divisions[each.division])
    for each in _TABLE.gpus
    for memory in each.memory
}
"""Keyed by model and memory: `a100-40gb`."""


_SLOTS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Usual number of memory slots, of 8, by number of compute slices."""

UNKNOWN_SLICE = Partition(kind=Sharing.MIG)
"""A slice of unknown size: memory, price and speed of its GPU do not apply to it."""
_MOST_SLOTS = 8
_ROUNDING = 0.07
"""Tolerance for the memory in a name: drivers round it to `1g.23gb` or `1g.24gb`."""


def is_unknown_slice(part: Partition) -> bool:
    return part.kind is Sharing.MIG and not part.profile and not part.memory_slots and part.memory_fraction == 1


def mig_gpu(product: str, memory_bytes: int | None = None, catalogue: Catalogue = CATALOGUE) -> MigGpu | None:
    """Return the GPU model of a product; None if it is unknown or has no MIG.

    `memory_bytes` of the whole device distinguishes the sizes of a model.
    """
    known = catalogue.find(product, memory_bytes)
    return None if known is None else _division(known)


def partition_of(
    profile: MigProfile, gpu: MigGpu | None = None, *, start: int | None = None, parent_id: str = "", sharers: int = 1
) -> Partition:
    """Return the share of a slice: compute slices of 7 (A30: 4), memory slots of 8 (A30: 4), both over `sharers`.

    An unknown GPU is assumed to be the largest one with this profile, or to have the usual division. The memory of a
    compute instance is that of its GPU instance.
    """
    compute_total, memory_total, slots = 7, 8, _SLOTS.get(profile.compute_slices, profile.compute_slices)
    if gpu is None:
        having = [gpu for gpu in MIG_GPUS.values() if gpu.layout_of(profile.compute_slices, profile.memory_gb)]
        gpu = max(having, key=lambda gpu: gpu.memory_gb, default=None)
    if gpu is not None:
        compute_total, memory_total = gpu.compute_slices, gpu.memory_slots
        slots = min(max(math.ceil(profile.memory_gb / gpu.memory_gb * memory_total - 0.5), 1), memory_total)
        if (layout := gpu.layout_of(profile.compute_slices, profile.memory_gb)) is not None:
            slots = layout.size
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


def equal_share(kind: Sharing, sharers: int) -> Partition:
    return Partition(kind=kind, compute_fraction=1 / sharers, memory_fraction=1 / sharers, sharers=sharers)


def joined(parts: Sequence[Partition]) -> Partition:
    """Return equal partitions as one, and different ones as their average without a profile.

    In both cases, count times share is the total.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    return Partition(
        kind=first.kind,
        profile=first.profile if len({(part.kind, part.profile) for part in parts}) == 1 else "",
        compute_slices=min(part.compute_slices for part in parts),
        memory_slots=min(part.memory_slots for part in parts),
        compute_fraction=sum(part.compute_fraction for part in parts) / len(parts),
        memory_fraction=sum(part.memory_fraction for part in parts) / len(parts),
        parent_id=first.parent_id if len({part.parent_id for part in parts}) == 1 else "",
        media_extensions=any(part.media_extensions for part in parts),
        sharers=max(part.sharers for part in parts),
    )


@lru_cache(maxsize=1024)  # a fleet has few products, and many pods
def profile_fault(
    text: str, product: str = "", memory_bytes: int | None = None, catalogue: Catalogue = CATALOGUE
) -> str:
    """Return why the product does not support the profile, with a remedy; empty if it does, or may.

    The text begins like `is '3g.40gb', ...`. `memory_bytes` is the memory of the whole GPU, if known.
    """
    profile = parse_mig_profile(text)
    if profile is None:
        return f"is {text!r:.60}: write a MIG profile such as 3g.20gb"
    if (profile.compute_instance_slices or 0) > profile.compute_slices:
        return f"is {text!r:.60}, more compute slices than the slice has: write {profile.instance_name}"
    if not product:
        return ""
    meant = catalogue.meant(product, memory_bytes)
    gpus = tuple(gpu for each in meant if (gpu := _division(each)) is not None)
    if not meant or any(layout_like(gpu, profile) for gpu in gpus):
        return ""
    if gpus:
        names = ", ".join(dict.fromkeys(name for gpu in gpus for name in gpu.layouts))
        return f"is {text!r:.60}, which {product!r:.60} cannot have: write one of {names}"
    return "" if any(map(_may_be_divided, meant)) else f"is {text!r:.60}, but {product!r:.60} has no MIG: leave it out"


def placement_fault(start: int, size: int, profile: MigProfile | None, gpu: MigGpu | None) -> str:
    """Return why a slice of the profile cannot have these memory slots, with a remedy; empty if it can."""
    slots = _MOST_SLOTS if gpu is None else gpu.memory_slots
    shown = f"is {{size: {size}, start: {start}}}"
    if start < 0 or size < 1 or start + size > slots:
        return f"{shown}, beyond the {slots} memory slots of the GPU: write slots that it has"
    layout = None if gpu is None or profile is None else layout_like(gpu, profile)
    if layout is None or (size == layout.size and start in layout.starts):
        return ""
    starts = ", ".join(map(str, layout.starts))
    return f"{shown}, where no {layout.profile} can be: write size {layout.size} and start {starts}"


def layout_like(gpu: MigGpu, profile: MigProfile) -> SliceLayout | None:
    """Return the layout of the profile; the memory in its name may be rounded differently."""
    for layout in gpu.layouts.values():
        is_near = abs(profile.memory_gb - layout.memory_gb) <= _ROUNDING * layout.memory_gb
        if profile.compute_slices == layout.compute_slices and is_near:
            return layout
    return None


def _division(product: Product) -> MigGpu | None:
    return MIG_GPUS.get(f"{product.model}-{(product.memory_bytes or 0) // GIB}gb")


def _may_be_divided(product: Product) -> bool:
    """Return whether the product may support MIG: some of NVIDIA do since compute capability 8.0."""
    if product.vendor != "nvidia":
        return product.vendor == ""
    capability = product.compute_capability
    return capability is None or capability == (8, 0) or capability >= (9, 0)
