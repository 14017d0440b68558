"""Prefers the smallest slice of a device that is large enough, so that larger ones stay free for what needs them."""

from math import isfinite

from epp.framework import Candidates, Category, Floats, Parameters, Request, Scorer
from epp.framework.accelerator_arrays import tag_numbers
from epp.framework.accelerator_requirements import Memory, read_memory
from epp.framework.accelerators import AcceleratorKind, AcceleratorTag
from epp.framework.limits import Count
from epp.framework.memory import memory_suffices
from epp.framework.snapshot import ACCELERATOR

_SLOTS = 8
"""Of a whole device."""


class SliceFitParameters(Parameters, frozen=True):
    """What the requests need of one slice, or one device."""

    min_memory: Memory | None = None
    """Memory: a quantity such as `20Gi`, or a number of GiB."""
    min_compute_slices: Count | None = None
    """Compute slices, of which most devices have 7; a whole device counts as 8."""

    def __post_init__(self) -> None:
        """Refuse memory that is no size."""
        read_memory("minMemory", self.min_memory)


class SliceFitScorer(Scorer[SliceFitParameters]):
    """`need / have` where a slice has enough, 0 where it is too small.

    That is `minMemory / memory` where that is set, else `minComputeSlices / computeSlices`, else one memory slot over
    those that it has. A whole device counts as 8 of each, so it fits worst; memory may be 3 % short, since nominal
    sizes are rounded up. Endpoints on CPUs, and such as do not say how large they are, get 0.
    """

    plugin_type = "slice-fit-scorer"
    category = Category.AFFINITY
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        self._need_bytes = read_memory("minMemory", self.parameters.min_memory)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return tag_numbers(candidates, self._fit)

    def _fit(self, tag: AcceleratorTag) -> float:
        need = self.parameters.min_compute_slices
        compute = tag.partition.compute_slices or _SLOTS * tag.partition.compute_fraction
        if not _has_size(tag) or (need is not None and compute < need):
            return 0.0
        if self._need_bytes is not None:
            return _memory_fit(tag.memory_bytes or 0, self._need_bytes)
        if need is not None:
            return need / compute
        slots = tag.partition.memory_slots or _SLOTS * tag.partition.memory_fraction
        return min(1.0, 1.0 / slots) if isfinite(slots) and slots > 0 else 0.0


def _memory_fit(have_bytes: int, need_bytes: int) -> float:
    return min(1.0, need_bytes / have_bytes) if memory_suffices(have_bytes, need_bytes) else 0.0


def _has_size(tag: AcceleratorTag) -> bool:
    """Whether there is a device, as far as anybody says."""
    return tag.has_accelerator or (tag.kind is AcceleratorKind.UNKNOWN and bool(tag.memory_bytes or tag.count))
