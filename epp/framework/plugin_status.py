# SPDX-License-Identifier: Apache-2.0
"""Reports of plugins to the operator: files that are not in effect, metrics, and state for the debug page."""

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epp.framework.snapshot import Snapshot

MOST_ENDPOINTS = 100


@dataclass(frozen=True, slots=True)
class InputProblem:
    """A file, or an object in a file, whose newest version is not in effect."""

    file: str
    object: str = ""
    """Kind and name of the object; empty for the file as a whole."""
    reason: str = ""
    """Field, value and remedy."""
    kept: int = 0
    """Number of objects of which an earlier version stays in effect."""

    def __str__(self) -> str:
        what = f"{self.file}: {self.object}" if self.object else self.file
        if not self.kept:
            return f"{what} is skipped: {self.reason}"
        objects = f", with {self.kept} object{'s' if self.kept > 1 else ''}" if not self.object else ""
        return f"{what} stays as it was{objects}: {self.reason}"


@dataclass(frozen=True, slots=True)
class IgnoredValue:
    """An impossible value of an object that is in effect without it."""

    file: str
    kind: str
    object: str
    reason: str
    """Field, value and remedy."""

    def __str__(self) -> str:
        return f"{self.file}: {self.kind} {self.object}: {self.reason}; it is ignored"


@dataclass(frozen=True, slots=True)
class InputState:
    """Inputs of one plugin or flag at one moment."""

    problems: tuple[InputProblem, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of rejected versions of each file and of its objects since the start; 0 if there are none."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Ignored values of objects in effect."""
    remarks: tuple[str, ...] = ()
    """Other messages about objects in effect, such as unused objects and duplicate names."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each problem, each ignored value and each remark."""
        return (*map(str, self.problems), *map(str, self.ignored), *self.remarks)


class HasInputs(Protocol):
    """A plugin, or a flag that names files."""

    @property
    def name(self) -> str:
        """Name in log lines, metrics and `/healthz`."""

    @property
    def inputs(self) -> InputState:
        """Current state of its inputs."""


class Distribution:
    """Histogram of values of 0 or more; written by one thread, and read by any thread."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create buckets with these upper bounds, and one without a bound."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket, not cumulative; the last bucket has no bound."""
        self.total: float = 0
        self.created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add(self, other: "Distribution") -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(frozen=True, slots=True)
class Legacy:
    """An older name of a metric, for dashboards; its values are sums over the labels that it lacks."""

    name: str
    """Full name, with its own prefix, and for a counter with `_total`."""
    labels: tuple[str, ...] = ()
    """Labels of the metric, possibly under an older name."""


@dataclass(frozen=True, slots=True)
class PluginMetric:
    """A gauge, a counter or a histogram; the labels `plugin_type` and `plugin_name` precede `labels`."""

    name: str
    """Name without the prefix `llm_d_epp_`, and for a counter without `_total`."""
    text: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram; empty for other kinds."""
    legacy: Legacy | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric."""

    metric: PluginMetric
    value: float | Distribution
    """A Distribution for a histogram."""
    labels: tuple[str, ...] = ()


def endpoint_state(snapshot: Snapshot, numbers: Mapping[str, NDArray[np.generic]]) -> dict[str, object]:
    """Return the numbers by endpoint, given arrays by slot; at most 100 endpoints, the largest first numbers first.

    Unknown and infinite numbers are null.
    """
    slots = snapshot.slots
    first = np.nan_to_num(next(iter(numbers.values()))[slots].astype(np.float64), nan=-math.inf)
    shown = slots[np.argsort(-first, kind="stable")[:MOST_ENDPOINTS]].tolist()
    endpoints = [
        {"name": endpoint.name, "address": endpoint.hostport}
        | {key: _plain(each[slot]) for key, each in numbers.items()}
        for slot in shown
        if (endpoint := snapshot.endpoints.values[slot]) is not None
    ]
    return {
        "endpoints": endpoints,
        "totalEndpoints": len(slots),
        "maxEndpoints": MOST_ENDPOINTS,
        "truncated": len(slots) > MOST_ENDPOINTS,
    }


def _plain(number: np.generic) -> float | int | None:
    value: float | int = number.item()
    return value if math.isfinite(value) else None
