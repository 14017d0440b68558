# SPDX-License-Identifier: Apache-2.0
"""Values of accelerator tags as arrays: built once per set of tags, indexed by candidates."""

from collections.abc import Callable
from typing import TypeVarTuple

import numpy as np

from epp.framework.accelerators.tag import AcceleratorTag, CostBasis, SpotPreference
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.snapshot import ACCELERATOR

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
