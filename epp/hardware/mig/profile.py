# SPDX-License-Identifier: Apache-2.0
"""MIG profiles, parsed from their names, and their placement on each GPU (`data/mig_gpus.yaml`)."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from epp.framework.quantities import GIB, canonical_mig_name
from epp.hardware.catalogue import read_table

_PARTS = re.compile(r"(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?P<attributes>.*)")
_ATTRIBUTE = re.compile(r"[+.]|(?=-)")


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG profile."""

    compute_slices: int
    """Compute slices of the GPU instance: 3 in `3g.20gb`."""
    memory_gb: int
    compute_instance_slices: int | None = None
    """Compute slices of the compute instance: 1 in `1c.3g.20gb`; None for the whole GPU instance."""
    attributes: tuple[str, ...] = ()
    """In the order of the name: `me`, `all`, `gfx`; `-me` means no media extensions."""

    @property
    def media_extensions(self) -> bool:
        """Whether the slice has the media extensions of the GPU; only one slice can have them."""
        return "me" in self.attributes

    @property
    def instance_name(self) -> str:
        """Canonical name of the GPU instance: `3g.20gb`, `1g.5gb+me`."""
        added = ".".join(name for name in self.attributes if not name.startswith("-"))
        removed = "".join(name for name in self.attributes if name.startswith("-"))
        return f"{self.compute_slices}g.{self.memory_gb}gb{added and '+' + added}{removed}"

    @property
    def name(self) -> str:
        """Canonical name of the GPU instance, or of a compute instance, such as `1c.3g.20gb`."""
        return (f"{self.compute_instance_slices}c." if self.compute_instance_slices else "") + self.instance_name

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
        compute_slices=int(match["compute"]),
        memory_gb=int(match["memory"]),
        compute_instance_slices=int(match["instance"]) if match["instance"] else None,
        attributes=tuple(name for name in _ATTRIBUTE.split(match["attributes"]) if name),
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
    """A GPU model and its division into slices."""

    name: str
    """Model and memory: `a100-40gb`."""
    memory_gb: int
    compute_slices: int
    memory_slots: int
    layouts: Mapping[str, SliceLayout]
    """By canonical profile."""

    def layout_of(self, compute_slices: int, memory_gb: int) -> SliceLayout | None:
        """Return the layout of slices of this size; None if unsupported."""
        for layout in self.layouts.values():
            if (layout.compute_slices, layout.memory_gb) == (compute_slices, memory_gb):
                return layout
        return None


class Placed(msgspec.Struct, frozen=True):
    """An existing slice."""

    profile: str
    """Profile in any spelling."""
    start: int
    """First memory slot."""
    size: int | None = None
    """Number of memory slots; by default that of the profile."""


def more_that_fit(gpu: MigGpu, occupied: Iterable[Placed] = ()) -> dict[str, int]:
    """Return the number of additional slices of each profile that fit, if all are of this profile.

    The result is exact: slices of one profile have the same size, so the first free place is optimal. At most one
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


def _gpus(table: _Table) -> Iterator[MigGpu]:
    for each in table.gpus:
        yield from (_gpu(each.model, memory, table.divisions[each.division]) for memory in each.memory)


MIG_GPUS: Mapping[str, MigGpu] = {gpu.name: gpu for gpu in _gpus(read_table("mig_gpus.yaml", _Table))}
"""By model and memory: `a100-40gb`."""
