# SPDX-License-Identifier: Apache-2.0
"""Metrics that a plugin keeps and the metrics page shows."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


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
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add(self, other: "Distribution") -> None:
        """Count all that another one with the same bounds has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(frozen=True, slots=True)
class Legacy:
    """The older name of a metric, which dashboards may use: what it counts is summed over the labels that it lacks."""

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
    """Further labels."""
    is_counter: bool = False
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram; empty for other kinds."""
    legacy: Legacy | None = None
    """Its older name, if it has one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric."""

    metric: PluginMetric
    value: float | Distribution
    """A Distribution for a histogram."""
    labels: tuple[str, ...] = ()
    """Values of the further labels."""
