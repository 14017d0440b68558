# SPDX-License-Identifier: Apache-2.0
"""Metrics of plugins: their own metrics, and the durations of their calls."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import structlog
from prometheus_client import Metric
from prometheus_client.registry import Collector

from epp.framework.messages import described
from epp.framework.plugin import Plugin, Role
from epp.framework.plugin_status import Distribution, PluginMetric, Sample
from epp.telemetry.families import EXTENSION, PREFIX, SCHEDULING_SECONDS, Counters, Families, Gauges, Histograms

_LABELS = ("plugin_type", "plugin_name")

_log = structlog.get_logger()


class PluginMetrics(Collector):
    """Shows the metrics of the plugins that are in use."""

    def __init__(self, plugins: Callable[[], Iterable[Plugin[Any]]], *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, metrics are shown under older names too."""
        self._plugins = plugins
        self._legacy = legacy
        self._failed: set[str] = set()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples."""
        for metric in dict.fromkeys(metric for plugin in self._plugins() for metric in plugin.metrics):
            yield from family_of(metric, legacy=self._legacy).describe()

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of all plugins, by metric."""
        plugins = tuple(self._plugins())
        families = {metric: family_of(metric, legacy=self._legacy) for plugin in plugins for metric in plugin.metrics}
        for plugin in plugins:
            for sample in self._samples(plugin):
                series = families[sample.metric].labels(plugin.plugin_type, plugin.name, *sample.labels)
                if isinstance(series, Distribution) and isinstance(sample.value, Distribution):
                    series.add(sample.value)
                elif not isinstance(series, Distribution) and not isinstance(sample.value, Distribution):
                    series.value = sample.value
        for family in families.values():
            yield from family.collect()

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


def family_of(metric: PluginMetric, *, legacy: bool = True) -> Counters | Gauges | Histograms:
    """Return the metric of the page, for one page."""
    name, labels = f"{PREFIX}{metric.name}", (*_LABELS, *metric.labels)
    older = metric.legacy if legacy else None
    if metric.bounds:
        return Histograms(name, metric.text, labels, metric.bounds, None, legacy=older)
    if metric.is_counter:
        return Counters(f"{name}_total", metric.text, labels, None, legacy=older)
    return Gauges(name, metric.text, labels, None, legacy=older)


SLOW_SECONDS = 0.01
"""A hundred times the usual cost of a whole decision; all requests wait for it."""
_SLOW_CALLS, _SLOW_SHARE = 5, 0.1
"""Slow calls, and their share of all, from which it is the plugin rather than a pause of the process."""


class PluginTimes:
    """Durations of plugin calls, and how many were slow; logs a plugin that is slow again and again."""

    def __init__(self, families: Families) -> None:
        labels = ("extension_point", "plugin_type", "plugin_name")
        self._durations = families.histograms(
            "plugin_duration_seconds",
            "Duration of plugin calls.",
            SCHEDULING_SECONDS,
            labels,
            EXTENSION,
        )
        self._slow_calls = families.counters(
            "plugin_slow_calls_total", f"Plugin calls of {SLOW_SECONDS:g} s and more.", labels
        )
        self._calls: dict[tuple[str, str, str], Distribution] = {}
        self._logged: set[tuple[str, str, str]] = set()
        self._slowest = (0.0, "")

    def add(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call; there are many for each request."""
        key = role.name, plugin.plugin_type, plugin.name
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = self._durations.labels(*key)
            self._slow_calls.labels(*key)
        if seconds <= SCHEDULING_SECONDS[0]:  # most are, and `observe` costs more
            calls.counts[0] += 1
            calls.total += seconds
            return
        calls.observe(seconds)
        if seconds >= SLOW_SECONDS:
            self._slow(key, seconds, calls)

    def take_slowest(self) -> tuple[float, str]:
        """Return the seconds and the plugin of the longest slow call since this was last called; 0 for none."""
        slowest, self._slowest = self._slowest, (0.0, "")
        return slowest

    def _slow(self, key: tuple[str, str, str], seconds: float, calls: Distribution) -> None:
        slow = self._slow_calls.labels(*key)
        slow.inc()
        self._slowest = max(self._slowest, (seconds, key[2]))
        total = sum(calls.counts)
        if key not in self._logged and slow.value >= _SLOW_CALLS and slow.value >= _SLOW_SHARE * total:
            self._logged.add(key)
            _log.warning(
                "plugin is slow: all requests wait for it",
                plugin=key[2],
                slow_calls=slow.value,
                calls=total,
                mean_ms=round(calls.total / total * 1e3, 3),
            )
