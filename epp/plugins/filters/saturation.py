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
    Mask,
    NonNegative,
    PositiveShare,
    Request,
)
from epp.framework.durations import parse_duration


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


class UtilizationDetector(Filter[UtilizationDetectorParameters]):
    """Keeps an endpoint if `waiting` and `kv_usage` are below their thresholds times `1 + headroom`.

    Endpoints whose metrics are older than `metricsStalenessThreshold`, or that have none, are dropped; a single metric
    that is unknown is not above its threshold. All endpoints are kept if none would be. It has an effect only where a
    profile names it: flow control, which reads it as a saturation detector, is not supported yet.
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


class ConcurrencyDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of what this picker has in flight at an endpoint."""

    max_concurrency: Count = 100
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Count = 1_000_000
    """Prompt tokens in flight at which it is full."""
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Which of the two counts; `hybrid` for both."""


class ConcurrencyDetector(Filter[ConcurrencyDetectorParameters]):
    """Keeps an endpoint if what this picker has in flight there is below the threshold times `1 + headroom`.

    If no endpoint is left, the profile fails, unless `fallbackOnEmpty` is set. It has an effect only where a profile
    names it: flow control, which reads it as a saturation detector, is not supported yet.
    """

    plugin_type = "concurrency-detector"
    drops = DropCause.SATURATION

    def setup(self) -> None:
        given = self.parameters
        room = 1.0 + given.headroom
        limits = {
            IN_FLIGHT: (int(given.max_concurrency * room), {"requests", "hybrid"}),
            IN_FLIGHT_TOKENS: (int(given.max_token_concurrency * room), {"tokens", "hybrid"}),
        }
        self._limits = [(column, most) for column, (most, modes) in limits.items() if given.concurrency_mode in modes]
        self.reads = tuple(column for column, _ in self._limits)

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.headroom_warnings()

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        kept = np.ones(len(candidates), dtype=np.bool_)
        for column, most in self._limits:
            kept &= candidates.values(column) < most
        return kept
