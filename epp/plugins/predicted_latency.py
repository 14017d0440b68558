# SPDX-License-Identifier: Apache-2.0
"""Filter and admission by predicted latency and the targets of a request."""

from collections.abc import Sequence
from math import inf
from typing import Annotated

import numpy as np

from epp.framework import (
    IN_FLIGHT,
    KV_USAGE,
    LATENCY_PREDICTION,
    RUNNING,
    Admitter,
    Candidates,
    Filter,
    FilterParameters,
    LatencyPrediction,
    Mask,
    Parameters,
    Request,
    Share,
    Tunable,
)
from epp.framework.arrays import all_true, any_true, everyone
from epp.framework.headers import SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.rates import target_seconds
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
    """Share of requests, 0..1, that are sent to an endpoint expected to miss a target, so that its latency is learned
    there too."""
    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""


class HeadroomTierFilter(Filter[HeadroomTierParameters]):
    """Keeps endpoints that are expected to meet the latency targets, if there are any.

    An endpoint meets them if neither of its headrooms is negative; one without a prediction does not. For the share
    `epsilonExploreNeg` of requests, the other endpoints are kept instead. All are kept if there is one only, if no
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
        return () if prediction is None else _described(prediction.at(dropped))


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
        if request.priority >= 0 or not _has_target(request):
            return
        prediction = request.get(self._key)
        if prediction is None:
            return
        there = prediction.at(candidates)
        is_idle = np.fmax(candidates.values(RUNNING), candidates.values(IN_FLIGHT)) == 0
        is_warm = candidates.values(KV_USAGE) >= _COLD
        if any_true(there.predicted) and not any_true(there.valid | is_idle | ~is_warm):
            raise TargetOutOfReachError


def _has_target(request: Request) -> bool:
    return any(target_seconds(request.headers, names) != inf for names in (SLO_TTFT_MS, SLO_TPOT_MS))


def _described(there: LatencyPrediction) -> list[str]:
    """Return the reason for each endpoint that is dropped."""
    times = zip(
        there.ttft_seconds.tolist(),
        there.ttft_p90_seconds.tolist(),
        there.tpot_seconds.tolist(),
        there.tpot_p90_seconds.tolist(),
        strict=True,
    )
    return [
        "has no predicted latency"
        if np.isnan(ttft)
        else f"is expected to take {ttft * _MS_PER_S:.0f} ms (p90: {ttft_p90 * _MS_PER_S:.0f} ms) to the first token "
        f"and {tpot * _MS_PER_S:.1f} ms (p90: {tpot_p90 * _MS_PER_S:.1f} ms) for each further one"
        for ttft, ttft_p90, tpot, tpot_p90 in times
    ]
