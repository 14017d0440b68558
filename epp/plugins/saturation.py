# SPDX-License-Identifier: Apache-2.0
"""Filters by load, and the fullness of endpoints for flow control."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from typing_extensions import TypeVar

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LOAD_INPUTS,
    METRICS_AT,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Candidates,
    Column,
    Count,
    Datum,
    DropCause,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    Parameters,
    PositiveShare,
    Request,
    Tunable,
    expected_load,
    tag_numbers,
)
from epp.framework.accelerators.tag import limit_for
from epp.framework.arrays import any_true, everyone
from epp.framework.flow_control import SaturationDetector
from epp.framework.quantities import duration_setting, parse_duration


class DetectorParameters(FilterParameters, frozen=True):
    """Room above the thresholds."""

    headroom: Annotated[NonNegative, Tunable(0, 1)] = 0.0
    """Share of a threshold, such as 0.2, by which an endpoint may exceed it and still be kept."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests and tokens in flight have one source."""


DP = TypeVar("DP", bound=DetectorParameters, default=DetectorParameters)


class _Detector(Filter[DP], SaturationDetector[DP]):
    """Base class: thresholds by the class of the accelerator, and headroom above them."""

    drops = DropCause.SATURATION

    def set_limits(self, by_class: Mapping[str, Parameters]) -> None:
        """Set the limits of classes of accelerators; the limits of other endpoints are in the parameters."""
        self._allowance = 1.0 + self.parameters.headroom
        self._by_class = {name.lower(): limits for name, limits in by_class.items()}
        self._names = tuple(by_class)

    def limit(self, candidates: Candidates, name: str) -> Floats | float:
        """Return the limit of that name for each candidate; a single number if no class has its own limits."""
        if self._by_class:
            return tag_numbers(candidates, self._limit_of, name)
        general: float = getattr(self.parameters, name)
        return general

    def _limit_of(self, tag: AcceleratorTag, name: str) -> float | None:
        return limit_for(tag, name, self._by_class, self.parameters)

    @property
    def accelerator_names(self) -> Sequence[str]:
        return self._names

    @property
    def warnings(self) -> Sequence[str]:
        headroom = self.parameters.headroom
        if headroom <= 1:
            return ()
        return (f"headroom is {headroom:g}: endpoints are kept up to {1 + headroom:g} times a threshold",)


class UtilizationLimits(Parameters, frozen=True):
    """Thresholds of endpoints with accelerators of one class; the general threshold replaces an unset one."""

    queue_depth_threshold: Count | None = None
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: PositiveShare | None = None
    """Share of an engine's KV cache in use at which it is full, 0..1."""


class UtilizationDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of an engine's own metrics."""

    queue_depth_threshold: Annotated[Count, Tunable(1, 128, log=True)] = 5
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: Annotated[PositiveShare, Tunable(0.3, 1)] = 0.8
    """Share of an engine's KV cache in use at which it is full, 0..1."""
    metrics_staleness_threshold: str = "200ms"
    """Age above which metrics are ignored."""
    classes: dict[str, UtilizationLimits] = msgspec.field(default_factory=dict)
    """Other thresholds by name of the accelerator class or else of the model, such as `t4`."""

    def __post_init__(self) -> None:
        if not duration_setting("metricsStalenessThreshold", self.metrics_staleness_threshold, positive=False):
            raise ValueError("metricsStalenessThreshold is 0: write a duration above 0")


_REASONS = (("{:g} requests wait there", WAITING), ("its KV cache is full to {:.0%}", KV_USAGE))


class UtilizationDetector(_Detector[UtilizationDetectorParameters]):
    """Keeps an endpoint if `waiting` and `kv_usage` are below their thresholds times `1 + headroom`.

    Endpoints without metrics, or with metrics older than `metricsStalenessThreshold`, are dropped; a single unknown
    metric counts as below its threshold. All endpoints are kept if the filter would drop all. For flow control, the
    fullness of an endpoint is the larger of `waiting` and `kv_usage`, each as a share of its threshold, and at least 1
    if its metrics are too old. The metrics of an endpoint that never reported are estimated from this picker's requests
    in flight. `classes` has thresholds for endpoints with accelerators of one class.
    """

    plugin_type = "utilization-detector"
    may_empty = False
    reads: tuple[Datum, ...] = (WAITING, KV_USAGE, METRICS_AT)

    def setup(self) -> None:
        given = self.parameters
        self.set_limits(given.classes)
        self._oldest_seconds = parse_duration(given.metrics_staleness_threshold)
        if given.classes:
            self.reads = (*UtilizationDetector.reads, ACCELERATOR)
        self.may_read = LOAD_INPUTS

    @property
    def oldest_metrics_seconds(self) -> float:
        return self._oldest_seconds

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        waiting, kv_usage = self._thresholds(candidates)
        full = candidates.values(WAITING) >= waiting * self._allowance
        full |= candidates.values(KV_USAGE) >= kv_usage * self._allowance
        kept = self._fresh(candidates) & ~full
        return kept if any_true(kept) else everyone(len(candidates))

    def fullness(self, candidates: Candidates) -> Floats:
        waiting, kv_usage = self._thresholds(candidates)
        fullest: Floats = np.maximum(
            expected_load(candidates, WAITING) / waiting, expected_load(candidates, KV_USAGE) / kv_usage
        )
        unreported = np.isnan(candidates.values(METRICS_AT))
        return np.where(self._fresh(candidates) | unreported, fullest, np.maximum(fullest, 1.0))

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        reasons = ["its metrics were too old"] * len(dropped)
        for (text, column), limit in zip(_REASONS, self._thresholds(dropped), strict=True):
            values = dropped.values(column)
            for position in np.flatnonzero(values >= limit * self._allowance).tolist():
                reasons[position] = text.format(values[position])
        return reasons

    def _thresholds(self, candidates: Candidates) -> tuple[Floats | float, Floats | float]:
        return self.limit(candidates, "queue_depth_threshold"), self.limit(candidates, "kv_cache_util_threshold")

    def _fresh(self, candidates: Candidates) -> Mask:
        return self.clock.now() - candidates.values(METRICS_AT) <= self._oldest_seconds


class ConcurrencyLimits(Parameters, frozen=True):
    """Thresholds of endpoints with accelerators of one class; the general threshold replaces an unset one."""

    max_concurrency: Count | None = None
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Count | None = None
    """Prompt tokens in flight at which it is full."""


class ConcurrencyDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of this picker's requests and tokens in flight at an endpoint."""

    max_concurrency: Annotated[Count, Tunable(1, 512, log=True)] = 100
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Annotated[Count, Tunable(10_000, 10_000_000, log=True)] = 1_000_000
    """Prompt tokens in flight at which it is full."""
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Load to compare with its threshold: `requests`, `tokens`, or both (`hybrid`)."""
    classes: dict[str, ConcurrencyLimits] = msgspec.field(default_factory=dict)
    """Other thresholds by name of the accelerator class or else of the model, such as `t4`."""


class ConcurrencyDetector(_Detector[ConcurrencyDetectorParameters]):
    """Keeps an endpoint if this picker's requests in flight there are below the threshold times `1 + headroom`.

    `concurrencyMode` selects requests, their prompt tokens, or both. If no endpoint is left, the profile fails, unless
    `fallbackOnEmpty` is set. For flow control, the fullness of an endpoint is the load in flight as a share of the
    threshold; with `hybrid`, the larger of the two shares. `classes` has thresholds for endpoints with accelerators of
    one class.
    """

    plugin_type = "concurrency-detector"
    counts_own_requests = True

    def setup(self) -> None:
        given = self.parameters
        self.set_limits(given.classes)
        counted = {
            "max_concurrency": (IN_FLIGHT, {"requests", "hybrid"}),
            "max_token_concurrency": (IN_FLIGHT_TOKENS, {"tokens", "hybrid"}),
        }
        self._counted = [(name, column) for name, (column, modes) in counted.items() if given.concurrency_mode in modes]
        columns = tuple(column for _, column in self._counted)
        self.reads = (*columns, ACCELERATOR) if given.classes else columns

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        kept = everyone(len(candidates))
        for name, column in self._counted:
            kept &= candidates.values(column) < np.floor(self.limit(candidates, name) * self._allowance)
        return kept

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        reasons = [""] * len(dropped)
        for name, column in self._counted:
            values = dropped.values(column)
            for position in np.flatnonzero(values >= np.floor(self.limit(dropped, name) * self._allowance)).tolist():
                reasons[position] = f"{values[position]:g} {column.unit} are in flight there"
        return reasons

    def fullness(self, candidates: Candidates) -> Floats:
        shares = [candidates.values(column) / self.limit(candidates, name) for name, column in self._counted]
        fullest: Floats = np.maximum.reduce(shares)
        return fullest


Metric: TypeAlias = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]

_COLUMNS: Mapping[Metric, Column] = {
    "active-requests": IN_FLIGHT,
    "running-requests": RUNNING,
    "waiting-queue": WAITING,
    "kv-cache-utilization": KV_USAGE,
}


class UtilizationCondition(Parameters, frozen=True):
    """Limit of one metric."""

    metric: Metric
    """The metric: `active-requests` (sent by this picker and not ended), `running-requests` (in the engine's batch),
    `waiting-queue` (requests in the engine's queue) or `kv-cache-utilization` (0..1)."""
    max_value: NonNegative
    """Highest value at which an endpoint is kept."""


class UtilizationParameters(FilterParameters, frozen=True, kw_only=True):
    """Limits of metrics."""

    conditions: Annotated[tuple[UtilizationCondition, ...], Meta(min_length=1)]
    """Limits that must all hold; at least one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight have one source."""


class UtilizationFilter(Filter[UtilizationParameters]):
    """Drops an endpoint if any metric is above its `maxValue`.

    A metric that the endpoint does not report is estimated from requests in flight.
    If no endpoint is left, the profile fails, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "utilization-filter"
    drops = DropCause.SATURATION
    may_read = LOAD_INPUTS

    def setup(self) -> None:
        self._limits = [(_COLUMNS[condition.metric], condition.max_value) for condition in self.parameters.conditions]
        self.reads = tuple(dict.fromkeys(column for column, _ in self._limits))

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        over = np.zeros(len(candidates), dtype=np.bool_)
        for column, max_value in self._limits:
            over |= expected_load(candidates, column) > max_value
        return ~over

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        reasons = [""] * len(dropped)
        for condition, (column, most) in zip(self.parameters.conditions, self._limits, strict=True):
            for position, value in enumerate(expected_load(dropped, column).tolist()):
                if value > most and not reasons[position]:
                    reasons[position] = f"its {condition.metric} is {value:g}, more than {most:g}"
        return reasons
