# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by their predicted or measured latency, and the targets of the request."""

from typing import Annotated, Literal

import numpy as np

from epp.framework import (
    IN_FLIGHT,
    KV_USAGE,
    LATENCY_PREDICTION,
    LOAD_INPUTS,
    OBSERVED_LATENCY,
    PREFIX_MATCH,
    WAITING,
    Candidates,
    Category,
    Floats,
    LatencyPrediction,
    Mask,
    NonNegative,
    ObservedLatency,
    Parameters,
    Positive,
    Request,
    Scorer,
    Share,
    Stability,
    Tunable,
    comparable_load,
)
from epp.framework.arrays import any_true

_SMALLEST_RANGE = 1e-9
_STEPS = 100


class LatencyScorerParameters(Parameters, frozen=True):
    """Weights of both times, and of load without predictions."""

    ttft_weight: Annotated[NonNegative, Tunable(0, 1)] = 0.8
    """Weight of the headroom to the first token."""
    tpot_weight: Annotated[NonNegative, Tunable(0, 1)] = 0.2
    """Weight of the headroom of further tokens."""
    headroom_selection_strategy: Literal["least", "most"] = "least"
    """Preference among endpoints that meet the targets: `least` headroom, to keep fast ones free, or `most`."""
    composite_kv_weight: NonNegative = 1.0
    """Weight of free KV cache, if no endpoint has a prediction."""
    composite_queue_weight: NonNegative = 1.0
    """Weight of a short queue, if no endpoint has a prediction."""
    composite_prefix_weight: NonNegative = 1.0
    """Weight of the share of the prompt in the cache, if no endpoint has a prediction."""
    latency_prediction_info_producer_name: str = ""
    """Name of the producer instance whose predictions are read; empty for the default one."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""


class LatencyScorer(Scorer[LatencyScorerParameters]):
    """Scores one group of endpoints by headroom: the time by which a request meets its targets; the others get 0.

    The group is the first of these that is not empty: endpoints with both headrooms of 0 or more, or without a
    prediction; idle endpoints; endpoints that miss only the time for further tokens; only that to the first token;
    both. In the group, `score = (floor(100 * (1 - h)) + 1) / 100`, at most 1, where `h = ttftWeight * t + tpotWeight *
    p`, with both weights over their sum, and `t` and `p` are the absolute headrooms, scaled to 0..1. A headroom that is
    the same everywhere does not count. With `most`, `h` replaces `1 - h` among endpoints that meet the targets.

    Without any prediction, the score is the weighted mean of free KV cache, of `(longest queue - queue) / longest
    queue`, and of the share of the prompt in the cache, rounded to 1/100; only the first counts if all weights are 0.
    """

    plugin_type = "latency-scorer"
    category = Category.BALANCE
    zero_means = "is expected to be further from the latency targets"
    may_read = (KV_USAGE, *LOAD_INPUTS)

    def setup(self) -> None:
        given = self.parameters
        self._key = LATENCY_PREDICTION.produced_by(given.latency_prediction_info_producer_name)
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self.reads = (self._key, self._match_key)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        prediction = request.get(self._key)
        times = None if prediction is None else prediction.at(candidates)
        if times is None or not any_true(times.predicted):
            return self._composite(request, candidates)
        positive = times.positive | ~times.predicted
        meets = any_true(positive)
        group = positive if meets else _best_late_group(times)
        most = meets and self.parameters.headroom_selection_strategy == "most"
        scores = np.zeros(len(candidates))
        scores[group] = self._by_headroom(times, group, most=most)
        return scores

    def _by_headroom(self, times: LatencyPrediction, group: Mask, *, most: bool) -> Floats:
        ttft, ttft_range = _scaled(times.ttft_headroom[group])
        tpot, tpot_range = _scaled(times.tpot_headroom[group])
        both = self.parameters.ttft_weight + self.parameters.tpot_weight
        weight = self.parameters.ttft_weight / both if both > 0 else 1.0
        if (ttft_range > _SMALLEST_RANGE) != (tpot_range > _SMALLEST_RANGE):
            weight = float(ttft_range > _SMALLEST_RANGE)
        combined = weight * ttft + (1.0 - weight) * tpot
        steps = np.floor((combined if most else 1.0 - combined) * _STEPS) + 1
        return np.minimum(steps / _STEPS, 1.0)

    def _composite(self, request: Request, candidates: Candidates) -> Floats:
        given, match = self.parameters, request.get(self._match_key)
        queue = comparable_load(candidates, WAITING)
        longest = queue.max(initial=0.0)
        held = np.zeros(len(queue)) if match is None or not match.total_blocks else match.shares(candidates)
        parts = (
            (given.composite_kv_weight, 1.0 - comparable_load(candidates, KV_USAGE)),
            (given.composite_queue_weight, (longest - queue) / longest if longest > 0 else np.ones(len(queue))),
            (given.composite_prefix_weight, held),
        )
        total = sum(weight for weight, _ in parts)
        mean = sum(weight * part for weight, part in parts) / total if total > 0 else parts[0][1]
        return np.floor(np.clip(mean, 0.0, 1.0) * _STEPS + 0.5) / _STEPS


def _best_late_group(times: LatencyPrediction) -> Mask:
    """Mark the best group of endpoints that all miss a target."""
    late_first, late_further = times.ttft_headroom < 0, times.tpot_headroom < 0
    groups = (times.dispatched == 0, late_further & ~late_first, late_first & ~late_further, late_first & late_further)
    return next(group for group in groups if any_true(group))


def _scaled(headroom: Floats) -> tuple[Floats, float]:
    """Return absolute headrooms, scaled to 0..1, and their range; 0.5 for all if they are equal."""
    absolute = np.abs(np.nan_to_num(headroom))
    least = absolute.min()
    width = float(absolute.max() - least)
    scaled = (absolute - least) / width if width > _SMALLEST_RANGE else np.full(len(absolute), 0.5)
    return scaled, width


class ObservedLatencyParameters(Parameters, frozen=True):
    """Exploration, and the curve."""

    exploration_rate: Share = 0.1
    """Probability, 0..1, with which an endpoint with few measured times gets 1, so that more are measured. It gets 0
    otherwise, if another endpoint has enough."""
    min_inflight_gap: Positive = 2.0
    """Minimum difference between the requests in flight at low and at typical load for low load to count."""
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
        times, step = observed.at(candidates), self.parameters.round_ttft_step
        is_known = times.floor > 0
        if not any_true(is_known):
            return np.ones(len(candidates))
        is_trusted = (times.has_recent > 0) & (times.typical_in_flight > 0) & (times.typical > times.floor) & is_known
        seconds = np.where(is_trusted, self._on_curve(times, candidates.values(IN_FLIGHT)), times.floor)
        if step:
            seconds = np.floor(seconds / step + 0.5) * step
        shortest, longest = seconds[is_known].min(), seconds[is_known].max()
        seconds = np.where(is_known, seconds, shortest)
        scores = (longest - seconds) / (longest - shortest) if longest > shortest else np.ones(len(seconds))
        return self._explored(request, scores, is_trusted)

    def _on_curve(self, times: ObservedLatency, in_flight: Floats) -> Floats:
        """Return the time of each endpoint at its requests in flight."""
        gap = times.typical_in_flight - times.low_in_flight
        low_counts = (gap >= self.parameters.min_inflight_gap) & (times.low_in_flight > 0)
        low_counts &= (times.typical > times.low) & (times.low > times.floor)
        is_below = low_counts & (in_flight < times.low_in_flight)
        start = np.where(low_counts & ~is_below, times.low_in_flight, 0.0)
        end = np.where(is_below, times.low_in_flight, times.typical_in_flight)
        first = np.where(low_counts & ~is_below, times.low, times.floor)
        last = np.where(is_below, times.low, times.typical)
        with np.errstate(divide="ignore", invalid="ignore"):  # for endpoints without a curve
            seconds: Floats = first + (in_flight - start) * (last - first) / (end - start)
        np.maximum(seconds, times.floor, out=seconds)
        return seconds

    def _explored(self, request: Request, scores: Floats, is_trusted: Mask) -> Floats:
        rate = self.parameters.exploration_rate
        if not rate or is_trusted.all():
            return scores
        is_probed = request.generator(self.name).random(len(scores)) < rate
        otherwise = 0.0 if any_true(is_trusted) else scores
        return np.where(is_trusted, scores, np.where(is_probed, 1.0, otherwise))
