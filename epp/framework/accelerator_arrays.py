"""Numbers of accelerator tags as arrays over slots: built once for as long as the tags hold, indexed by candidates."""

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from epp.framework.accelerators import AcceleratorTag, CostBasis, SpotPreference
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.snapshot import ACCELERATOR

_LEAST_TFLOPS, _MOST_TFLOPS = 1e-3, 1e9


def tag_numbers(candidates: Candidates, key: Hashable, number: Callable[[AcceleratorTag], float | None]) -> Floats:
    """Return one number for each candidate, NaN for None; `key` names what `number` computes, parameters included."""

    def build(tags: tuple[AcceleratorTag, ...]) -> Floats:
        return np.array([np.nan if (value := number(tag)) is None else value for tag in tags], dtype=np.float64)

    return candidates.snapshot.records(ACCELERATOR).derive(("number", key), build)[candidates.slots]


def tag_mask(candidates: Candidates, key: Hashable, test: Callable[[AcceleratorTag], bool]) -> Mask:
    """Return one truth for each candidate; `key` names what `test` tests, parameters included."""

    def build(tags: tuple[AcceleratorTag, ...]) -> NDArray[np.bool_]:
        return np.array([test(tag) for tag in tags], dtype=np.bool_)

    return candidates.snapshot.records(ACCELERATOR).derive(("mask", key), build)[candidates.slots]


def tag_codes(candidates: Candidates, key: Hashable, text: Callable[[AcceleratorTag], str]) -> NDArray[np.intp]:
    """Return a number for each candidate that is equal where the texts are, -1 where the text is empty."""

    def build(tags: tuple[AcceleratorTag, ...]) -> NDArray[np.intp]:
        numbers: dict[str, int] = {"": -1}
        return np.array([numbers.setdefault(text(tag), len(numbers) - 1) for tag in tags], dtype=np.intp)

    return candidates.snapshot.records(ACCELERATOR).derive(("codes", key), build)[candidates.slots]


def cost_per_hour(candidates: Candidates, preference: SpotPreference = "auto", basis: CostBasis = "memory") -> Floats:
    """Return what each whole endpoint costs an hour in US dollars; NaN where no price is known."""
    return tag_numbers(
        candidates, ("cost_per_hour", preference, basis), lambda tag: tag.cost_per_hour(preference, basis)
    )


def relative_capacity(candidates: Candidates) -> Floats:
    """Return each endpoint's fp16 TFLOPS over the median of those in the pool that are known; 1 where not known.

    The median is over the pool, not the candidates, so that an endpoint's capacity does not change with a filter.
    """

    def build(tags: tuple[AcceleratorTag, ...]) -> Floats:
        figures = np.array([np.nan if (figure := _plausible_tflops(tag)) is None else figure for tag in tags])
        known = ~np.isnan(figures)
        return np.where(known, figures / np.median(figures[known]), 1.0) if known.any() else np.ones(len(figures))

    return candidates.snapshot.records(ACCELERATOR).derive("relative capacity", build)[candidates.slots]


def _plausible_tflops(tag: AcceleratorTag) -> float | None:
    tflops = tag.tflops()
    return tflops if _LEAST_TFLOPS <= tflops <= _MOST_TFLOPS else None
