# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by the time to the first token that was measured there under the load of now."""

import numpy as np

from epp.framework import (
    IN_FLIGHT,
    OBSERVED_LATENCY,
    Candidates,
    Floats,
    Mask,
    NonNegative,
    ObservedLatency,
    Parameters,
    Positive,
    Request,
    Scorer,
    Share,
    Stability,
)
from epp.framework.arrays import any_true


class ObservedLatencyParameters(Parameters, frozen=True):
    """Exploration, and the curve."""

    exploration_rate: Share = 0.1
    """Probability, 0..1, with which an endpoint with few measured times gets 1, so that more are measured. It gets 0
    otherwise, if another endpoint has enough."""
    min_inflight_gap: Positive = 2.0
    """Least difference between the requests in flight at low and at typical load, from which low load counts."""
    round_ttft_step: NonNegative = 0.0
    """Step in seconds to which times are rounded; 0 for none."""
    ttft_percentiles_producer_name: str = ""
    """Name of the producer instance whose times are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight have one source."""


class ObservedLatencyScorer(Scorer[ObservedLatencyParameters]):
    """`(longest - time) / (longest - shortest)`; 1 for all if the times are equal, or none was measured.

    The time is a line from the floor, without load, to the time at low load and on to that at typical load, evaluated
    at the requests in flight now. Low load is left out if its time is not between those of the others, or if its
    requests in flight are less than `minInflightGap` from those at typical load. Endpoints with few recent times are
    expected to take the floor, and those without any the shortest time of the others.
    """

    plugin_type = "latency-observation-scorer-hub"
    stability = Stability.ALPHA
    zero_means = "was slowest, or has few measured times"

    def setup(self) -> None:
        self._key = OBSERVED_LATENCY.produced_by(self.parameters.ttft_percentiles_producer_name)
        self.reads = (self._key, IN_FLIGHT)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        observed = request.get(self._key)
        if observed is None or not len(observed.values):
            return np.ones(len(candidates))
        there, step = observed.at(candidates), self.parameters.round_ttft_step
        is_known = there.floor > 0
        if not any_true(is_known):
            return np.ones(len(candidates))
        is_trusted = (there.has_recent > 0) & (there.typical_in_flight > 0) & (there.typical > there.floor) & is_known
        seconds = np.where(is_trusted, self._on_curve(there, candidates.values(IN_FLIGHT)), there.floor)
        if step:
            seconds = np.floor(seconds / step + 0.5) * step
        shortest, longest = seconds[is_known].min(), seconds[is_known].max()
        seconds = np.where(is_known, seconds, shortest)
        scores = (longest - seconds) / (longest - shortest) if longest > shortest else np.ones(len(seconds))
        return self._explored(request, scores, is_trusted)

    def _on_curve(self, there: ObservedLatency, in_flight: Floats) -> Floats:
        """Return the times at so many requests in flight."""
        gap = there.typical_in_flight - there.low_in_flight
        low_counts = (gap >= self.parameters.min_inflight_gap) & (there.low_in_flight > 0)
        low_counts &= (there.typical > there.low) & (there.low > there.floor)
        is_below = low_counts & (in_flight < there.low_in_flight)
        start = np.where(low_counts & ~is_below, there.low_in_flight, 0.0)
        end = np.where(is_below, there.low_in_flight, there.typical_in_flight)
        first = np.where(low_counts & ~is_below, there.low, there.floor)
        last = np.where(is_below, there.low, there.typical)
        with np.errstate(divide="ignore", invalid="ignore"):  # of endpoints without a curve
            seconds: Floats = first + (in_flight - start) * (last - first) / (end - start)
        np.maximum(seconds, there.floor, out=seconds)
        return seconds

    def _explored(self, request: Request, scores: Floats, is_trusted: Mask) -> Floats:
        rate = self.parameters.exploration_rate
        if not rate or is_trusted.all():
            return scores
        is_probed = request.generator(self.name).random(len(scores)) < rate
        otherwise = 0.0 if any_true(is_trusted) else scores
        return np.where(is_trusted, scores, np.where(is_probed, 1.0, otherwise))
