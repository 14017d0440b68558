# SPDX-License-Identifier: Apache-2.0
"""Numbers of accelerator tags for candidates: price, relative capacity, cost of waking up."""

from collections.abc import Callable
from typing import TypeVarTuple

import numpy as np

from epp.framework.accelerators.tag import FROZEN, AcceleratorTag, CostBasis, SpotPreference
from epp.framework.arrays import Floats, Mask, any_true
from epp.framework.candidates import Candidates
from epp.framework.records import Records
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING

A = TypeVarTuple("A")

_LEAST_TFLOPS, _MOST_TFLOPS = 1e-3, 1e9


def tag_numbers(candidates: Candidates, number: Callable[[AcceleratorTag, *A], float | None], *arguments: *A) -> Floats:
    """Return `number(tag, *arguments)` for each candidate, NaN for None.

    Memoised by function and arguments: `number` is a module-level function or a method, the arguments are hashable.
    """
    return candidates.snapshot.records(ACCELERATOR).derive_numbers(number, *arguments)[candidates.slots]


def tag_mask(candidates: Candidates, test: Callable[[AcceleratorTag, *A], bool], *arguments: *A) -> Mask:
    """Return `test(tag, *arguments)` for each candidate; memoised like `tag_numbers`."""
    return candidates.snapshot.records(ACCELERATOR).derive_mask(test, *arguments)[candidates.slots]


def cost_per_hour(candidates: Candidates, preference: SpotPreference = "auto", basis: CostBasis = "memory") -> Floats:
    """Return the price of each whole endpoint in US dollars an hour; NaN if unknown."""
    return tag_numbers(candidates, AcceleratorTag.cost_per_hour, preference, basis)


def relative_capacity(candidates: Candidates) -> Floats:
    """Return each endpoint's fp16 TFLOPS over the median of the known ones in the pool; 1 if unknown.

    The median is over the pool, not the candidates, so that an endpoint's capacity does not change with a filter.
    """
    return candidates.snapshot.records(ACCELERATOR).derive(_relative_capacity)[candidates.slots]


def _relative_capacity(tags: tuple[AcceleratorTag, ...]) -> Floats:
    figures = np.array([np.nan if (figure := _plausible_tflops(tag)) is None else figure for tag in tags])
    known = ~np.isnan(figures)
    return np.where(known, figures / np.median(figures[known]), 1.0) if known.any() else np.ones(len(figures))


def _plausible_tflops(tag: AcceleratorTag) -> float | None:
    tflops = tag.tflops()
    return tflops if _LEAST_TFLOPS <= tflops <= _MOST_TFLOPS else None


WAKE_UP_INPUTS = (ACCELERATOR, RUNNING, IN_FLIGHT)
"""Data that the cost is computed from; a plugin that uses `WakeUpCost` reads them."""


class WakeUpCost:
    """`memory` or `disk` for each candidate that is frozen there, 0 for the others.

    An endpoint with requests in flight or running is awake, or about to be.
    """

    __slots__ = ("_costs", "_disk", "_memory", "_tags")

    def __init__(self, memory: float, disk: float) -> None:
        self._memory = memory
        self._disk = disk
        self._tags: Records[AcceleratorTag] | None = None
        self._costs: Floats | None = None

    def of(self, candidates: Candidates) -> Floats | None:
        """Return the cost of each candidate; None if no endpoint is frozen."""
        tags = candidates.snapshot.records(ACCELERATOR)
        if tags is not self._tags:
            costs = tags.derive_numbers(_cost, self._memory, self._disk)
            self._tags, self._costs = tags, costs if any_true(costs > 0.0) else None
        if self._costs is None:
            return None
        busy = (candidates.values(IN_FLIGHT) > 0) | (candidates.values(RUNNING) > 0)
        return np.where(busy, 0.0, self._costs[candidates.slots])


def _cost(tag: AcceleratorTag, memory: float, disk: float) -> float:
    match tag.attributes.get(FROZEN):
        case "memory":
            return memory
        case "disk":
            return disk
        case _:
            return 0.0
