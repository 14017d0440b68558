# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints on nodes with many free slots for slices, or with few."""

from math import nan
from typing import Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
    tag_numbers,
)
from epp.framework.accelerators.tag import SLOTS_FREE, SLOTS_TOTAL


class SliceHeadroomParameters(Parameters, frozen=True):
    """Direction of the preference."""

    mode: Literal["spread", "pack"] = "spread"
    """`spread` prefers nodes with many free slots, `pack` nodes with few."""


class SliceHeadroomScorer(Scorer[SliceHeadroomParameters]):
    """`freeSlots / totalSlots` of the endpoint's node with `spread`, 1 minus that with `pack`; 0.5 if unknown."""

    plugin_type = "slice-headroom-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has no room on its node with spread, or nothing but room with pack"
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
