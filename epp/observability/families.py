# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges and histograms that cost a request little: no locks, and nothing computed before the page is."""

import os
import time
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

_TRUE = frozenset({"true", "1", "t"})


class Count:
    """A series of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.created = time.time()

    def inc(self, by: float = 1) -> None:
        """Add to the count."""
        self.value += by


class Level:
    """A series of a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """Set the value."""
        self.value = value

    def inc(self) -> None:
        """Add one."""
        self.value += 1

    def dec(self) -> None:
        """Take one away."""
        self.value -= 1


class Distribution:
    """A series of a histogram."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values in each bucket alone; the last one has no bound."""
        self.total: float = 0
        self.created = time.time()

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


S = TypeVar("S", Count, Level, Distribution)


class Family(Collector, Generic[S]):
    """A metric: its series by the values of its labels, one alone where it has no labels.

    Written by the event loop alone; read by any thread, to within a value.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], make: Callable[[], S], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._make: Callable[[], S] = make
        self._series: dict[tuple[str, ...], S] = {}
        self._shows_created = os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() not in _TRUE
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> S:
        """Return the series with these values of its labels, a new one where there is none."""
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {len(values)} of them")
            series = self._series[values] = self._make()
        return series

    def remove(self, *values: str) -> None:
        """Remove a series, if there is one."""
        self._series.pop(values, None)

    def clear(self) -> None:
        """Remove all series."""
        self._series.clear()

    def values(self) -> Sequence[tuple[str, ...]]:
        """Return the values of the labels of each series."""
        return list(self._series)

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (self._family(),)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with a copy of its values."""
        family = self._family()
        for values, series in list(self._series.items()):
            self._add(family, dict(zip(self._labels, values, strict=True)), series)
        yield family

    @abstractmethod
    def _family(self) -> Metric: ...

    @abstractmethod
    def _add(self, family: Metric, labels: dict[str, str], series: S) -> None: ...


class Counters(Family[Count]):
    """A counter."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, Count, registry)

    def _family(self) -> Metric:
        return CounterMetricFamily(self._name, self._text, labels=self._labels)

    def _add(self, family: Metric, labels: dict[str, str], series: Count) -> None:
        family.add_sample(f"{family.name}_total", labels, series.value)
        if self._shows_created:
            family.add_sample(f"{family.name}_created", labels, series.created)


class Gauges(Family[Level]):
    """A gauge."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, Level, registry)

    def _family(self) -> Metric:
        return GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def _add(self, family: Metric, labels: dict[str, str], series: Level) -> None:
        family.add_sample(family.name, labels, series.value)


class Histograms(Family[Distribution]):
    """A histogram of values of 0 and more."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Iterable[float], registry: CollectorRegistry
    ) -> None:
        limits = tuple(bounds)
        self._edges = [*map(floatToGoString, limits), "+Inf"]
        super().__init__(name, text, labels, lambda: Distribution(limits), registry)

    def _family(self) -> Metric:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def _add(self, family: Metric, labels: dict[str, str], series: Distribution) -> None:
        count = 0
        for edge, count in zip(self._edges, accumulate(series.counts), strict=True):
            family.add_sample(f"{family.name}_bucket", {**labels, "le": edge}, count)
        family.add_sample(f"{family.name}_count", labels, count)
        family.add_sample(f"{family.name}_sum", labels, series.total)
        if self._shows_created:
            family.add_sample(f"{family.name}_created", labels, series.created)
