"""Prefers endpoints on nodes with many free slots for slices, or with few."""

from math import nan
from typing import Literal

import numpy as np

from epp.framework import Candidates, Category, Floats, Parameters, Request, Scorer
from epp.framework.accelerator_arrays import tag_numbers
from epp.framework.accelerator_attributes import SLOTS_FREE, SLOTS_TOTAL
from epp.framework.accelerators import AcceleratorTag
from epp.framework.snapshot import ACCELERATOR


class SliceHeadroomParameters(Parameters, frozen=True):
    """Which way to pull."""

    mode: Literal["spread", "pack"] = "spread"
    """Towards nodes with many free slots, or with few."""


class SliceHeadroomScorer(Scorer[SliceHeadroomParameters]):
    """`freeSlots / totalSlots` of the endpoint's node with `spread`, 1 less that with `pack`; 0.5 where not known."""

    plugin_type = "slice-headroom-scorer"
    category = Category.DISTRIBUTION
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        free = tag_numbers(candidates, _free_share)
        scores = free if self.parameters.mode == "spread" else 1.0 - free
        return np.where(np.isnan(scores), 0.5, scores)


def _free_share(tag: AcceleratorTag) -> float:
    free, total = tag.attributes.get(SLOTS_FREE), tag.attributes.get(SLOTS_TOTAL)
    if not (isinstance(free, int | float) and isinstance(total, int | float) and total > 0):
        return nan
    return min(max(free / total, 0.0), 1.0)
