# SPDX-License-Identifier: Apache-2.0
"""Combines profiles and learned ratios into the rates of every slot."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats, Mask
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS, EndpointRates
from epp.plugins.endpoint_rates.learning import like_the_others
from epp.plugins.endpoint_rates.table import StartingRates

Learned = tuple[Floats, NDArray[np.intp]]
"""Logarithms of ratios and numbers of samples, as `RateLearner.learned` returns them."""


def estimate(
    starting: Sequence[StartingRates],
    kinds: NDArray[np.intp],
    prefill: Learned,
    itl: Learned,
    *,
    output_tokens: float = DEFAULT_OUTPUT_TOKENS,
    places: Floats | None = None,
) -> EndpointRates:
    """Return the rates of slots of these kinds.

    A rate is the starting rate times the ratio learned for the slot, or else for its kind, or else for all. Kinds
    without a profile or samples get the median of the other slots, if there are any.
    """
    prefill_log, prefill_samples = prefill
    itl_log, itl_samples = itl
    rate = _column(starting, "prefill_tokens_per_second")[kinds] * np.exp(like_the_others(prefill_log, kinds))
    slowdown = np.exp(-like_the_others(itl_log, kinds))
    base = _column(starting, "itl_base_seconds")[kinds] * slowdown
    per_request = _column(starting, "itl_seconds_per_request")[kinds] * slowdown
    prefill_known = _known([one.prefill_known for one in starting], kinds, prefill_samples)
    itl_known = _known([one.itl_known for one in starting], kinds, itl_samples)
    return EndpointRates(
        prefill_tokens_per_second=_with_median(rate, prefill_known, kinds),
        itl_base_seconds=_with_median(base, itl_known, kinds),
        itl_seconds_per_request=_with_median(per_request, itl_known, kinds),
        ttft_base_seconds=_column(starting, "ttft_base_seconds")[kinds],
        ttft_seconds_per_token=_column(starting, "ttft_seconds_per_token")[kinds],
        kinds=kinds,
        sources=tuple(
            zip(
                _sources([one.prefill_source for one in starting], prefill_known, kinds, prefill_samples),
                _sources([one.itl_source for one in starting], itl_known, kinds, itl_samples),
                strict=True,
            )
        ),
        prefill_samples=prefill_samples,
        itl_samples=itl_samples,
        output_tokens=output_tokens,
        places=places,
    )


def _column(starting: Sequence[StartingRates], name: str) -> Floats:
    return np.array([getattr(one, name) for one in starting], dtype=np.float64)


def _known(profiled: Sequence[bool], kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Mask:
    """Mark the kinds that have a profile or samples."""
    known = np.array(profiled, dtype=np.bool_)
    known[kinds[samples > 0]] = True
    known[0] = False
    return known


def _with_median(values: Floats, known: Mask, kinds: NDArray[np.intp]) -> Floats:
    by_slot = known[kinds]
    if by_slot.all() or not by_slot.any():
        return values
    return np.where(by_slot, values, np.median(values[by_slot]))


def _sources(sources: Sequence[str], known: Mask, kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Sequence[str]:
    """Return, for each kind, the source of the rate of slots without samples."""
    median_of_others = bool(known[kinds].any())
    learned = bool((samples > 0).any())
    return [
        (source + (", times what others learned" if learned else ""))
        if known[kind] or not median_of_others
        else "median of the pool"
        for kind, source in enumerate(sources)
    ]
