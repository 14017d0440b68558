# SPDX-License-Identifier: Apache-2.0
"""Metrics of plugins: their own metrics, and the durations of their calls."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from epp.framework.messages import described
from epp.framework.plugin import Plugin, Role
from epp.framework.plugin_status import Distribution, Legacy, PluginMetric, Sample
from epp.telemetry.families import PREFIX, edges_of, histogram_samples

_LABELS = ("plugin_type", "plugin_name")

_log = structlog.get_logger()


class PluginMetrics(Collector):
    """Shows the metrics of the plugins that are in use."""

    def __init__(self, plugins: Callable[[], Iterable[Plugin[Any]]], *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, metrics are shown under older names too."""
        self._plugins = plugins
        self._legacy = legacy
        self._failed: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        metrics = dict.fromkeys(_declared(self._plugins()))
        return [family for metric in metrics for family in families_of(metric, legacy=self._legacy)]

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of all plugins, by metric."""
        plugins = tuple(self._plugins())
        families = {metric: _family_of(metric) for metric in _declared(plugins)}
        twins = {twin.metric: twin for twin in self._twins(families)}
        for plugin in plugins:
            for sample in self._samples(plugin):
                values = plugin.plugin_type, plugin.name, *sample.labels
                labels = dict(zip((*_LABELS, *sample.metric.labels), values, strict=True))
                _show(families[sample.metric], labels, sample.value, sample.metric)
                if sample.metric in twins:
                    twins[sample.metric].add(labels, sample.value)
        yield from families.values()
        for twin in twins.values():
            yield twin.shown()

    def _twins(self, metrics: Iterable[PluginMetric]) -> Iterator["_Twin"]:
        if self._legacy:
            yield from (_Twin(metric, metric.legacy) for metric in metrics if metric.legacy is not None)

    def _samples(self, plugin: Plugin[Any]) -> Sequence[Sample]:
        """Return the samples of a plugin; none of one that fails, so that the others are shown."""
        try:
            return [sample for sample in plugin.samples if sample.metric in plugin.metrics]
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            if plugin.name not in self._failed:
                self._failed.add(plugin.name)
                reason = described(error, type(plugin))
                _log.warning("metrics of a plugin cannot be shown", plugin=plugin.name, reason=reason)
            return ()


class _Twin:
    """A metric under its older name: the samples of all plugins, summed over the labels that it lacks."""

    def __init__(self, metric: PluginMetric, legacy: Legacy) -> None:
        self.metric = metric
        text = f"Deprecated: use {PREFIX}{metric.name}{'_total' if metric.is_counter else ''}."
        self.family = _family(metric, legacy.name, text, legacy.labels)
        self._labels = legacy.labels
        self._sums: dict[tuple[str, ...], float | Distribution] = {}

    def add(self, labels: Mapping[str, str], value: float | Distribution) -> None:
        """Add a sample."""
        key = tuple([labels[label] for label in self._labels])
        if not isinstance(value, Distribution):
            former = self._sums.get(key, 0.0)
            assert not isinstance(former, Distribution)  # noqa: S101  samples of a metric are alike
            self._sums[key] = former + value
            return
        total = self._sums.setdefault(key, Distribution(self.metric.bounds))
        assert isinstance(total, Distribution)  # noqa: S101  the same
        total.add(value)

    def shown(self) -> Metric:
        """Return the metric with its sums."""
        for key, total in self._sums.items():
            _show(self.family, dict(zip(self._labels, key, strict=True)), total, self.metric)
        return self.family


def families_of(metric: PluginMetric, *, legacy: bool = True) -> Iterator[Metric]:
    """Yield the metric of the page, and that of its older name, without samples."""
    yield _family_of(metric)
    if legacy and metric.legacy is not None:
        yield _Twin(metric, metric.legacy).family


def _family_of(metric: PluginMetric) -> Metric:
    return _family(metric, f"{PREFIX}{metric.name}", metric.text, (*_LABELS, *metric.labels))


def _family(metric: PluginMetric, name: str, text: str, labels: Sequence[str]) -> Metric:
    if metric.bounds:
        return HistogramMetricFamily(name, text, labels=labels)
    return (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(name, text, labels=labels)


def _show(family: Metric, labels: dict[str, str], value: float | Distribution, metric: PluginMetric) -> None:
    if isinstance(value, Distribution):
        family.samples += histogram_samples(family.name, labels, value, edges_of(metric.bounds))
    else:
        family.add_sample(f"{family.name}_total" if metric.is_counter else family.name, labels, value)


def _declared(plugins: Iterable[Plugin[Any]]) -> Iterator[PluginMetric]:
    for plugin in plugins:
        yield from plugin.metrics


SLOW_SECONDS = 0.01
"""A hundred times the usual cost of a whole decision; all requests wait for it."""
_SLOW_CALLS, _SLOW_SHARE = 5, 0.1
"""Slow calls, and their share of all, from which it is the plugin rather than a pause of the process."""


class _Calls:
    """Calls of one plugin in one role."""

    __slots__ = ("counts", "logged", "seconds", "slow")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.seconds = 0.0
        self.slow = 0
        self.logged = False


class PluginTimes(Collector):
    """Written by the event loop only; read by any thread, to within a call."""

    def __init__(self, bounds: Iterable[float], *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, the durations are shown under their older name too."""
        self._bounds = tuple(bounds)
        self._legacy = legacy
        self._usual = self._bounds[0]
        self._calls: dict[tuple[str, str, str], _Calls] = {}
        self._slowest = (0.0, "")

    def add(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call; there are many for each request."""
        try:
            calls = self._calls[role.name, plugin.plugin_type, plugin.name]
        except KeyError:
            calls = self._calls[role.name, plugin.plugin_type, plugin.name] = _Calls(len(self._bounds))
        calls.seconds += seconds
        if seconds <= self._usual:
            calls.counts[0] += 1
            return
        calls.counts[bisect_left(self._bounds, seconds)] += 1
        if seconds >= SLOW_SECONDS:
            self._slow(plugin.name, seconds, calls)

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram and the number of slow calls."""
        labels = ("extension_point", "plugin_type", "plugin_name")
        durations = [
            HistogramMetricFamily(f"{PREFIX}plugin_duration_seconds", "Duration of plugin calls.", labels=labels)
        ]
        if self._legacy:
            text = f"Deprecated: use {PREFIX}plugin_duration_seconds."
            durations.append(HistogramMetricFamily("inference_extension_plugin_duration_seconds", text, labels=labels))
        slow = CounterMetricFamily(
            f"{PREFIX}plugin_slow_calls", f"Plugin calls of {SLOW_SECONDS:g} s and more.", labels=labels
        )
        edges = edges_of(self._bounds)
        for key, calls in list(self._calls.items()):
            buckets = list(zip(edges, map(float, accumulate(calls.counts)), strict=True))
            for family in durations:
                family.add_metric(key, buckets, calls.seconds)
            slow.add_metric(key, calls.slow)
        yield from durations
        yield slow

    def take_slowest(self) -> tuple[float, str]:
        """Return the seconds and the plugin of the longest slow call since this was last called; 0 for none."""
        slowest, self._slowest = self._slowest, (0.0, "")
        return slowest

    def _slow(self, plugin: str, seconds: float, calls: _Calls) -> None:
        calls.slow += 1
        self._slowest = max(self._slowest, (seconds, plugin))
        total = sum(calls.counts)
        if not calls.logged and calls.slow >= _SLOW_CALLS and calls.slow >= _SLOW_SHARE * total:
            calls.logged = True
            _log.warning(
                "plugin is slow: all requests wait for it",
                plugin=plugin,
                slow_calls=calls.slow,
                calls=total,
                mean_ms=round(calls.seconds / total * 1e3, 3),
            )
