# SPDX-License-Identifier: Apache-2.0
"""Says which endpoints are at their thresholds, for all alike or by accelerator class, and drops these as a filter."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    METRICS_AT,
    WAITING,
    AcceleratorTag,
    Candidates,
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
    tag_numbers,
)
from epp.framework.accelerators.tag import limit_for
from epp.framework.flow_control import SaturationDetector
from epp.framework.load import LOAD_INPUTS, expected_load
from epp.framework.quantities import parse_duration


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


class LimitsByClass:
    """Limits of endpoints: those of their accelerator's class where it has some, or else the general ones."""

    __slots__ = ("_by_class", "_general", "names")

    def __init__(self, general: Parameters, by_class: Mapping[str, Parameters]) -> None:
        self._general = general
        self._by_class = {name.lower(): limits for name, limits in by_class.items()}
        self.names = tuple(by_class)
        """Names of classes with limits of their own, as written."""

    def of(self, candidates: Candidates, name: str) -> Floats | float:
        """Return the limit of that name for each candidate: one number where no class has limits of its own."""
        if self._by_class:
            return tag_numbers(candidates, self._of_tag, name)
        general: float = getattr(self._general, name)
        return general

    def _of_tag(self, tag: AcceleratorTag, name: str) -> float | None:
        return limit_for(tag, name, self._by_class, self._general)


class UtilizationLimits(Parameters, frozen=True):
    """Thresholds of endpoints with accelerators of one class; unset ones are those of all endpoints."""

    queue_depth_threshold: Count | None = None
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: PositiveShare | None = None
    """Share of an engine's KV cache in use at which it is full, 0..1."""


class UtilizationDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of an engine's own metrics."""

    queue_depth_threshold: Count = 5
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: PositiveShare = 0.8
    """Share of an engine's KV cache in use at which it is full, 0..1."""
    metrics_staleness_threshold: str = "200ms"
    """Age from which metrics are not trusted."""
    classes: dict[str, UtilizationLimits] = msgspec.field(default_factory=dict)
    """Other thresholds by name of the accelerator class or else of the model, such as `t4`."""

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
    are too old; those of one that never reported are estimated from own requests there. Endpoints of an accelerator
    class among `classes` have the thresholds given there.
    """

    plugin_type = "utilization-detector"
    may_empty = False
    drops = DropCause.SATURATION
    reads: tuple[Datum, ...] = (WAITING, KV_USAGE, METRICS_AT)

    def setup(self) -> None:
        given = self.parameters
        self._room = 1.0 + given.headroom
        self._limits = LimitsByClass(given, given.classes)
        self._oldest_seconds = parse_duration(given.metrics_staleness_threshold)
        if given.classes:
            self.reads = (*UtilizationDetector.reads, ACCELERATOR)
        self.may_read = LOAD_INPUTS

    @property
    def accelerator_names(self) -> Sequence[str]:
        return self._limits.names

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.headroom_warnings()

    @property
    def oldest_metrics_seconds(self) -> float:
        """The age up to which metrics count."""
        return self._oldest_seconds

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        waiting, kv_usage = self._thresholds(candidates)
        full = candidates.values(WAITING) >= waiting * self._room
        full |= candidates.values(KV_USAGE) >= kv_usage * self._room
        kept: Mask = self._fresh(candidates) & ~full
        return kept if kept.any() else np.ones(len(candidates), dtype=np.bool_)

    def fullness(self, candidates: Candidates) -> Floats:
        waiting, kv_usage = self._thresholds(candidates)
        fullest: Floats = np.maximum(
            expected_load(candidates, WAITING) / waiting, expected_load(candidates, KV_USAGE) / kv_usage
        )
        silent = np.isnan(candidates.values(METRICS_AT))
        return np.where(self._fresh(candidates) | silent, fullest, np.maximum(fullest, 1.0))

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        reasons = ["its metrics were too old"] * len(dropped)
        for text, column, limit in zip(
            ("{:g} requests wait there", "its KV cache is full to {:.0%}"),
            (WAITING, KV_USAGE),
            self._thresholds(dropped),
            strict=True,
        ):
            values = dropped.values(column)
            for position in np.flatnonzero(values >= limit * self._room).tolist():
                reasons[position] = text.format(values[position])
        return reasons

    def _thresholds(self, candidates: Candidates) -> tuple[Floats | float, Floats | float]:
        limits = self._limits
        return limits.of(candidates, "queue_depth_threshold"), limits.of(candidates, "kv_cache_util_threshold")

    def _fresh(self, candidates: Candidates) -> Mask:
        fresh: Mask = self.clock.now() - candidates.values(METRICS_AT) <= self._oldest_seconds
        return fresh


class ConcurrencyLimits(Parameters, frozen=True):
    """Thresholds of endpoints with accelerators of one class; unset ones are those of all endpoints."""

    max_concurrency: Count | None = None
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Count | None = None
    """Prompt tokens in flight at which it is full."""


class ConcurrencyDetectorParameters(DetectorParameters, frozen=True):
    """Thresholds of what this picker has in flight at an endpoint."""

    max_concurrency: Count = 100
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Count = 1_000_000
    """Prompt tokens in flight at which it is full."""
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Which of the two counts; `hybrid` for both."""
    classes: dict[str, ConcurrencyLimits] = msgspec.field(default_factory=dict)
    """Other thresholds by name of the accelerator class or else of the model, such as `t4`."""


class ConcurrencyDetector(Filter[ConcurrencyDetectorParameters], SaturationDetector[ConcurrencyDetectorParameters]):
    """Keeps an endpoint if what this picker has in flight there is below the threshold times `1 + headroom`.

    If no endpoint is left, the profile fails, unless `fallbackOnEmpty` is set. For flow control, an endpoint is as full
    as what is in flight there is, as a share of the threshold: with `hybrid`, the larger of the two shares. Endpoints
    of an accelerator class among `classes` have the thresholds given there.
    """

    plugin_type = "concurrency-detector"
    drops = DropCause.SATURATION
    counts_own_requests = True

    def setup(self) -> None:
        given = self.parameters
        self._room = 1.0 + given.headroom
        self._limits = LimitsByClass(given, given.classes)
        counted = {
            "max_concurrency": (IN_FLIGHT, {"requests", "hybrid"}),
            "max_token_concurrency": (IN_FLIGHT_TOKENS, {"tokens", "hybrid"}),
        }
        self._counted = [(name, column) for name, (column, modes) in counted.items() if given.concurrency_mode in modes]
        columns = tuple(column for _, column in self._counted)
        self.reads = (*columns, ACCELERATOR) if given.classes else columns

    @property
    def accelerator_names(self) -> Sequence[str]:
        return self._limits.names

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.headroom_warnings()

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        kept = np.ones(len(candidates), dtype=np.bool_)
        for name, column in self._counted:
            kept &= candidates.values(column) < np.floor(self._limits.of(candidates, name) * self._room)
        return kept

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        reasons = [""] * len(dropped)
        for name, column in self._counted:
            values = dropped.values(column)
            for position in np.flatnonzero(values >= np.floor(self._limits.of(dropped, name) * self._room)).tolist():
                reasons[position] = f"{values[position]:g} {column.unit} are in flight there"
        return reasons

    def fullness(self, candidates: Candidates) -> Floats:
        shares = [candidates.values(column) / self._limits.of(candidates, name) for name, column in self._counted]
        fullest: Floats = np.maximum.reduce(shares)
        return fullest
