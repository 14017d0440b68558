# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges and histograms that are cheap to update: no locks, and all sums are computed with the page."""

import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import ClassVar, Generic, TypeAlias, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from epp.framework.plugin_status import Distribution, Legacy

PREFIX = "llm_d_epp_"
EXTENSION = "inference_extension_"
"""Prefix of older names, from before llm-d-router."""
_TRUE = frozenset({"true", "1", "t"})
_RENAMED = {"pod_name": "endpoint_name", "model_server_pod": "model_server_endpoint"}
"""Current names of labels, by their older names."""

SCHEDULING_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Bucket bounds for runs of the scheduler and for plugin calls."""


class _Value:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        self.value += by

    def add(self, other: "_Value") -> None:
        self.value += other.value


class Count(_Value):
    __slots__ = ("created",)

    def __init__(self) -> None:
        super().__init__()
        self.created = time.time()


class Level(_Value):
    __slots__ = ()

    def set(self, value: float) -> None:
        self.value = value

    def dec(self) -> None:
        self.value -= 1


class Samples(list[Sample]):
    """Samples created one by one on iteration: freeing a large list at once would stop all threads."""

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
    """A metric and its series by label values; a metric without labels has one series.

    With `legacy` it is also shown under its older name, summed over the labels that the older metric lacks. Only the
    event loop writes; other threads may read a value that is one update behind.
    """

    kind: ClassVar[type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]]
    make: Callable[[], S]
    """Returns a new series."""
    keeps_sums = True
    """Whether removed series stay in the sums under the older name, so that these never decrease."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: CollectorRegistry | None,
        *,
        legacy: Legacy | None = None,
    ) -> None:
        """Prepare; a metric without a registry is for a single page."""
        self.name, self.label_names = name, tuple(labels)
        self._text = text
        self._series: dict[tuple[str, ...], S] = {}
        disabled = os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() in _TRUE
        self._shows_created = registry is not None and not disabled
        self._legacy = legacy
        older = () if legacy is None else legacy.labels
        self._positions = [self.label_names.index(_RENAMED.get(label, label)) for label in older]
        self._live: Counter[tuple[str, ...]] = Counter()
        """Number of series by the labels of the older name."""
        self._ended: dict[tuple[str, ...], S] = {}
        """Sums of removed series by the labels of the older name, while other series have the same labels."""
        self._version = 0
        """Odd while a series is being removed: the sums may then count it twice or not at all."""
        if not labels:
            self.labels()
        if registry is not None:
            registry.register(self)

    @abstractmethod
    def samples(self, name: str, labels: dict[str, str], series: S, *, with_created: bool) -> Iterator[Sample]:
        """Yield the samples of a series, optionally with its time of creation; `name` is without `_total`."""

    def labels(self, *values: str) -> S:
        """Return the series with these label values; create it if needed."""
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(values)} of them")
            series = self._series[values] = self.make()
            if self._legacy is not None:
                self._live[self._key(values)] += 1
        return series

    def remove(self, *values: str) -> None:
        series = self._series.get(values)
        if series is None:
            return
        self._version += 1
        del self._series[values]
        if self._legacy is not None:
            key = self._key(values)
            self._live[key] -= 1
            if not self._live[key]:
                del self._live[key]
                self._ended.pop(key, None)
            elif self.keeps_sums:
                self._ended.setdefault(key, self.make()).add(series)
        self._version += 1

    def clear(self) -> None:
        for values in self.values():
            self.remove(*values)

    def values(self) -> Sequence[tuple[str, ...]]:
        return list(self._series)

    def describe(self) -> Iterator[Metric]:
        yield self.kind(self.name, self._text, labels=self.label_names)
        if self._legacy is not None:
            yield self.kind(self._legacy.name, f"Deprecated: use {self.name}.", labels=self._legacy.labels)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, then the metric under the older name with the sums."""
        for metric, is_older in zip(self.describe(), (False, True), strict=False):
            metric.samples = Samples(partial(self._samples, metric.name, is_older=is_older))
            yield metric

    def _samples(self, name: str, *, is_older: bool) -> Iterator[Sample]:
        names = self._legacy.labels if is_older and self._legacy is not None else self.label_names
        for values, series in self._sums().items() if is_older else list(self._series.items()):
            labels = dict(zip(names, values, strict=True))
            yield from self.samples(name, labels, series, with_created=self._shows_created and not is_older)

    def _sums(self) -> Mapping[tuple[str, ...], S]:
        sums: dict[tuple[str, ...], S] = {}
        for key, series in self._parts():
            sums.setdefault(key, self.make()).add(series)
        return sums

    def _parts(self) -> Sequence[tuple[tuple[str, ...], S]]:
        """Return a consistent copy of the series by key, although the event loop may write meanwhile."""
        while True:
            version = self._version
            parts = list(self._ended.items())
            parts += [(self._key(values), series) for values, series in list(self._series.items())]
            if version == self._version and not version % 2:
                return parts
            time.sleep(0)

    def _key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([values[position] for position in self._positions])


class Counters(Family[Count]):
    kind = CounterMetricFamily
    make = Count

    def count(self, *values: str) -> None:
        self.labels(*values).value += 1

    def samples(self, name: str, labels: dict[str, str], series: Count, *, with_created: bool) -> Iterator[Sample]:
        yield Sample(f"{name}_total", labels, series.value)
        if with_created:
            yield Sample(f"{name}_created", labels, series.created)


class Gauges(Family[Level]):
    kind = GaugeMetricFamily
    make = Level
    keeps_sums = False

    def samples(self, name: str, labels: dict[str, str], series: Level, *, with_created: bool) -> Iterator[Sample]:  # noqa: ARG002  gauges have none
        yield Sample(name, labels, series.value)


class Histograms(Family[Distribution]):
    """A histogram of non-negative values."""

    kind = HistogramMetricFamily

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Iterable[float],
        registry: CollectorRegistry | None,
        *,
        legacy: Legacy | None = None,
    ) -> None:
        """Prepare; `bounds` are the upper bounds of the buckets."""
        limits = tuple(bounds)
        self.make = lambda: Distribution(limits)
        self._edges = [*map(floatToGoString, limits), "+Inf"]
        super().__init__(name, text, labels, registry, legacy=legacy)

    def samples(
        self, name: str, labels: dict[str, str], series: Distribution, *, with_created: bool
    ) -> Iterator[Sample]:
        count = 0
        for edge, count in zip(self._edges, accumulate(series.counts), strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": edge}, count)
        yield Sample(f"{name}_count", labels, count)
        yield Sample(f"{name}_sum", labels, series.total)
        if with_created:
            yield Sample(f"{name}_created", labels, series.created)


class Families:
    """Creates metrics with the prefix of llm-d-router; with `legacy`, older names are shown too."""

    def __init__(self, registry: CollectorRegistry, *, legacy: bool = True) -> None:
        self.registry = registry
        self.legacy = legacy

    def counters(self, name: str, text: str, labels: Sequence[str] = (), legacy: Legacy | str = "") -> Counters:
        return Counters(f"{PREFIX}{name}", text, labels, self.registry, legacy=self._older(name, labels, legacy))

    def gauges(self, name: str, text: str, labels: Sequence[str] = (), legacy: Legacy | str = "") -> Gauges:
        return Gauges(f"{PREFIX}{name}", text, labels, self.registry, legacy=self._older(name, labels, legacy))

    def histograms(
        self, name: str, text: str, bounds: Iterable[float], labels: Sequence[str] = (), legacy: Legacy | str = ""
    ) -> Histograms:
        older = self._older(name, labels, legacy)
        return Histograms(f"{PREFIX}{name}", text, labels, bounds, self.registry, legacy=older)

    def _older(self, name: str, labels: Sequence[str], legacy: Legacy | str) -> Legacy | None:
        """Return the older metric; a text is its prefix, and its labels are the same."""
        if not legacy or not self.legacy:
            return None
        return Legacy(f"{legacy}{name}", tuple(labels)) if isinstance(legacy, str) else legacy


Row: TypeAlias = tuple[Sequence[str], Sequence[float | None]]
"""The label values, and the value of each metric; None for no sample."""


def rows_of(values: Mapping[str, float]) -> Sequence[Row]:
    """Return the rows of one metric with one label from its values by label value."""
    return [((label,), (value,)) for label, value in values.items()]


class Computed(Collector):
    """Metrics with the same labels whose values are read when the page is rendered, in any thread."""

    def __init__(
        self,
        registry: CollectorRegistry,
        labels: Sequence[str],
        texts: Mapping[str, str],
        read: Callable[[], Iterable[Row]],
    ) -> None:
        """Prepare; `texts` are descriptions by name. Names that end in `_total` are counters, all others gauges."""
        self._labels = labels
        self._texts = texts
        self._read = read
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        for name, text in self._texts.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        rows = list(self._read()) if len(self._texts) > 1 else None  # a single metric reads them on iteration
        for position, metric in enumerate(self.describe()):
            metric.samples = Samples(partial(self._samples, metric, rows, position))
            yield metric

    def _samples(self, metric: Metric, rows: Iterable[Row] | None, position: int) -> Iterator[Sample]:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        for values, numbers in self._read() if rows is None else rows:
            if (number := numbers[position]) is not None:
                yield Sample(name, dict(zip(self._labels, values, strict=True)), number)
