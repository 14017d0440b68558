# SPDX-License-Identifier: Apache-2.0
"""Prefer GPU slices that fit the request and leave room for others."""

from math import isfinite, nan
from typing import Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    Category,
    Count,
    Floats,
    Parameters,
    Request,
    Scorer,
    tag_numbers,
)
from epp.framework.accelerators.requirements import Memory, read_memory
from epp.framework.accelerators.tag import SLOTS_FREE, SLOTS_TOTAL, AcceleratorKind
from epp.framework.quantities import memory_suffices

_SLOTS = 8
"""Slots of a whole device."""


class SliceFitParameters(Parameters, frozen=True):
    """Requirements on one slice or device."""

    min_memory: Memory | None = None
    """Memory: a quantity such as `20Gi`, or a number of GiB."""
    min_compute_slices: Count | None = None
    """Compute slices; most devices have 7, a whole device counts as 8."""

    def __post_init__(self) -> None:
        """Check the amount of memory."""
        read_memory("minMemory", self.min_memory)


class SliceFitScorer(Scorer[SliceFitParameters]):
    """`need / have` if the slice is large enough, else 0.

    This is `minMemory / memory` if set, else `minComputeSlices / computeSlices`, else 1 over the slice's memory slots.
    A whole device counts as 8 of each, so it fits worst. Memory 3 % below `minMemory` is accepted, because devices
    report less than their nominal size. Endpoints on CPUs and those of unknown size get 0.
    """

    plugin_type = "slice-fit-scorer"
    category = Category.AFFINITY
    zero_means = "has too small a slice, or one of unknown size"
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        self._need_bytes = read_memory("minMemory", self.parameters.min_memory)

    def score(self, request: Request, candidates: Candidates) -> Floats:
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
    """Whether the endpoint has a device, as far as is known."""
    return tag.has_accelerator or (tag.kind is AcceleratorKind.UNKNOWN and bool(tag.memory_bytes or tag.count))


class SliceHeadroomParameters(Parameters, frozen=True):
    """Direction of the preference."""

    mode: Literal["spread", "pack"] = "spread"
    """`spread` prefers nodes with many free slots, `pack` nodes with few."""


class SliceHeadroomScorer(Scorer[SliceHeadroomParameters]):
    """`freeSlots / totalSlots` of the endpoint's node with `spread`, 1 minus that with `pack`; 0.5 if unknown."""

    plugin_type = "slice-headroom-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has a full node with spread, or an empty node with pack"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        free = tag_numbers(candidates, _free_share)
        scores = free if self.parameters.mode == "spread" else 1.0 - free
        return np.where(np.isnan(scores), 0.5, scores)


def _free_share(tag: AcceleratorTag) -> float:
    free, total = tag.attributes.get(SLOTS_FREE), tag.attributes.get(SLOTS_TOTAL)
    if not (isinstance(free, int | float) and isinstance(total, int | float) and total > 0):
        return nan
    return min(max(free / total, 0.0), 1.0)
