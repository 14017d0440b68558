# SPDX-License-Identifier: Apache-2.0
"""What plugins report to their operator: files that are not in effect, metrics, and state for the debug page."""

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
    """A file, or an object of one, whose newest version is not in effect."""

    file: str
    object: str = ""
    """Kind and name of the object; empty for the file as a whole."""
    reason: str = ""
    """Field, value and remedy."""
    kept: int = 0
    """Objects that are in effect in an earlier version."""

    def __str__(self) -> str:
        what = f"{self.file}: {self.object}" if self.object else self.file
        if not self.kept:
            return f"{what} is skipped: {self.reason}"
        objects = f", with {self.kept} object{'s' if self.kept > 1 else ''}" if not self.object else ""
        return f"{what} stays as it was{objects}: {self.reason}"


@dataclass(frozen=True, slots=True)
class IgnoredValue:
    """A value that cannot be true, of an object that is in effect without it."""

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
    """Versions of each file, and of its objects, that were rejected since the start; 0 where none was."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Values that objects in effect are used without."""
    remarks: tuple[str, ...] = ()
    """Further sentences on objects in effect: on those without use, on names that occur twice."""


class HasInputs(Protocol):
    """A plugin, or a flag that names files."""

    @property
    def name(self) -> str:
        """Name in log lines, metrics and `/healthz`."""

    @property
    def inputs(self) -> InputState:
        """Its inputs now."""


class Distribution:
    """Values of 0 and more, counted in buckets; written by one thread, and read by any."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Prepare for buckets with these upper bounds, and one more without."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values in each bucket, not cumulative; the last one has no bound."""
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
    """The older name of a metric, for dashboards; its values are sums over the labels that it lacks."""

    name: str
    """With its own prefix, and for a counter with `_total`."""
    labels: tuple[str, ...] = ()
    """Labels of the metric, perhaps under an older name."""


@dataclass(frozen=True, slots=True)
class PluginMetric:
    """A gauge, a counter or a histogram; its labels begin with `plugin_type` and `plugin_name`."""

    name: str
    """Without the prefix `llm_d_epp_`, and for a counter without `_total`."""
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
    """Return numbers by endpoint, given one for each slot: of many endpoints, those with the largest of the first kind.

    Numbers that are unknown or infinite are null.
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
