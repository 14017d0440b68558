# SPDX-License-Identifier: Apache-2.0
"""Filters and admission by the expected latency and the targets of a request."""

from collections.abc import Sequence
from math import inf, isnan
from typing import Annotated, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LATENCY_PREDICTION,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    RUNNING,
    Admitter,
    Candidates,
    Filter,
    FilterParameters,
    Floats,
    LatencyPrediction,
    Mask,
    NonNegative,
    Parameters,
    PositiveShare,
    Request,
    Share,
    Tunable,
)
from epp.framework.accelerators.arrays import cost_per_hour
from epp.framework.accelerators.tag import SpotPreference
from epp.framework.arrays import all_true, any_true, everyone, lowest
from epp.framework.expected_times import TARGET_IN_REACH, batch_sizes, target_seconds, uncached_tokens, waited_seconds
from epp.framework.headers import SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.refusals import SOON_SECONDS, SaturatedError

_COLD = 0.02
"""Share of the KV cache in use below which predictions are not reliable."""
_MS_PER_S = 1e3


class TargetOutOfReachError(SaturatedError):
    """A request of negative priority would miss its latency target at every endpoint."""

    retry_after_seconds = SOON_SECONDS
    text = "no model server is expected to meet the latency target of this request, whose priority is low: retry later"


class HeadroomTierParameters(FilterParameters, frozen=True):
    """Exploration, and the source of predictions."""

    epsilon_explore_neg: Annotated[Share, Tunable(0, 0.1)] = 0.01
    """Share of requests, 0..1, sent to an endpoint expected to miss a target, to keep learning its latency."""
    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""


class HeadroomTierFilter(Filter[HeadroomTierParameters]):
    """Keeps endpoints that are expected to meet the latency targets, if there are any.

    An endpoint meets them if neither of its headrooms is negative; one without a prediction does not. For the share
    `epsilonExploreNeg` of requests, the other endpoints are kept instead. All are kept if there is only one, if no
    endpoint has a prediction, or if all or none meet the targets.
    """

    plugin_type = "slo-headroom-tier-filter"
    may_empty = False

    def setup(self) -> None:
        self._key = LATENCY_PREDICTION.produced_by(self.parameters.latency_prediction_info_producer_name)
        self.reads = (self._key,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        prediction = request.get(self._key)
        positive = None if prediction is None else prediction.at(candidates).positive
        if positive is None or all_true(positive) or not any_true(positive):
            return everyone(len(candidates))
        explores = request.uniform(self.name) < self.parameters.epsilon_explore_neg
        return ~positive if explores else positive

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        prediction = request.get(self._key)
        return () if prediction is None else _describe(prediction.at(dropped))


class LatencyAdmitterParameters(Parameters, frozen=True):
    """Source of predictions."""

    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""


class LatencyAdmitter(Admitter[LatencyAdmitterParameters]):
    """Refuses requests of negative priority whose latency targets no endpoint is expected to meet, with 429.

    A request is admitted if it has no target, if no endpoint has a prediction, or if an endpoint is idle, has less than
    2% of its KV cache in use, or does not report its use.
    """

    plugin_type = "latency-slo-admitter"
    may_read = (RUNNING, IN_FLIGHT, KV_USAGE)

    def setup(self) -> None:
        self._key = LATENCY_PREDICTION.produced_by(self.parameters.latency_prediction_info_producer_name)
        self.reads = (self._key,)

    def admit(self, request: Request, candidates: Candidates) -> None:
        if request.priority >= 0 or (prediction := request.get(self._key)) is None or not _has_target(request):
            return
        times = prediction.at(candidates)
        is_idle = np.fmax(candidates.values(RUNNING), candidates.values(IN_FLIGHT)) == 0
        is_warm = candidates.values(KV_USAGE) >= _COLD
        if any_true(times.predicted) and not any_true(times.valid | is_idle | ~is_warm):
            raise TargetOutOfReachError


def _has_target(request: Request) -> bool:
    return any(target_seconds(request.headers, names) != inf for names in (SLO_TTFT_MS, SLO_TPOT_MS))


def _describe(times: LatencyPrediction) -> list[str]:
    seconds = (times.ttft_seconds, times.ttft_p90_seconds, times.tpot_seconds, times.tpot_p90_seconds)
    return [
        "has no predicted latency"
        if isnan(ttft)
        else f"is expected to take {ttft:.0f} ms (p90: {ttft_p90:.0f} ms) to the first token "
        f"and {tpot:.1f} ms (p90: {tpot_p90:.1f} ms) for each further one"
        for ttft, ttft_p90, tpot, tpot_p90 in (np.array(seconds) * _MS_PER_S).T.tolist()
    ]


_EQUAL = 1.0 + 1e-9
_LEAST_SECONDS = 1e-3
"""Minimum remainder of a limit: after the limit, no endpoint fits, and the fastest one is closest."""


class SloFitParameters(FilterParameters, frozen=True):
    """Choice among several endpoints that fit."""

    default_ttft_ms: NonNegative = msgspec.field(default=0.0, name="defaultTTFTMs")
    """Limit of the time to the first token of requests without `x-llm-d-slo-ttft-ms`, in ms; 0 for none."""
    default_tpot_ms: NonNegative = msgspec.field(default=0.0, name="defaultTPOTMs")
    """Limit of the time between two tokens of requests without `x-llm-d-slo-tpot-ms`, in ms; 0 for none."""
    margin: Annotated[PositiveShare, Tunable(0.3, 1)] = 1.0
    """Share of a limit that an expected time may reach, above 0 and at most 1, as actual times vary."""
    prefer_cheapest: bool = True
    """Keep only the fitting endpoints with the lowest price an hour, if any is known; if false, keep all that fit."""
    none_fits: Literal["closest", "all"] = "closest"
    """Endpoints to keep if no endpoint fits: those closest to the limits (`closest`), or all (`all`)."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes (`auto`), whenever one is known (`always`), or never (`never`)."""
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
            return everyone(len(candidates))
        fits = worst <= 1.0
        in_reach = any_true(fits)
        request.put(TARGET_IN_REACH, in_reach)
        if in_reach:
            return self._cheapest(fits, candidates) if self.parameters.prefer_cheapest else fits
        return everyone(len(candidates)) if self.parameters.none_fits == "all" else worst <= lowest(worst) * _EQUAL

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
        return np.maximum(ttft / ttft_left, rates.itl_seconds(candidates, batch) / tpot_limit)

    def _cheapest(self, fits: Mask, candidates: Candidates) -> Mask:
        prices = cost_per_hour(candidates, self.parameters.spot_preference)
        known = fits & ~np.isnan(prices)
        return known & (prices <= lowest(prices[known]) * _EQUAL) if any_true(known) else fits
