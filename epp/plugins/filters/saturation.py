# SPDX-License-Identifier: Apache-2.0
"""Drops endpoints at the thresholds of a saturation detector, and those about which it knows nothing new."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from epp.framework import (
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    METRICS_AT,
    WAITING,
    Candidates,
    Count,
    DropCause,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    PositiveShare,
    Request,
)
from epp.framework.durations import parse_duration
from epp.framework.flow_control import SaturationDetector


class DetectorParameters(FilterParameters, frozen=True):
    """Room above the thresholds."""

    headroom: NonNegative = 0.0
    """Share of a threshold, such as 0.2, by which an endpoint may exceed it and still be kept."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests and tokens in flight have one source."""

    def headroom_warnings(self) -> Sequence[str]:
        """Warn of a headroom that looks like a percentage."""
        if self.headroom <= 1:
            return ()
        return (f"headroom is {self.headroom:g}: endpoints are kept up to {1 + self.headroom:g} times a threshold",)


class UtilizationDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of an engine's own metrics."""

    queue_depth_threshold: Count = 5
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: PositiveShare = 0.8
    """Share of an engine's KV cache in use at which it is full, 0..1."""
    metrics_staleness_threshold: str = "200ms"
    """Age from which metrics are not trusted."""

    def __post_init__(self) -> None:
        """Check the duration; raises ValueError."""
        try:
            seconds = parse_duration(self.metrics_staleness_threshold)
        except ValueError as error:
            raise ValueError(f"metricsStalenessThreshold: {error}") from None
        if seconds <= 0:
            raise ValueError("metricsStalenessThreshold is 0: write a duration above 0")


class UtilizationDetector(Filter[UtilizationDetectorParameters], SaturationDetector[UtilizationDetectorParameters]):
    """Keeps an endpoint if `waiting` and `kv_usage` are below their thresholds times `1 + headroom`.

    Endpoints whose metrics are older than `metricsStalenessThreshold`, or that have none, are dropped; a single metric
    that is unknown is not above its threshold. All endpoints are kept if none would be. For flow control, an endpoint
    is as full as the larger of `waiting` and `kv_usage`, each as a share of its threshold, and full where its metrics
    are not trusted.
    """

    plugin_type = "utilization-detector"
    may_empty = False
    drops = DropCause.SATURATION
    reads = (WAITING, KV_USAGE, METRICS_AT)

    def setup(self) -> None:
        room = 1.0 + self.parameters.headroom
        self._most_waiting = self.parameters.queue_depth_threshold * room
        self._most_kv_usage = self.parameters.kv_cache_util_threshold * room
        self._oldest_seconds = parse_duration(self.parameters.metrics_staleness_threshold)

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.headroom_warnings()

    @property
    def oldest_metrics_seconds(self) -> float:
        """The age up to which metrics count."""
        return self._oldest_seconds

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        fresh = self.clock.now() - candidates.values(METRICS_AT) <= self._oldest_seconds
        full = candidates.values(WAITING) >= self._most_waiting
        full |= candidates.values(KV_USAGE) >= self._most_kv_usage
        kept: Mask = fresh & ~full
        return kept if kept.any() else np.ones(len(candidates), dtype=np.bool_)

    def fullness(self, candidates: Candidates) -> Floats:
        given = self.parameters
        waiting = candidates.values(WAITING) / given.queue_depth_threshold
        fullest: Floats = np.fmax(waiting, candidates.values(KV_USAGE) / given.kv_cache_util_threshold)
        fresh = self.clock.now() - candidates.values(METRICS_AT) <= self._oldest_seconds
        return np.where(fresh, np.nan_to_num(fullest), 1.0)


class ConcurrencyDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of what this picker has in flight at an endpoint."""

    max_concurrency: Count = 100
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Count = 1_000_000
    """Prompt tokens in flight at which it is full."""
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Which of the two counts; `hybrid` for both."""


class ConcurrencyDetector(Filter[ConcurrencyDetectorParameters], SaturationDetector[ConcurrencyDetectorParameters]):
    """Keeps an endpoint if what this picker has in flight there is below the threshold times `1 + headroom`.

    If no endpoint is left, the profile fails, unless `fallbackOnEmpty` is set. For flow control, an endpoint is as full
    as what is in flight there is, as a share of the threshold: with `hybrid`, the larger of the two shares.
    """

    plugin_type = "concurrency-detector"
    drops = DropCause.SATURATION
    counts_own_requests = True

    def setup(self) -> None:
        given = self.parameters
        room = 1.0 + given.headroom
        capacities = {
            IN_FLIGHT: (given.max_concurrency, {"requests", "hybrid"}),
            IN_FLIGHT_TOKENS: (given.max_token_concurrency, {"tokens", "hybrid"}),
        }
        self._capacities = [
            (column, most) for column, (most, modes) in capacities.items() if given.concurrency_mode in modes
        ]
        self._limits = [(column, int(most * room)) for column, most in self._capacities]
        self.reads = tuple(column for column, _ in self._limits)

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.headroom_warnings()

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        kept = np.ones(len(candidates), dtype=np.bool_)
        for column, most in self._limits:
            kept &= candidates.values(column) < most
        return kept

    def fullness(self, candidates: Candidates) -> Floats:
        shares = [candidates.values(column) / capacity for column, capacity in self._capacities]
        fullest: Floats = np.maximum.reduce(shares)
        return fullest
