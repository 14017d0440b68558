# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges and histograms that cost a request little: no locks, and nothing computed before the page is."""

import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from epp.framework.plugin_status import Distribution, Legacy

PREFIX = "llm_d_epp_"
_TRUE = frozenset({"true", "1", "t"})
_RENAMED = {"pod_name": "endpoint_name", "model_server_pod": "model_server_endpoint"}
"""Labels that older names have for those of now."""


class Count:
    """A series of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.created = time.time()

    def inc(self, by: float = 1) -> None:
        """Add to the count."""
        self.value += by

    def add(self, other: "Count") -> None:
        """Add another count."""
        self.value += other.value


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

    def add(self, other: "Level") -> None:
        """Add another value."""
        self.value += other.value


class Samples(list[Sample]):
    """Samples that are made one by one as they are asked for: to free very many at once would stop all threads."""

    def __init__(self, make: Callable[[], Iterable[Sample]]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._make())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)


S = TypeVar("S", Count, Level, Distribution)


class Family(Collector, Generic[S]):
    """A metric: its series by the values of its labels, one alone where it has no labels.

    Written by the event loop only; read by any thread, to within a value.
    """

    keeps_sums = True
    """Whether the count of a removed series stays in the sum under the older name, so that the sum never decreases."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], make: Callable[[], S], registry: CollectorRegistry
    ) -> None:
        self.name, self.label_names = name, tuple(labels)
        self._text = text
        self.make: Callable[[], S] = make
        """Return a new series."""
        self._series: dict[tuple[str, ...], S] = {}
        self._twin: Twin[S] | None = None
        self._shows_created = os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() not in _TRUE
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> S:
        """Return the series with these values of its labels, a new one where there is none."""
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(values)} of them")
            series = self._series[values] = self.make()
            if self._twin is not None:
                self._twin.began(values)
        return series

    def remove(self, *values: str) -> None:
        """Remove a series, if there is one."""
        if self._twin is not None and values in self._series:
            self._twin.ended(values, self._series[values], lambda: self._series.pop(values))
        else:
            self._series.pop(values, None)

    def clear(self) -> None:
        """Remove all series."""
        for values in list(self._series):
            self.remove(*values)

    def values(self) -> Sequence[tuple[str, ...]]:
        """Return the values of the labels of each series."""
        return list(self._series)

    def series(self) -> Sequence[tuple[tuple[str, ...], S]]:
        """Return each series with the values of its labels."""
        return list(self._series.items())

    def also_as(self, legacy: Legacy, registry: CollectorRegistry) -> None:
        """Show it under its older name too; to be called before its first event."""
        self._twin = Twin(self, legacy, registry)

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (self.family(self.name, self._text, self.label_names),)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with a copy of its values."""
        family = self.family(self.name, self._text, self.label_names)
        family.samples = Samples(lambda: self._samples(family.name))
        yield family

    def _samples(self, name: str) -> Iterator[Sample]:
        for values, series in self.series():
            labels = dict(zip(self.label_names, values, strict=True))
            yield from self.samples(name, labels, series, with_created=self._shows_created)

    @abstractmethod
    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        """Return a metric of this kind without samples."""

    @abstractmethod
    def samples(self, name: str, labels: dict[str, str], series: S, *, with_created: bool) -> Iterator[Sample]:
        """Yield the samples of a series, perhaps with the time since when it counts; a counter's name has no suffix."""


class Twin(Collector, Generic[S]):
    """A metric under its older name: the series of a family, summed over the labels that it lacks."""

    def __init__(self, of: Family[S], legacy: Legacy, registry: CollectorRegistry) -> None:
        self._of: Family[S] = of
        self._legacy = legacy
        self._text = f"Deprecated: use {of.name}."
        self._positions = [of.label_names.index(_RENAMED.get(label, label)) for label in legacy.labels]
        self._live: Counter[tuple[str, ...]] = Counter()
        self._ended: dict[tuple[str, ...], S] = {}
        """Counts of removed series, by labels that other series still have here."""
        self._version = 0
        """Odd while a series ends: it counts twice, or not at all."""
        registry.register(self)

    def began(self, values: tuple[str, ...]) -> None:
        """Take note of a new series."""
        self._live[self._key(values)] += 1

    def ended(self, values: tuple[str, ...], series: S, remove: Callable[[], object]) -> None:
        """Remove a series, and keep its count in the sum."""
        key = self._key(values)
        self._version += 1
        remove()
        self._live[key] -= 1
        if self._live[key] <= 0:
            del self._live[key]
            self._ended.pop(key, None)
        elif self._of.keeps_sums:
            if key not in self._ended:
                self._ended[key] = self._of.make()
            self._ended[key].add(series)
        self._version += 1

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (self._of.family(self._legacy.name, self._text, self._legacy.labels),)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with its sums."""
        family = self._of.family(self._legacy.name, self._text, self._legacy.labels)
        family.samples = Samples(lambda: self._samples(family.name))
        yield family

    def _samples(self, name: str) -> Iterator[Sample]:
        for key, total in self._sums().items():
            labels = dict(zip(self._legacy.labels, key, strict=True))
            yield from self._of.samples(name, labels, total, with_created=False)

    def _sums(self) -> Mapping[tuple[str, ...], S]:
        sums: dict[tuple[str, ...], S] = {}
        for key, series in self._parts():
            total = sums.get(key)
            if total is None:
                total = sums[key] = self._of.make()
            total.add(series)
        return sums

    def _parts(self) -> Sequence[tuple[tuple[str, ...], S]]:
        """Return the sums by key, from between two changes: a thread may read while the event loop writes."""
        while True:
            version = self._version
            parts = list(self._ended.items())
            parts += [(self._key(values), series) for values, series in self._of.series()]
            if version == self._version and not version % 2:
                return parts
            time.sleep(0)

    def _key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([values[position] for position in self._positions])


class Counters(Family[Count]):
    """A counter."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, Count, registry)

    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        """Return a counter without samples."""
        return CounterMetricFamily(name, text, labels=labels)

    def samples(self, name: str, labels: dict[str, str], series: Count, *, with_created: bool) -> Iterator[Sample]:
        """Yield the count."""
        yield Sample(f"{name}_total", labels, series.value)
        if with_created:
            yield Sample(f"{name}_created", labels, series.created)


class Gauges(Family[Level]):
    """A gauge."""

    keeps_sums = False

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, Level, registry)

    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        """Return a gauge without samples."""
        return GaugeMetricFamily(name, text, labels=labels)

    def samples(self, name: str, labels: dict[str, str], series: Level, *, with_created: bool) -> Iterator[Sample]:  # noqa: ARG002  a gauge has no beginning
        """Yield the value."""
        yield Sample(name, labels, series.value)


class Histograms(Family[Distribution]):
    """A histogram of values of 0 and more."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Iterable[float], registry: CollectorRegistry
    ) -> None:
        limits = tuple(bounds)
        self._edges = edges_of(limits)
        super().__init__(name, text, labels, lambda: Distribution(limits), registry)

    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        """Return a histogram without samples."""
        return HistogramMetricFamily(name, text, labels=labels)

    def samples(
        self, name: str, labels: dict[str, str], series: Distribution, *, with_created: bool
    ) -> Iterator[Sample]:
        """Yield the buckets, the count and the sum."""
        yield from histogram_samples(name, labels, series, self._edges)
        if with_created:
            yield Sample(f"{name}_created", labels, series.created)


def edges_of(bounds: Iterable[float]) -> list[str]:
    """Return the values of `le` of buckets with these bounds."""
    return [*map(floatToGoString, bounds), "+Inf"]


def histogram_samples(
    name: str, labels: dict[str, str], series: Distribution, edges: Sequence[str]
) -> Iterator[Sample]:
    """Yield the buckets of a distribution, its count and its sum."""
    count = 0
    for edge, count in zip(edges, accumulate(series.counts), strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": edge}, count)
    yield Sample(f"{name}_count", labels, count)
    yield Sample(f"{name}_sum", labels, series.total)


class Families:
    """Makes metrics with the prefix of llm-d-router, and shows them under older names too if these are wanted."""

    def __init__(self, registry: CollectorRegistry, *, legacy: bool = True) -> None:
        self.registry = registry
        self.legacy = legacy
        """Whether older names are shown."""

    def counters(self, name: str, text: str, labels: Sequence[str] = (), legacy: Legacy | None = None) -> Counters:
        """Return a new counter."""
        family = Counters(f"{PREFIX}{name}", text, labels, self.registry)
        self._twin(family, legacy)
        return family

    def gauges(self, name: str, text: str, labels: Sequence[str] = (), legacy: Legacy | None = None) -> Gauges:
        """Return a new gauge."""
        family = Gauges(f"{PREFIX}{name}", text, labels, self.registry)
        self._twin(family, legacy)
        return family

    def histograms(
        self,
        name: str,
        text: str,
        bounds: Iterable[float],
        labels: Sequence[str] = (),
        legacy: Legacy | None = None,
    ) -> Histograms:
        """Return a new histogram."""
        family = Histograms(f"{PREFIX}{name}", text, labels, bounds, self.registry)
        self._twin(family, legacy)
        return family

    def _twin(self, family: Family[S], legacy: Legacy | None) -> None:
        if legacy is not None and self.legacy:
            family.also_as(legacy, self.registry)


TTFT_SECONDS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
)  # fmt: skip
DURATION_SECONDS = (*TTFT_SECONDS, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
NTPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TPOT_SECONDS = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2,
)  # fmt: skip
ITL_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
SCHEDULING_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
REQUEST_PROCESSING_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
RESPONSE_PROCESSING_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
)  # fmt: skip
QUEUE_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONFIRMATION_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
STREAM_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)
REQUEST_BYTES = tuple(64.0 * 2**power for power in range(25))  # 64 B to 1 GiB
OUTPUT_TOKENS = (1, *(8.0 * 2**power for power in range(11)))  # 1, 8 to 8192
RESPONSE_BYTES = (*OUTPUT_TOKENS, 16384, 32778, 65536)  # 32778, not 32768, there too
TOKENS = (*RESPONSE_BYTES, *(131072.0 * 2**power for power in range(4)))
