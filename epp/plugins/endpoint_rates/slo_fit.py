# SPDX-License-Identifier: Apache-2.0
"""Filter that keeps the cheapest endpoints expected to meet the latency targets of the request."""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    PositiveShare,
    Request,
    Tunable,
)
from epp.framework.accelerators.arrays import cost_per_hour
from epp.framework.accelerators.tag import SpotPreference
from epp.framework.headers import SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.rates import (
    TARGET_IN_REACH,
    batch_sizes,
    target_seconds,
    uncached_tokens,
    waited_seconds,
)

_EQUAL = 1.0 + 1e-9
_LEAST_SECONDS = 1e-3
"""Remainder of a limit that has passed: no endpoint fits, and the fastest one is closest."""


class SloFitParameters(FilterParameters, frozen=True):
    """Choice among several endpoints that fit."""

    default_ttft_ms: NonNegative = msgspec.field(default=0.0, name="defaultTTFTMs")
    """Limit of the time to the first token of requests without `x-llm-d-slo-ttft-ms`, in ms; 0 for none."""
    default_tpot_ms: NonNegative = msgspec.field(default=0.0, name="defaultTPOTMs")
    """Limit of the time between two tokens of requests without `x-llm-d-slo-tpot-ms`, in ms; 0 for none."""
    margin: Annotated[PositiveShare, Tunable(0.3, 1)] = 1.0
    """Share of a limit within which an expected time fits, above 0 and at most 1: expected times are means, and actual
    times vary."""
    prefer_cheapest: bool = True
    """Keep only the fitting endpoints with the lowest price an hour, if any price is known. With false, scorers choose
    among all fitting endpoints."""
    none_fits: Literal["closest", "all"] = "closest"
    """Endpoints to keep if no endpoint fits: those closest to the limits (`closest`), or all (`all`)."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes (`auto`), wherever one is known (`always`), or never (`never`)."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured; empty for the default one."""


class SloFitFilter(Filter[SloFitParameters]):
    """Keeps endpoints with `TTFT <= x-llm-d-slo-ttft-ms` and `ITL <= x-llm-d-slo-tpot-ms`, or the closest ones.

    `TTFT = gamma + delta * uncached tokens * batch` if a profile gives gamma and delta, else the wait for a place in
    the batch plus `(uncached tokens in flight at the endpoint + those of this prompt) / prefill rate`; `ITL = alpha +
    beta * batch`. The batch is the requests running (estimated if not reported) or in flight there, plus this one. If
    no endpoint fits, those with the lowest worse ratio of time to limit are kept, or all with `noneFits: all`. The
    default limit applies if the header is missing or not a number above 0. Without limits or rates, all endpoints are
    kept. The time that the request has waited reduces the limit of the time to the first token. `x-slo-ttft-ms` and
    `x-slo-tpot-ms` are deprecated names.
    """

    plugin_type = "slo-fit-filter"
    may_empty = False
    writes = (TARGET_IN_REACH,)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (ENDPOINT_RATES, IN_FLIGHT_TOKENS, IN_FLIGHT)
        self.may_read = (self._match_key, PROMPT_TOKENS, ACCELERATOR, *LOAD_INPUTS)

    @property
    def without_prices(self) -> str:
        return "all endpoints that fit are kept" if self.parameters.prefer_cheapest else ""

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        worst = self._worst(request, candidates)
        if worst is None:
            return np.ones(len(candidates), dtype=np.bool_)
        given = self.parameters
        fits = worst <= 1.0
        request.put(TARGET_IN_REACH, bool(fits.any()))
        if not fits.any():
            if given.none_fits == "all":
                return np.ones(len(candidates), dtype=np.bool_)
            nearest: Mask = worst <= worst.min() * _EQUAL
            return nearest
        return self._cheapest(fits, candidates) if given.prefer_cheapest else fits

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        worst = self._worst(request, dropped)
        if worst is None:
            return ()
        return [
            "costs more than another endpoint that meets the target"
            if ratio <= 1.0
            else f"is expected to take {ratio:.2f} times the target"
            for ratio in worst.tolist()
        ]

    def _worst(self, request: Request, candidates: Candidates) -> Floats | None:
        """Return the worse ratio of expected time to limit of each candidate; None without limits or rates."""
        given = self.parameters
        ttft_limit = given.margin * target_seconds(request.headers, SLO_TTFT_MS, given.default_ttft_ms)
        tpot_limit = given.margin * target_seconds(request.headers, SLO_TPOT_MS, given.default_tpot_ms)
        rates = request.get(ENDPOINT_RATES)
        if rates is None or not len(candidates) or ttft_limit == tpot_limit == inf:
            return None
        ttft_left = max(ttft_limit - waited_seconds(request, candidates), _LEAST_SECONDS)
        batch = batch_sizes(candidates) + 1
        uncached = uncached_tokens(request, candidates, request.get(self._match_key))
        ttft = rates.profiled_ttft_seconds(candidates, uncached, batch)
        worst: Floats = np.maximum(ttft / ttft_left, rates.itl_seconds(candidates, batch) / tpot_limit)
        return worst

    def _cheapest(self, fits: Mask, candidates: Candidates) -> Mask:
        prices = cost_per_hour(candidates, self.parameters.spot_preference)
        known = fits & ~np.isnan(prices)
        if not known.any():
            return fits
        cheapest: Mask = known & (prices <= prices[known].min() * _EQUAL)
        return cheapest
