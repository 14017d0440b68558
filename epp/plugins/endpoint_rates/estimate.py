# SPDX-License-Identifier: Apache-2.0
"""Combine profiles and learned ratios into the rates of every slot."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats, Mask
from epp.framework.arrays import any_true
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS, EndpointRates
from epp.plugins.endpoint_rates.learning import FREE, like_the_others, median
from epp.plugins.endpoint_rates.profiles import KindRates

Learned = tuple[Floats, NDArray[np.intp]]
"""Logarithms of ratios and numbers of samples, as `RateLearner.learned` returns them."""


class InitialRates(NamedTuple):
    """Rates of one model before learning: arrays by slot, and the rates of each kind of hardware."""

    by_kind: Sequence[KindRates]
    kinds: NDArray[np.intp]
    """By slot."""
    prefill_tokens_per_second: Floats
    itl_base_seconds: Floats
    itl_seconds_per_request: Floats
    ttft_base_seconds: Floats
    ttft_seconds_per_token: Floats
    prefill_known: Mask
    """By kind."""
    itl_known: Mask
    """By kind."""

    @classmethod
    def of(cls, by_kind: Sequence[KindRates], kinds: NDArray[np.intp]) -> Self:
        """Return the rates of slots of these kinds."""

        def column(name: str) -> Floats:
            return np.array([getattr(one, name) for one in by_kind], dtype=np.float64)[kinds]

        return cls(
            by_kind,
            kinds,
            column("prefill_tokens_per_second"),
            column("itl_base_seconds"),
            column("itl_seconds_per_request"),
            column("ttft_base_seconds"),
            column("ttft_seconds_per_token"),
            np.array([one.prefill_known for one in by_kind], dtype=np.bool_),
            np.array([one.itl_known for one in by_kind], dtype=np.bool_),
        )


def estimate(
    initial: InitialRates,
    prefill: Learned,
    itl: Learned,
    *,
    output_tokens: float = DEFAULT_OUTPUT_TOKENS,
    places: Floats | None = None,
) -> EndpointRates:
    """Return the rates of all slots.

    A rate is the initial rate times the ratio learned for the slot, else for its kind, else for all. Kinds without a
    profile or samples get the median of the other slots.
    """
    prefill_log, prefill_samples = prefill
    itl_log, itl_samples = itl
    kinds = initial.kinds
    rate = initial.prefill_tokens_per_second * np.exp(like_the_others(prefill_log, kinds))
    slowdown = np.exp(-like_the_others(itl_log, kinds))
    prefill_known = _known(initial.prefill_known, kinds, prefill_samples)
    itl_known = _known(initial.itl_known, kinds, itl_samples)
    return EndpointRates(
        prefill_tokens_per_second=_with_median(rate, prefill_known, kinds),
        itl_base_seconds=_with_median(initial.itl_base_seconds * slowdown, itl_known, kinds),
        itl_seconds_per_request=_with_median(initial.itl_seconds_per_request * slowdown, itl_known, kinds),
        ttft_base_seconds=initial.ttft_base_seconds,
        ttft_seconds_per_token=initial.ttft_seconds_per_token,
        kinds=kinds,
        sources=tuple(
            zip(
                _sources([one.prefill_source for one in initial.by_kind], prefill_known, kinds, prefill_samples),
                _sources([one.itl_source for one in initial.by_kind], itl_known, kinds, itl_samples),
                strict=True,
            )
        ),
        prefill_samples=prefill_samples,
        itl_samples=itl_samples,
        output_tokens=output_tokens,
        places=places,
    )


def _known(profiled: Mask, kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Mask:
    """Mark the kinds that have a profile or samples."""
    known = profiled.copy()
    known[kinds[samples > 0]] = True
    known[FREE] = False
    return known


def _with_median(values: Floats, known: Mask, kinds: NDArray[np.intp]) -> Floats:
    """Return the values of slots, with the median of the others for unknown kinds."""
    by_slot = known[kinds]
    if not any_true(~by_slot & (kinds != FREE)) or not any_true(by_slot):
        return values
    return np.where(by_slot, values, median(values[by_slot]))


def _sources(sources: Sequence[str], known: Mask, kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Sequence[str]:
    """Return, for each kind, the source of the rate of slots without samples."""
    median_of_others = any_true(known[kinds])
    suffix = ", times the ratio learned from others" if any_true(samples > 0) else ""
    return [
        source + suffix if its or not median_of_others else "median of the pool"
        for source, its in zip(sources, known.tolist(), strict=True)
    ]
