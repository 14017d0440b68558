# SPDX-License-Identifier: Apache-2.0
"""Placement of slices on each GPU, and the number of slices that fit beside existing ones."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from epp.accelerators.mig.profile import MigProfile, parse_mig_profile


class Layout(msgspec.Struct, frozen=True):
    """Placements of one profile, in memory slots."""

    profile: str
    """Canonical name."""
    compute_slices: int
    memory_gb: int
    size: int
    starts: tuple[int, ...]
    media_extensions: bool = False


class MigGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU model, and its division into slices."""

    name: str
    """Model and memory: `a100-40gb`."""
    memory_gb: int
    compute_slices: int
    memory_slots: int
    layouts: Mapping[str, Layout]
    """By canonical profile."""

    def layout_of(self, compute_slices: int, memory_gb: int) -> Layout | None:
        """Return the layout of slices of this shape; None if the GPU has none."""
        for layout in self.layouts.values():
            if (layout.compute_slices, layout.memory_gb) == (compute_slices, memory_gb):
                return layout
        return None


class Placed(msgspec.Struct, frozen=True):
    """An existing slice."""

    profile: str
    """In any spelling."""
    start: int
    """First memory slot."""
    size: int | None = None
    """Memory slots; by default those of the profile."""


def more_that_fit(gpu: MigGpu, occupied: Iterable[Placed] = ()) -> dict[str, int]:
    """Return for each profile the number of slices that still fit, if all are of this profile.

    Exact: slices of one profile have one size, so that always taking the first free place finds the most. At most one
    slice of a GPU can have media extensions. Slots outside the GPU, and unknown profiles without a size, are ignored.
    """
    placed = [(one, parse_mig_profile(one.profile)) for one in occupied]
    taken = {slot for one, profile in placed for slot in _slots(gpu, one, profile)}
    has_media = any(profile.media_extensions for _, profile in placed if profile)
    return {
        name: 0 if layout.media_extensions and has_media else _places(layout, taken)
        for name, layout in gpu.layouts.items()
    }


def _slots(gpu: MigGpu, placed: Placed, profile: MigProfile | None) -> range:
    size = placed.size
    if size is None:
        layout = gpu.layout_of(profile.compute_slices, profile.memory_gb) if profile else None
        size = 0 if layout is None else layout.size
    return range(placed.start, placed.start + size)


def _places(layout: Layout, taken: set[int]) -> int:
    end = count = 0
    for start in layout.starts:
        if start >= end and taken.isdisjoint(range(start, start + layout.size)):
            count, end = count + 1, start + layout.size
    return min(count, 1) if layout.media_extensions else count


# Compute slices, memory slots, first slots, media extensions
_SEVENTHS = (
    (1, 1, range(7), False),
    (1, 1, range(7), True),
    (1, 2, range(0, 8, 2), False),
    (2, 2, range(0, 6, 2), False),
    (3, 4, range(0, 8, 4), False),
    (4, 4, range(1), False),
    (7, 8, range(1), False),
)
_QUARTERS = (
    (1, 1, range(4), False),
    (1, 1, range(4), True),
    (2, 2, range(0, 4, 2), False),
    (2, 2, range(0, 4, 2), True),
    (4, 4, range(1), False),
)
_RTX_QUARTERS = (
    (1, 1, range(4), False),
    (1, 1, range(4), True),
    (2, 2, range(0, 4, 2), False),
    (4, 4, range(1), False),
)
_RTX_HALVES = ((1, 1, range(2), False), (1, 1, range(2), True), (2, 2, range(1), False))

_Rows: TypeAlias = tuple[tuple[int, int, range, bool], ...]


def _gpu(model: str, memory_gb: int, rows: _Rows = _SEVENTHS) -> MigGpu:
    """Return the GPU; names of profiles have their share of its memory in GB, rounded half up."""
    compute_total, slots, *_ = rows[-1]
    layouts = []
    for compute, size, starts, media in rows:
        gigabytes = math.floor(memory_gb * size / slots + 0.5)
        profile = f"{compute}g.{gigabytes}gb" + ("+me" if media else "")
        layouts.append(Layout(profile, compute, gigabytes, size, tuple(starts), media))
    return MigGpu(
        name=f"{model}-{memory_gb}gb",
        memory_gb=memory_gb,
        compute_slices=compute_total,
        memory_slots=slots,
        layouts={layout.profile: layout for layout in layouts},
    )


MIG_GPUS: Mapping[str, MigGpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a30", 24, _QUARTERS),
        _gpu("a100", 40),
        _gpu("a100", 80),
        _gpu("h100", 80),
        _gpu("h100", 94),
        _gpu("h100", 96),
        _gpu("h20", 96),
        _gpu("h20", 141),
        _gpu("gh200", 96),
        _gpu("gh200", 144),
        _gpu("h200", 141),
        _gpu("b200", 180),
        _gpu("gb200", 186),
        _gpu("rtx-pro-6000", 96, _RTX_QUARTERS),
        _gpu("rtx-pro-5000", 48, _RTX_HALVES),
        _gpu("rtx-pro-5000", 72, _RTX_HALVES),
        _gpu("rtx-pro-4500", 32, _RTX_HALVES),
    )
}
"""By model and memory: `a100-40gb`."""
